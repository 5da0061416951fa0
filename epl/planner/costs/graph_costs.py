"""The costs of a model in a TensorFlow graph, for any number of rows and any kind of device.

    shapes for two numbers of rows --> the different ops, each with its runs for both --> for other rows: on the lines

Shapes are inferred, and different ops differentiated, for two numbers of rows alone. Another number of rows then takes
no TensorFlow: all dimensions lie on straight lines, and FLOPs, bytes and times follow from them by op. That is exact
where dimensions grow with the rows, also for products of two of them. Inferring and differentiating for each number of
rows that a search asks for takes some fifty times as long: 0.7 s instead of 13 ms for BERT-large.
"""

from typing import Callable, Collection, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.costs import backward
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.costs import (
    RunSums,
    describe_assumptions,
    parameter_bytes,
    signatures_of,
    sum_of,
    variable_shape,
)
from epl.parallel.costs.custom_gradients import find_custom_gradients
from epl.parallel.costs.forward_nodes import ForwardNode, read_nodes
from epl.parallel.costs.functions import FunctionLibrary
from epl.parallel.costs.kept import Homes, kept_tensors, read_inputs
from epl.parallel.costs.op_times import OpTimes
from epl.parallel.costs.op_work import find_works
from epl.parallel.costs.ops import OpRun, OpWork, RunPair
from epl.parallel.costs.precision import Precision
from epl.parallel.costs.shapes import TensorType, num_bytes
from epl.parallel.recompute import segments as recompute
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.parallel.strategy.record import ForwardPass
from epl.planner.costs.mixed_precision import ModelConversions, find_precision
from epl.planner.costs.row_exchanges import find_exchanges
from epl.planner.costs.row_sizes import between, constants_between, find_row_sizes
from epl.planner.costs.slots import find_slots
from epl.planner.machine.machine import CALIBRATED_BY, Device
from epl.planner.simulator.model_costs import Basis, ModelCosts, ModelOp, OpCosts

# What was measured of an op on a kind of device: seconds of one run forward and backward; None: nothing.
Measured = Callable[[Signature, Device], Optional[Tuple[float, float]]]


class _DifferentOp(NamedTuple):
    """What tells an op from another, and what it computes.

    Attributes:
      signatures: for both numbers of rows; None if it takes no time.
      forward, backward: what it runs.
      before: the conversions for it.
      sums: the gradients that are added up at it, and converted back.
    """

    signatures: Optional[Tuple[Signature, Signature]]
    forward: RunPair
    backward: RunPair
    before: RunPair
    sums: RunPair


class _Held(NamedTuple):
    """A tensor of the model for both numbers of rows, and how many a loop makes of it."""

    types: Tuple[TensorType, TensorType]
    times: Tuple[float, float]


