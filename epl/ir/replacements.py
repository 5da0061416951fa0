"""Replacements: ops that replace ops of the user, as the half copies of mixed precision do.

    x --> MatMul --> y --> loss            x --> Cast --> MatMul' --> computed --> Cast --> restored --> loss
                                   =>      x --> MatMul --> y
                                                            runs no more

TensorFlow cannot change the type of an existing op. So the op of the user stays, without consumers; a fetch of its
output gets the value of the replacement, in the type of the output.
"""

from typing import List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ir import node_wire, op_types
from epl.ir.walks import topological_order


class Replacement(NamedTuple):
    """The replacement of an output of an op of the user.

    Attributes:
      original: the output, which is no longer computed.
      computed: the tensor that replaces it, possibly in another type.
      restored: the same in the type of the original; None in a loop or branch, where no run can fetch it.
      is_half: whether it computes in half precision.
    """

    original: tf.Tensor
    computed: tf.Tensor
    restored: Optional[tf.Tensor]
    is_half: bool = False


def in_order(nodes: Sequence[node_wire.Node]) -> List[node_wire.Node]:
    """Nodes in creation order, but each after its producers: a replacement is created after its consumers.

    The back edge of a loop is not followed.
    """
    index = {node.name: i for i, node in enumerate(nodes)}
    back = {i for i, node in enumerate(nodes) if node.op in op_types.NEXT_ITERATIONS}
    producers = [{index[_producer(name)] for name in node.input} - back for node in nodes]
    consumers: List[List[int]] = [[] for _ in nodes]
    for node, own in enumerate(producers):
        for producer in own:
            consumers[producer].append(node)
    waiting = {node: len(own) for node, own in enumerate(producers)}
    return [nodes[node] for node in topological_order(waiting, consumers.__getitem__)]


def _producer(name: str) -> str:
    return name[1:] if name[0] == "^" else name.partition(":")[0]
