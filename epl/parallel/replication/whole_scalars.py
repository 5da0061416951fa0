"""Which scalars of a training step can be shown of all rows, when a run fetches them or a summary takes them.

    rows --> correct? --> mean            accuracy of a replica    =>    mean of the means, weighted with rows
    rows --> mask --> sum, sum / sum      weighted mean            =>    quotient of the sums of all replicas

`epl/parallel/sharding/row_lowering.py` says whether the whole of a scalar can be had. What the forward pass computes
stays that of each replica: where a batch norm takes the statistics of a replica's own rows, the accuracy is that of
the predictions which the loss takes. Such statistics are those of a replica, and so is a scalar that takes one next
to a mean. A scalar is left to replica 0 if it needs data or placeholders that the gradients do not need: more data
would be drawn for it.
"""

from typing import AbstractSet, FrozenSet, NamedTuple, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.sharding.row_flow import Output, RowFlow
from epl.parallel.sharding.row_lowering import PASSES_ON, RowLowering
from epl.utils import tf_compat

_RESULTS = op_types.MERGES | op_types.EXITS  # of branches and loops


class WholeScalars(NamedTuple):
    """The scalars of all rows, and the program that gives them.

    Attributes:
      view: of the graph.
      lowering: how their wholes are computed.
      scalars: all of them.
      averaged: those of them that are a merged mean, such as the loss, by another name: the mean over the replicas.
    """

    view: GraphView
    lowering: RowLowering
    scalars: Tuple[Output, ...]
    averaged: FrozenSet[Output] = frozenset()


def scalars_of(tf_graph: tf.Graph, view: GraphView, nodes: AbstractSet[int]) -> Set[Output]:
    """The numbers that nodes give, outside of branches and loops, and the results of these."""
    found: Set[Output] = set()
    for node in nodes:
        if view.types[node] in op_types.VARIABLES | op_types.WRITES | (op_types.CONTROL_FLOW - _RESULTS):
            continue
        operation = tf_graph.get_operation_by_name(view.nodes[node].name)
        numbers = [at for at, tensor in enumerate(operation.outputs) if is_number(tensor)]
        if numbers and tf_compat.control_flow_context_of(operation) is None:
            found.update((node, at) for at in numbers)
    return found


def is_number(tensor: tf.Tensor) -> bool:
    """Whether a tensor is known to be one number."""
    return tensor.shape.ndims == 0 and (tensor.dtype.base_dtype.is_floating or tensor.dtype.base_dtype.is_integer)


def shown_value(view: GraphView, output: Output) -> str:
    """The name of the tensor that an output has the value of: `train_op = tf.identity(loss)` shows the loss."""
    node, at = output
    while view.types[node] in PASSES_ON:
        node, at = data_inputs(view, node)[0]
    return f"{view.nodes[node].name}:{at}"


def choose(
    view: GraphView,
    flow: RowFlow,
    lowering: RowLowering,
    scalars: AbstractSet[Output],
    averaged: FrozenSet[Output] = frozenset(),
) -> WholeScalars:
    """Chooses among scalars.

    Args:
      view: of the graph.
      flow: of the rows.
      lowering: of the nodes that the scalars are computed from.
      scalars: the candidates.
      averaged: those of them that are a merged mean by another name.

    Returns:
      Those that can be of all rows.
    """
    differing = [one for one in sorted(scalars) if not flow.of(one).is_same]
    chosen = [one for one in differing if one in averaged or (flow.of(one).has_data and _has_whole(lowering, one))]
    return WholeScalars(view, lowering, tuple(chosen), averaged.intersection(chosen))


def _has_whole(lowering: RowLowering, output: Output) -> bool:
    """Whether the whole of a value is known, and is another value than that of a replica."""
    if lowering.no_whole(output):
        return False
    return not lowering.of(output).is_same or lowering.found[output[0]].inputs is not None