class GraphCosts(ModelCosts):
    """The costs of the forward pass of a graph, and of the backward pass that belongs to it."""

    def __init__(
        self,
        tf_graph: tf.Graph,
        view: GraphView,
        nodes: Sequence[int],
        trained: Optional[Collection[str]] = None,
        slots: Optional[Dict[str, float]] = None,
        measured: Optional[Measured] = None,
        precision: Optional[Precision] = None,
    ) -> None:
        """Reads a graph.

        Args:
          tf_graph: the graph.
          view: of it, or of the graph as it was before it was rewritten.
          nodes: the forward pass, in the order of the ops of its strategy.
          trained: names of the variables that are differentiated by; None: all trainable variables of the graph.
          slots: those of the optimizer, as the attribute; None: as the graph has them.
          measured: what was measured of single ops.
          precision: which ops compute in half precision; None: none.
        """
        if trained is None:
            trained = [one.op.name for one in tf_graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)]
        self._measured = measured
        self._nodes = tuple(nodes)
        self._sizes = find_row_sizes(tf_graph, view, nodes)
        self._known: Dict[Tuple[int, Device], OpCosts] = {}
        self._bytes: Dict[int, Dict[Tuple[TensorType, TensorType], float]] = {}
        self.rows = self._sizes.script_rows
        self.slots = find_slots(GraphView(tf_graph), trained) if slots is None else dict(slots)
        repeatable = recompute.find_repeatable(tf_graph, view, self._nodes, self._sizes.types[0])
        checkpoints = recompute.checkpoints_of(tf_graph, view)
        self.ops = _model_ops(view, self._nodes, frozenset(trained), self._sizes.by_rows, repeatable, checkpoints)
        starts = [node for node in nodes if view.nodes[node].name in trained]
        if precision is not None:
            small, large = (precision.types_of(types) for types in self._sizes.types)
            self._sizes = self._sizes._replace(types=(small, large))
        self._custom = [find_custom_gradients(tf_graph, view, types, nodes) for types in self._sizes.types]
        read = [
            read_nodes(view, types, nodes, starts, None, precision, custom.of_node)
            for types, custom in zip(self._sizes.types, self._custom)
        ]
        one, other = read[0].of_node, read[1].of_node
        works = find_works(signatures_of(one) + signatures_of(other), FunctionLibrary(view.graph_def.library))
        notes = describe_assumptions(view, one, read[0].unbounded, works)
        self.notes = self._sizes.notes + tuple(notes) + self._custom[0].notes()
        self._conversions = ModelConversions(view, self._sizes.types, precision, read, works)
        self._read_ops(one, other, works)
        self._read_memory(view, one, other, works)

    @classmethod
    def of_recorded(
        cls,
        graph: Graph,
        found: ForwardPass,
        measured: Optional[Measured] = None,
        slots: Optional[Dict[str, float]] = None,
    ) -> "GraphCosts":
        """The costs of a model that was recorded (`strategy/record.py`), also after it has been rewritten.

        Args:
          graph: its graph.
          found: its forward pass.
          measured: what was measured of single ops.
          slots: those of the optimizer, as the attribute; None: as the graph has them, also in shards.
        """
        if slots is None:
            rewrite = graph.rewritten  # its view has the slots, each of them once
            view = rewrite.view if rewrite is not None and rewrite.view is not None else GraphView(graph.tf_graph)
            slots = find_slots(view, found.trained, graph.state_of(ShardedVariables))
        precision, note = find_precision(graph.tf_graph, found)
        costs = cls(graph.tf_graph, found.view, found.nodes, found.trained, slots, measured, precision)
        costs.notes += (note,) if note else ()
        costs.exchanges, costs.uncounted = find_exchanges(graph, found)
        return costs

    def at(self, rows: int, device: Device) -> OpCosts:
        """The costs of one forward and backward pass over `rows` rows on a kind of device; found once, then kept.

        Raises:
          ValueError: `rows` is not above 0.
        """
        key = (rows, device)
        if key not in self._known:
            self._known[key] = self._find(_checked(rows), device)
        return self._known[key]

    def tensor_bytes(self, rows: int, op: int, output: int) -> float:
        """Bytes of an output of an op for `rows` rows.

        Raises:
          ValueError: `rows` is not above 0.
        """
        node = self._nodes[op]
        return self._size(_checked(rows), (self._sizes.types[0][node][output], self._sizes.types[1][node][output]))

    def taken_bytes(self, rows: int, op: int, position: int) -> float:
        """Bytes of an input of an op as a transfer sends them: half if its producer converts it to half precision.

        Raises:
          ValueError: `rows` is not above 0.
        """
        size = self.tensor_bytes(rows, *self.ops[op].inputs[position])
        producer, output = self.ops[op].inputs[position]
        taken = self._nodes[producer], output
        return size / 2 if self._conversions.is_sent_in_half(taken, (self._nodes[op], position)) else size

    def exchanged_bytes(self, rows: int, op: int, output: int) -> float:
        """Bytes of an output as the ranks of a split exchange it: of float32, also with mixed precision.

        Raises:
          ValueError: `rows` is not above 0.
        """
        size = self.tensor_bytes(rows, op, output)
        return 2 * size if self._conversions.is_half((self._nodes[op], output)) else size

    # ---- What was read of the graph.

    def _read_ops(
        self, one: Mapping[int, ForwardNode], other: Mapping[int, ForwardNode], works: Mapping[Signature, OpWork]
    ) -> None:
        """The different ops, and the one of each node."""
        numbers: Dict[Tuple[object, ...], int] = {}
        self._different: List[_DifferentOp] = []
        self._op_of: List[int] = []
        self._runs = [(one[node].runs, other[node].runs) for node in self._nodes]
        for node in self._nodes:
            nodes = one[node]._replace(runs=1), other[node]._replace(runs=1)
            key = (*nodes, self._conversions.before(node), node if node in self._custom[0].of_node else -1)
            if key not in numbers:
                numbers[key] = len(self._different)
                self._different.append(self._different_op(*nodes, node, works))
            self._op_of.append(numbers[key])

    def _different_op(
        self,
        one: ForwardNode,
        other: ForwardNode,
        node: int,
        works: Mapping[Signature, OpWork],
    ) -> _DifferentOp:
        before, after = self._conversions.runs(node)
        more = [custom.runs(node) for custom in self._custom]
        sums = _additions(one) + after[0] + more[0], _additions(other) + after[1] + more[1]
        if one.signature is None or other.signature is None:
            return _DifferentOp(None, ((), ()), ((), ()), before, sums)
        first, second = works[one.signature], works[other.signature]
        return _DifferentOp(
            (one.signature, other.signature),
            self._paired(first.forward, second.forward),
            self._paired(first.backward, second.backward),
            before,
            sums,
        )

    def _paired(self, first: Tuple[OpRun, ...], second: Tuple[OpRun, ...]) -> RunPair:
        """The runs; if the second are others, as an op does not fit twice the rows, the first grow in proportion."""
        if [run.node.op for run in first] == [run.node.op for run in second]:
            return first, second
        factor = self._sizes.rows[1] / self._sizes.rows[0]
        return first, tuple(run._replace(share=factor * run.share) for run in first)

    def _read_memory(
        self,
        view: GraphView,
        one: Mapping[int, ForwardNode],
        other: Mapping[int, ForwardNode],
        works: Mapping[Signature, OpWork],
    ) -> None:
        """The tensors that each op allocates, and those of them that are kept."""
        types = self._sizes.types
        homes = Homes(view, types[0], one)
        given = view, homes, one, works, self._conversions.places, self._custom[0].kept()
        kept = kept_tensors(*given)
        self.ops = _with_read_inputs(self.ops, view, self._nodes, read_inputs(*given))
        self._allocated, self._kept = [], []
        for node in self._nodes:
            count = (float(one[node].runs), float(other[node].runs))
            own: List[_Held] = []
            ending: List[_Held] = []
            for output in range(len(types[0][node])):
                held = _Held((types[0][node][output], types[1][node][output]), count)
                if homes.is_own(node, output):
                    own.append(held)
                    if (node, output) in kept:
                        ending.append(held)
            for first, second in self._conversions.before(node):
                held = _Held((first.made, second.made), count)
                own.append(held)
                ending += [held] if first.is_kept else []
            inside = self._inside(one[node], other[node], works)
            self._allocated.append(own + inside)
            self._kept.append(ending + inside)

    def _inside(self, one: ForwardNode, other: ForwardNode, works: Mapping[Signature, OpWork]) -> List[_Held]:
        """What is kept inside of the functions that an op calls."""
        if one.signature is None or other.signature is None:
            return []
        first, second = works[one.signature].inside, works[other.signature].inside
        if len(first) == len(second):
            pairs = zip(first, second)
            return [_Held((a, b), (one.runs * many, other.runs * more)) for (a, many), (b, more) in pairs]
        factor = self._sizes.rows[1] / self._sizes.rows[0]
        return [_Held((a, a), (one.runs * many, factor * one.runs * many)) for a, many in first]

    # ---- The costs for a number of rows.

    def _find(self, rows: int, device: Device) -> OpCosts:
        place = self._sizes.place_of(rows)
        times = OpTimes(device)
        basis = basis_of(device)
        sums = [self._sums(op, place, times, device) for op in self._different]
        runs = [_line(*pair, place) for pair in self._runs]
        each = [sums[number] for number in self._op_of]
        return OpCosts(
            tuple(count * forward.seconds for count, (forward, _, _) in zip(runs, each)),
            tuple(count * after.seconds for count, (_, after, _) in zip(runs, each)),
            tuple(count * forward.flops for count, (forward, _, _) in zip(runs, each)),
            tuple(count * after.flops for count, (_, after, _) in zip(runs, each)),
            tuple(self._bytes_of(rows, some) for some in self._allocated),
            tuple(self._bytes_of(rows, some) for some in self._kept),
            tuple(Basis.MEASURED if is_measured else basis for _, _, is_measured in each),
        )

    def _sums(self, op: _DifferentOp, place: float, times: OpTimes, device: Device) -> Tuple[RunSums, RunSums, bool]:
        """One run of an op forward and backward, and whether it was measured."""
        forward = sum_of(_runs_at(op.forward, place), times)
        before = sum_of(_runs_at(op.before, place), times)
        after = sum_of(_runs_at(op.backward, place), times)
        found: Optional[Tuple[float, float]] = None
        if self._measured is not None and op.signatures is not None:
            found = self._measured(_signature_at(*op.signatures, place), device)
        if found is not None:
            forward, after = forward._replace(seconds=found[0]), after._replace(seconds=found[1])
        added = sum_of(_runs_at(op.sums, place), times)
        forward, after = (_together(*pair) for pair in ((before, forward), (after, added)))
        return forward, after, found is not None

    def _bytes_of(self, rows: int, some: Sequence[_Held]) -> float:
        place = self._sizes.place_of(rows)
        return sum((_line(*held.times, place) * self._size(rows, held.types) for held in some), 0.0)

    def _size(self, rows: int, types: Tuple[TensorType, TensorType]) -> float:
        known = self._bytes.setdefault(rows, {})
        if types not in known:
            known[types] = float(num_bytes(between(*types, self._sizes.place_of(rows))))
        return known[types]


