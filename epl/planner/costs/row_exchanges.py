"""The collectives by which the replicas of a recorded model compute with the rows of all, as the passes decide them.

    batch_norm.sync    each marker of the forward pass: an all-reduce, and one of its gradient
    replicate.batch    each marker of a loss: the collective before it in the rewritten graph, and the way back
    replicate.state    each collective of a write in the rewritten graph

The markers of batch norms are there before a model is planned, and so count in a search. What a loss or a write needs
is decided when its graph is differentiated or rewritten: a search does not know it.
"""

from typing import List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.dataflow import data_descendants
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.graph import Graph
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.batch_norm import sums
from epl.parallel.costs.shapes import UNKNOWN_DIMENSION
from epl.parallel.plan.communicators import is_of_writes
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import WholeBatchSection
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.row_markers import find_markers
from epl.parallel.strategy.record import ForwardPass
from epl.parallel.whole_batch.markers import FORWARD_ATTR
from epl.parallel.whole_batch.objective import WholeBatch
from epl.planner.simulator.model_costs import RowExchange, RowWay

BATCH_NORMS, LOSSES, WRITES = "batch_norm.sync", 'replicate.batch "all"', 'replicate.state "all"'

_BACK = {"all-reduce": "all-reduce", "all-gather": "all-to-all"}  # of a loss, forward and backward


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
    forward_pass = _ForwardPass(graph, found)
    exchanges += _of_losses(graph.rewritten, forward_pass) + _of_writes(graph.rewritten, forward_pass)
    return tuple(exchanges), ()


def _of_batch_norms(graph: Graph, found: ForwardPass) -> List[RowExchange]:
    view = found.view
    no_gradient = set(view.of_types(["StopGradient"]))
    trained = data_descendants(view, [view.index[name] for name in found.trained], no_gradient)
    markers = set(find_markers(view, sums.FORWARD))
    exchanges = []
    for number, node in enumerate(found.nodes):
        if node in markers:
            forward = RowExchange(BATCH_NORMS, "all-reduce", RowWay.FORWARD, number, (number, 0))
            exchanges += [forward, forward._replace(way=RowWay.BACKWARD)] if node in trained else [forward]
    return exchanges


def _of_losses(rewrite: RewriteContext, forward_pass: "_ForwardPass") -> List[RowExchange]:
    planned = section(rewrite.plan, WholeBatchSection)
    if planned is None:
        return []
    view = rewrite.view
    assert view is not None  # there are several replicas
    needed = view.ancestors(boundary_nodes(view, [call for call in rewrite.graph.gradient_calls if call.boundaries]))
    forward_of = view.of_attrs(lambda attrs: attrs[FORWARD_ATTR].s.decode() if FORWARD_ATTR in attrs else "")
    with_gradient = {forward for node, forward in enumerate(forward_of) if node in needed}
    exchanges = []
    for name in planned.ops:
        op = rewrite.tf_graph.get_operation_by_name(name)  # a marker, which takes what a collective makes
        while op.type not in COLLECTIVE_OP_TYPES:
            op = op.inputs[0].op
        one = forward_pass.exchange(op, LOSSES, RowWay.FORWARD)
        back = one._replace(way=RowWay.BACKWARD, collective=_BACK[one.collective])
        exchanges += [one, back] if name in with_gradient else [one]
    return exchanges


def _of_writes(rewrite: RewriteContext, forward_pass: "_ForwardPass") -> List[RowExchange]:
    return [
        forward_pass.exchange(op, WRITES, RowWay.WRITES)
        for op in rewrite.tf_graph.get_operations()
        if op.type in COLLECTIVE_OP_TYPES
        and op.get_attr("rank") == rewrite.base_rank
        and is_of_writes(rewrite.plan, op.get_attr("communicator").decode())
    ]


class _ForwardPass:
    """What collectives take of the forward pass."""

    def __init__(self, graph: Graph, found: ForwardPass) -> None:
        self._numbers = {found.view.nodes[node].name: number for number, node in enumerate(found.nodes)}
        copies = (graph.state_of(WholeBatch) or WholeBatch()).built.copies
        self._copied = {
            values[0].name: f"{op}:{at}" for op, outputs in copies.items() for at, values in enumerate(outputs)
        }

    def exchange(self, op: tf.Operation, decision: str, way: str) -> RowExchange:
        """A collective of the graph."""
        last = self._last_before(op)
        at = last if way == RowWay.WRITES else min(last + 1, len(self._numbers) - 1)
        row = COLLECTIVE_OP_TYPES[op.type]
        kind, tensors = row.kind.replace("_", "-"), list(op.inputs)[row.first_tensor :]
        source = self._source(tensors[0])
        if source is not None:
            return RowExchange(decision, kind, way, at, source)
        sizes = [_size(tensor) for tensor in tensors]
        by_row = sum(size for size, is_by_row in sizes if is_by_row)
        return RowExchange(decision, kind, way, at, None, sum(size for size, _ in sizes) - by_row, by_row)

    def _source(self, tensor: tf.Tensor) -> Optional[Tuple[int, int]]:
        """The output of the forward pass that a collective takes, also with other dimensions first, or as a copy."""
        while tensor.op.type in ("Switch", "Transpose"):
            tensor = tensor.op.inputs[0]
        op, _, at = self._copied.get(tensor.name, tensor.name).rpartition(":")
        return (self._numbers[op], int(at)) if op in self._numbers else None

    def _last_before(self, op: tf.Operation) -> int:
        """The last op of the forward pass that an op takes something of, by way of others; 0 if there is none."""
        found, seen, stack = 0, set(), [op]
        while stack:
            for before in [one.op for one in stack.pop().inputs]:
                if before.name in self._numbers:
                    found = max(found, self._numbers[before.name])
                elif before not in seen:
                    seen.add(before)
                    stack.append(before)
        return found


def _size(tensor: tf.Tensor) -> Tuple[int, bool]:
    """The bytes of a tensor, or of a row of it, if it has rows: the first dimension that the graph leaves open."""
    sizes: List[Optional[int]] = tensor.shape.as_list() if tensor.shape.ndims is not None else []
    has_rows = None in sizes
    if has_rows:
        sizes.remove(None)
    total = tensor.dtype.size
    for size in sizes:
        total *= UNKNOWN_DIMENSION if size is None else size
    return total, has_rows
