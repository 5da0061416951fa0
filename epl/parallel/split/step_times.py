"""How long the ops of a split take in full, forward and backward; each different op is differentiated once."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import node_wire
from epl.parallel.costs import backward
from epl.parallel.costs.backward import Backward, Constant, Signature
from epl.parallel.costs.op_times import OpTimes
from epl.parallel.costs.ops import op_cost
from epl.parallel.costs.shapes import TensorType


class OpTensor(NamedTuple):
    """An input or output of an op, as its time depends on it.

    Attributes:
      type: shape and dtype; the shape has no open dimension unless its rank is unknown.
      constant: its elements, if they are whole numbers in small number that are known; axes, for example.
      trained: whether gradients of variables depend on its gradient.
      variable: shape and dtype of the variable whose handle it is; else None.
    """

    type: TensorType
    constant: Constant = None
    trained: bool = False
    variable: Optional[TensorType] = None


class FullOp(NamedTuple):
    """An op of the unsplit program, with its data inputs and its outputs."""

    node: tf.NodeDef
    inputs: Tuple[OpTensor, ...]
    outputs: Tuple[OpTensor, ...]


def step_seconds(ops: Sequence[FullOp], times: OpTimes) -> List[float]:
    """Seconds of each op without launch overhead, which shards have as well; 0 if the rank of a tensor is unknown."""
    signatures = [_signature(one) for one in ops]
    differentiated = backward.differentiate(signatures)
    return [_seconds(one, differentiated[signature], times) for one, signature in zip(ops, signatures)]


def _seconds(one: FullOp, after: Backward, times: OpTimes) -> float:
    taken, given = ([tensor.type for tensor in some] for some in (one.inputs, one.outputs))
    if not given or any(tensor.shape is None for tensor in taken + given):
        return 0.0
    forward = times.work_seconds(op_cost(one.node, taken, given))
    return forward + sum(run.times * times.work_seconds(run.cost()) for run in after.runs)


def _signature(one: FullOp) -> Signature:
    variables = tuple(tensor.variable for tensor in one.inputs)
    return Signature(
        one.node.op,
        backward.attributes_of(node_wire.read_node(one.node.SerializeToString()).serialized_attrs),
        tuple(tensor.type for tensor in one.inputs),
        tuple(tensor.type for tensor in one.outputs),
        tuple(tensor.constant for tensor in one.inputs),
        tuple(tensor.trained for tensor in one.inputs),
        tuple(tensor.trained for tensor in one.outputs),
        variables if any(variables) else (),
    )
