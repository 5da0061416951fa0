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
from epl.utils import tf_compat

_MOST = 4  # ops that others wait for themselves


def behind_one_op(phase: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates what creates ops of `phase` in an annotated graph."""

    def decorate(create: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(create)
        def call(*args: Any, **kwargs: Any) -> Any:
            graph = Graph.get()
            if graph is None or not (graph.taskgraphs or Env.get().config.auto.auto_parallel):
                return create(*args, **kwargs)
            many = tf_compat.dependencies_in_effect(graph.tf_graph, _MOST)
            if not many:
                return create(*args, **kwargs)
            with graph.phase(phase):
                one = tf.no_op(name="epl_dependencies")
            with tf_compat.replaced_dependencies(many, one):
                return create(*args, **kwargs)

        return call

    return decorate
