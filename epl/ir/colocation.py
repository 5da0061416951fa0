"""Removes needless colocation of backward ops with ops of other TaskGraphs; and helpers for marks of ops.

TensorFlow passes the gradients of an op through identities that wait for each other (`control_flow_ops.tuple`), each
colocated with the op that computed the gradient. A gradient that an op passes on unchanged, such as BiasAdd's, was
computed in the next stage:

    stage 0: MatMulGrad <-- identity | BiasAddGrad         stage 1: TanhGrad
                            `-- colocated with -------------------------'

With this colocation the identity would make the backward pass of stage 1 wait for that of stage 0.
"""

import contextlib
from typing import Dict, Iterable, Iterator, Optional

import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR
from epl.utils import tf_compat


def separate_taskgraphs(ops: Iterable[tf.Operation]) -> None:
    """Removes the colocation of ops with ops of other TaskGraphs."""
    indices: Dict[tf.Operation, Optional[int]] = {}

    def index(op: tf.Operation) -> Optional[int]:
        if op not in indices:
            indices[op] = taskgraph_index(op)
        return indices[op]

    for op in ops:
        groups = op.colocation_groups()
        anchors = [group[5:].decode() for group in groups if group[5:].decode() != op.name]
        if any(index(op.graph.get_operation_by_name(anchor)) != index(op) for anchor in anchors):
            tf_compat.set_attr(op, "_class", tf.AttrValue(list=tf.AttrValue.ListValue()))


def phase_of(op: tf.Operation) -> str:
    """The phase that an op is marked with; "" if none."""
    try:
        return op.get_attr(PHASE_ATTR).decode()
    except ValueError:
        return ""


def taskgraph_index(op: tf.Operation) -> Optional[int]:
    """The TaskGraph that an op is marked with, or None."""
    try:
        return op.get_attr(TASKGRAPH_ATTR)
    except ValueError:
        return None


@contextlib.contextmanager
def in_taskgraph(tf_graph: tf.Graph, index: Optional[int]) -> Iterator[None]:
    """Ops created inside belong to the TaskGraph."""
    mark = tf_compat.set_attr_scope(tf_graph, TASKGRAPH_ATTR, None if index is None else tf.AttrValue(i=index))
    try:
        yield
    finally:
        tf_compat.set_attr_scope(tf_graph, TASKGRAPH_ATTR, mark)