def basis_of(device: Device) -> str:
    """Where times on a device come from, if no op was measured: a constant of Basis."""
    is_calibrated = any(key in ("", "flops") and source.startswith(CALIBRATED_BY) for key, source in device.sources)
    return Basis.CALIBRATED if is_calibrated else Basis.DATA_SHEET


def _model_ops(
    view: GraphView,
    nodes: Sequence[int],
    trained: FrozenSet[str],
    by_rows: FrozenSet[int],
    repeatable: Collection[int],
    checkpoints: Collection[int],
) -> Tuple[ModelOp, ...]:
    found = []
    for node, inputs in zip(nodes, _inputs_of(view, nodes)):
        name, op_type = view.nodes[node].name, view.types[node]
        found.append(
            ModelOp(
                name,
                op_type,
                tuple(one for _, one in inputs),
                parameter_bytes(view, node),
                op_type in op_types.VARIABLES and name in trained,
                node in by_rows,
                node in repeatable,
                variable_shape(view, node),
                node in checkpoints,
            )
        )
    return tuple(found)


def _with_read_inputs(
    ops: Sequence[ModelOp], view: GraphView, nodes: Sequence[int], read: Mapping[int, Collection[int]]
) -> Tuple[ModelOp, ...]:
    found = []
    for op, node, inputs in zip(ops, nodes, _inputs_of(view, nodes)):
        positions = [at for at, _ in inputs]
        found.append(op._replace(read_inputs=frozenset(positions.index(at) for at in read[node] if at in positions)))
    return tuple(found)


