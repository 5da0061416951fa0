"""The collectives by which the replicas of a recorded model compute with the rows of all, as the passes decide them.

    batch_norm.sync    each marker of the forward pass: an all-reduce, and one of its gradient
    replicate.batch    the collectives of the losses in the rewritten graph
    replicate.state    those of its writes

The markers of batch norms are there before a model is planned, and so count in a search. What a loss or a write needs
is decided when its graph is differentiated or rewritten: a search does not know it.
"""

from typing import Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.dataflow import data_descendants
from epl.ir.graph import Graph
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.batch_norm import sites, sums
from epl.parallel.plan.communicators import is_of_writes, whole_batch_communicator
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.strategy.record import ForwardPass
from epl.parallel.whole_batch.markers import FORWARD_ATTR
from epl.planner.simulator.model_costs import RowExchange, RowWay

BATCH_NORMS, LOSSES, WRITES = "batch_norm.sync", 'replicate.batch "all"', 'replicate.state "all"'


def find_exchanges(graph: Graph, found: ForwardPass) -> Tuple[Tuple[RowExchange, ...], Tuple[str, ...]]:
    """The collectives in the order of the forward pass, and the settings whose collectives are not known yet.

    Args:
      graph: of the model.
      found: its forward pass.
    """
    exchanges = _of_batch_norms(graph, found)
    if graph.rewritten is None:
        config = Env.get().config.replicate
        settings = {LOSSES: config.batch, WRITES: config.state}
        return tuple(exchanges), tuple(setting for setting, value in settings.items() if value == "all")
    return tuple(exchanges + _of_plan(graph.rewritten, found)), ()


def _of_batch_norms(graph: Graph, found: ForwardPass) -> List[RowExchange]:
    view = found.view
    trained = data_descendants(view, [view.index[name] for name in found.trained], set())
    markers = set(sites.marked_nodes(view, sums.FORWARD))
    exchanges = []
    for number, node in enumerate(found.nodes):
        if node in markers:
            size = _size(graph.tf_graph.get_operation_by_name(view.nodes[node].name).outputs[0])
            forward = RowExchange(BATCH_NORMS, "all-reduce", RowWay.FORWARD, number, (size,))
            exchanges += [forward, forward._replace(way=RowWay.BACKWARD)] if node in trained else [forward]
    return exchanges


def _of_plan(rewrite: RewriteContext, found: ForwardPass) -> List[RowExchange]:
    """Those of losses and writes, of the first replica."""
    plan, numbers = rewrite.plan, {found.view.nodes[node].name: number for number, node in enumerate(found.nodes)}
    by_communicator: Dict[str, List[tf.Operation]] = {}
    for op in rewrite.tf_graph.get_operations():
        if op.type in COLLECTIVE_OP_TYPES and op.get_attr("rank") == rewrite.base_rank:
            by_communicator.setdefault(op.get_attr("communicator").decode(), []).append(op)
    forward, backward = (
        by_communicator.get(whole_batch_communicator(plan, way), []) for way in ("forward", "backward")
    )
    of_losses: Dict[bytes, RowExchange] = {}  # by marker, which the key of a collective names
    for op in forward:
        at = min(_last_before(op, numbers) + 1, len(numbers) - 1)
        of_losses[op.get_attr("key")] = _exchange(op, LOSSES, RowWay.FORWARD, at)
    exchanges = list(of_losses.values())
    for op in backward:
        marker = rewrite.tf_graph.get_operation_by_name(op.get_attr("key").decode())
        ahead = of_losses[marker.get_attr(FORWARD_ATTR)]
        exchanges.append(ahead._replace(way=RowWay.BACKWARD, collective=_kind(op)))
    for communicator, ops in by_communicator.items():
        if is_of_writes(plan, communicator):
            exchanges += [_exchange(op, WRITES, RowWay.WRITES, _last_before(op, numbers)) for op in ops]
    return exchanges


def _exchange(op: tf.Operation, decision: str, way: str, at: int) -> RowExchange:
    tensors = list(op.inputs)[COLLECTIVE_OP_TYPES[op.type].first_tensor :]
    return RowExchange(decision, _kind(op), way, at, tuple(map(_size, tensors)))


def _kind(op: tf.Operation) -> str:
    return COLLECTIVE_OP_TYPES[op.type].kind.replace("_", "-")


def _size(tensor: tf.Tensor) -> Tuple[int, int]:
    """The bytes of a row, and how many dimensions are rows: those that are open, as no built-in batch is gathered."""
    sizes: Sequence[Optional[int]] = tensor.shape.as_list() if tensor.shape.ndims is not None else []
    total = tensor.dtype.size
    for size in sizes:
        total *= 1 if size is None else size
    return total, sum(size is None for size in sizes)


def _last_before(op: tf.Operation, numbers: Dict[str, int]) -> int:
    """The last op of the forward pass that an op takes something of, by way of others; 0 if there is none."""
    found, seen, stack = 0, set(), [op]
    while stack:
        for before in [one.op for one in stack.pop().inputs]:
            if before.name in numbers:
                found = max(found, numbers[before.name])
            elif before not in seen:
                seen.add(before)
                stack.append(before)
    return found
