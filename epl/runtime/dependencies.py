"""What waits for many ops waits for one that waits for them.

    with tf.control_dependencies(updates):         u0 --+            u0 --+
        train_op = optimizer.minimize(loss)        u1 --+--> no-op   u1 --+--> no-op --> op, op, op, ...
                                                   u2 --+     =>     u2 --+

TensorFlow lets thousands of ops of the backward pass wait for each of hundreds of updates of batch norm. These edges
would be most of the graph: reading it and cloning it would take several times as long.
"""

import functools
from typing import Any, Callable

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.ir.taskgraph import TASKGRAPH_ATTR
from epl.parallel.auto_partition.annotate import Partitioned
from epl.utils import tf_compat

_DEPENDENCIES = OpOrigin("replicas", "dependencies")
_MOST = 4  # ops that others wait for themselves


def behind_one_op(phase: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates what creates ops of `phase` in an annotated graph."""

    def decorate(create: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(create)
        def call(*args: Any, **kwargs: Any) -> Any:
            graph = Graph.get()
            if graph is None or not graph.taskgraphs or _waits_for_partition(graph):
                return create(*args, **kwargs)
            many = tf_compat.dependencies_in_effect(graph.tf_graph, _MOST)
            if not many:
                return create(*args, **kwargs)
            last = tf.AttrValue(i=graph.taskgraphs[-1].index)  # what it waits for may be in any
            before = tf_compat.set_attr_scope(graph.tf_graph, TASKGRAPH_ATTR, last)
            with graph.phase(phase), graph.inserted.following(_DEPENDENCIES):
                one = tf.no_op(name="epl_dependencies")
            tf_compat.set_attr_scope(graph.tf_graph, TASKGRAPH_ATTR, before)
            with tf_compat.replaced_dependencies(many, one):
                return create(*args, **kwargs)

        return call

    return decorate


def _waits_for_partition(graph: Graph) -> bool:
    """Whether `auto.auto_parallel` is to divide the graph first: it knows no stage for an op that only waits."""
    return Env.get().config.auto.auto_parallel and graph.state_of(Partitioned) is None