def _inputs_of(view: GraphView, nodes: Sequence[int]) -> List[List[Tuple[int, Tuple[int, int]]]]:
    """By node, the data inputs that are of the model: their position, and the place and output of their producer."""
    place = {node: number for number, node in enumerate(nodes)}
    found = []
    for number, node in enumerate(nodes):
        # What a data source reads from is no part of the model; the back edge of a loop comes from a later op.
        inputs = enumerate((place.get(producer, number), output) for producer, output in data_inputs(view, node))
        found.append([(at, one) for at, one in inputs if one[0] < number])
    return found


def _additions(node: ForwardNode) -> Tuple[OpRun, ...]:
    return tuple(backward.addition(*each) for each in node.sums)


def _checked(rows: int) -> int:
    if rows < 1:
        raise ValueError(f"costs for {rows} rows; expected a number of rows above 0")
    return rows


def _together(some: RunSums, more: RunSums) -> RunSums:
    return RunSums(*(one + other for one, other in zip(some, more)))


def _line(first: float, second: float, place: float) -> float:
    return first if first == second else max(0.0, first + (second - first) * place)


def _runs_at(pair: RunPair, place: float) -> List[OpRun]:
    """The runs at a place of the line through those for both numbers of rows."""
    first, second = pair
    return [
        OpRun(
            one.node,
            tuple(between(mine, more, place) for mine, more in zip(one.inputs, other.inputs)),
            tuple(between(mine, more, place) for mine, more in zip(one.outputs, other.outputs)),
            _line(one.times, other.times, place),
            _line(one.share, other.share, place),
        )
        for one, other in zip(first, second)
    ]


def _signature_at(first: Signature, second: Signature, place: float) -> Signature:
    return first._replace(
        inputs=tuple(between(*pair, place) for pair in zip(first.inputs, second.inputs)),
        outputs=tuple(between(*pair, place) for pair in zip(first.outputs, second.outputs)),
        constants=tuple(constants_between(*pair, place) for pair in zip(first.constants, second.constants)),
    )
