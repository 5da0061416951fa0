"""Recomputation of activations, the analysis: which ops may be recomputed, in which segments.

    forward     x --> f1 --> f2 --> [h] --> f3 --> f4 --> loss        [h] is kept: a checkpoint
    backward    b1 <-- b2 <-- ... <-- b3 <-- b4 <-- loss
    recomputed  x --> f1' --> f2'  after the gradient has come to b2; b1 and b2 read f1' and f2'

The forward pass is divided into segments. A tensor that crosses from one segment to another is kept, so each op runs at
most twice. Also kept, in any segment: values that are equal for all batches (variables and values computed from them
alone), shapes, random numbers, stateful ops, loops and branches. `division.py` decides where segments end, unless the
user does with a collection; `order.py` decides when a segment is recomputed; `recompute_segments.py` changes the graph.
"""

from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.control_flow import data_order, depths_of
from epl.ir.dataflow import SHAPE_OPS, aliased_tensor, batch_nodes, data_inputs, viewed_variables
from epl.ir.taskgraph import WEIGHT_ATTR
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.costs.shapes import TensorType, Types, num_bytes
from epl.parallel.rewriting.row_markers import find_markers
from epl.utils import tf_compat

COLLECTION = "checkpoints"  # of the graph: the tensors that the user keeps

# (stage, number): segments of one stage are numbered in the order of the forward pass.
SegmentId = Tuple[int, int]


class BackwardPass(NamedTuple):
    """A backward pass and the forward pass that it needs.

    Attributes:
      forward: the nodes of the forward pass, each after its producers.
      prepared: those of them that TensorFlow adds for the backward pass (shapes, masks): no objective needs them.
      nodes: the nodes of the backward pass; they depend on the gradient of the objective.
      seeds: the nodes where the backward pass begins.
      ys: the nodes of the objective.
    """

    forward: List[int]
    prepared: Set[int]
    nodes: Set[int]
    seeds: List[int]
    ys: List[int]


class SegmentUse(NamedTuple):
    """A node of the backward pass that reads an output of a node of the forward pass."""

    consumer: int
    position: int
    producer: int
    output: int


class Segment(NamedTuple):
    """Nodes of the forward pass that are recomputed together.

    Attributes:
      place: the stage, and the number of the segment in it.
      nodes: the nodes, in creation order.
      uses: the reads of their outputs in the backward pass.
    """

    place: SegmentId
    nodes: List[int]
    uses: List[SegmentUse]


def find_backward_pass(view: GraphView, ys: Iterable[int], seeds: Iterable[int], ends: Iterable[int]) -> BackwardPass:
    """The backward pass from `seeds` to `ends`, the nodes that pass gradients on to the optimizer."""
    seeds = sorted(seeds)
    needed = view.ancestors({producer for end in ends for producer in view.producers[end]})
    backward = view.descendants(seeds) & needed
    forward = [node for node in data_order(view) if node in needed and node not in backward]
    ys = sorted(ys)
    return BackwardPass(forward, set(forward) - view.ancestors(ys), backward, seeds, ys)


# ---- What may be recomputed


def find_recomputable(
    tf_graph: tf.Graph, view: GraphView, backward: BackwardPass, writes: Collection[int], types: Types
) -> Set[int]:
    """The nodes of the forward pass that depend on the batch and return the same values when computed again.

    Half-precision copies of weights are also among them: they are cast again, not kept.

    Args:
      tf_graph: the graph.
      view: its view.
      backward: the backward pass, with its forward pass.
      writes: the nodes that write variables in a training step.
      types: shape and dtype of the outputs of the forward pass.
    """
    unsteady = _readers_of_written(view, writes, view.descendants(backward.seeds))
    return find_repeatable(tf_graph, view, backward.forward, types, unsteady)


def find_repeatable(
    tf_graph: tf.Graph, view: GraphView, forward: Sequence[int], types: Types, unsteady: Collection[int] = ()
) -> Set[int]:
    """As `find_recomputable`, for a forward pass whose backward pass need not exist.

    Args:
      tf_graph: the graph.
      view: its view.
      forward: the nodes of the forward pass, each after its producers.
      types: shape and dtype of their outputs.
      unsteady: nodes that would read other values later.
    """
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
    collectives = set(COLLECTIVE_OP_TYPES)
    exchanged = set(view.of_types(collectives)).union(find_markers(view))
    batch = batch_nodes(view, stateful - collectives)  # equal inputs give equal outputs: full weights
    never = stateful | op_types.VARIABLES | op_types.DATA_SOURCES | op_types.PLACEHOLDERS
    never |= op_types.CONTROL_FLOW | SHAPE_OPS
    depths = depths_of(view)
    library = {function.signature.name for function in view.graph_def.library.function}
    found = {
        node
        for node in forward
        if (node in batch or WEIGHT_ATTR in view.nodes[node].attr)
        and view.types[node] not in never
        and node not in exchanged
        and depths[node] == (0, 0)
        and node not in unsteady
        and not any(_is_handle(output) for output in types[node])
        and not (library and _calls_function(view, node, library))
    }
    return found - _kept_instead(view, forward, found, exchanged, types)


def _is_handle(output: TensorType) -> bool:
    """Whether an output is a reference: to a variable, a resource, a list of tensors."""
    return output.dtype != output.dtype.base_dtype or output.dtype in (tf.resource, tf.variant)


def _calls_function(view: GraphView, node: int, library: Collection[str]) -> bool:
    """Whether a node calls a function, whose body may contain any op."""
    return view.types[node] in library or any(
        value.HasField("func") or value.list.func for value in view.nodes[node].attr.values()
    )


def _readers_of_written(view: GraphView, writes: Collection[int], backward: Set[int]) -> Set[int]:
    """The nodes that read the memory of a variable that may be written before they are recomputed.

    The writes of an optimizer do not count: they come after the gradients, and so after the recomputation.
    """
    variables = {variable for write in writes if write not in backward for variable in view.variable_inputs(write)}
    consumers = view.consumers()
    written = [node for node, viewed in viewed_variables(view).items() if not viewed.isdisjoint(variables)]
    return {consumer for node in written for consumer in consumers[node]}


def _kept_instead(
    view: GraphView, forward: Sequence[int], recomputable: Set[int], exchanged: Set[int], types: Types
) -> Set[int]:
    """The nodes to keep for random numbers and what ranks exchange: the smallest tensor computed from them alone.

    RandomUniform --> Mul --> Add --> GreaterEqual (bool: kept) --> Cast --> Mul with activations
    all-gather of columns --> Split --> ConcatV2 (kept) --> MatMul

    Otherwise, the tensor would be held twice where a segment ends after it.
    """
    consumers = view.consumers()
    members = set(forward)
    kept = set()
    for node in forward:
        if node in recomputable or not ("seed2" in view.nodes[node].attr or node in exchanged):
            continue
        smallest = node
        while True:
            takers = {c for c in consumers[smallest] if c in members and view.takes_data(c, smallest)}
            if len(takers) != 1 or not takers <= recomputable:
                break
            (taker,) = takers
            others = [p for p, _ in data_inputs(view, taker) if p != smallest and p in recomputable]
            if others or output_bytes(types, taker) > output_bytes(types, smallest):
                break
            smallest = taker
        kept.add(smallest)
    return kept


def output_bytes(types: Types, node: int) -> int:
    """Bytes of all outputs of a node."""
    return sum(num_bytes(output) for output in types[node])


# ---- Segments


def checkpoints_of(tf_graph: tf.Graph, view: GraphView) -> Set[int]:
    """The nodes that the script names checkpoints by the collection, those in loops and branches left out."""
    items = tf_graph.get_collection(COLLECTION)
    names = {item.name if isinstance(item, tf.Operation) else item.op.name for item in items}
    nodes = {view.index[name] for name in names if name in view.index}
    depths = depths_of(view) if nodes else ()
    return {node for node in nodes if depths[node] == (0, 0)}


def number_by_checkpoints(view: GraphView, backward: BackwardPass, checkpoints: Collection[int]) -> Dict[int, int]:
    """For each node of the forward pass, the number of the last checkpoint, in order, that it depends on; 0 if none."""
    numbers: Dict[int, int] = {}
    order = [node for node in backward.forward if node in checkpoints]
    after = {node: 1 + at for at, node in enumerate(order)}
    for node in backward.forward:
        before = [max(numbers[p], after.get(p, 0)) for p, _ in data_inputs(view, node) if p in numbers]
        numbers[node] = max(before or [0])
    return numbers


def find_segments(
    view: GraphView,
    backward: BackwardPass,
    recomputable: Set[int],
    places: Mapping[int, SegmentId],
    checkpoints: Collection[int],
    whole: Collection[SegmentId],
) -> List[Segment]:
    """The segments that are recomputed, in the order of the forward pass, stage by stage.

    Args:
      view: the graph.
      backward: the backward pass, with its forward pass.
      recomputable: the nodes that may be recomputed.
      places: the segment of each recomputable node.
      checkpoints: nodes that are kept in any case.
      whole: segments that are kept, not recomputed.
    """
    places = _with_copies_of_weights(view, recomputable, places)
    kept = _kept(view, recomputable, places, checkpoints)
    uses: Dict[SegmentId, List[SegmentUse]] = {}
    for consumer in sorted(backward.nodes):
        for position, (producer, output) in enumerate(data_inputs(view, consumer)):
            if producer in recomputable and producer not in kept and places[producer] not in whole:
                uses.setdefault(places[producer], []).append(SegmentUse(consumer, position, producer, output))
    segments = []
    for place in sorted(uses):
        nodes = {use.producer for use in uses[place]}
        stack = list(nodes)
        while stack:
            for producer, _ in data_inputs(view, stack.pop()):
                if producer in recomputable and producer not in kept and producer not in nodes:
                    nodes.add(producer)
                    stack.append(producer)
        segments.append(Segment(place, sorted(nodes), uses[place]))
    return segments


def _with_copies_of_weights(
    view: GraphView, recomputable: Set[int], places: Mapping[int, SegmentId]
) -> Mapping[int, SegmentId]:
    """The places, with a half-precision copy of a weight moved to the segment of its only consumer."""
    moved = {}
    for node in recomputable:
        if WEIGHT_ATTR in view.nodes[node].attr:
            takers = recomputable.intersection(view.consumers()[node])
            if len(takers) == 1:
                moved[node] = places[takers.pop()]
    return {**places, **moved} if moved else places


def _kept(
    view: GraphView, recomputable: Set[int], places: Mapping[int, SegmentId], checkpoints: Collection[int]
) -> Set[int]:
    """The nodes whose outputs another segment reads, and the checkpoints; for an alias, also the node it aliases."""
    tensors = {(node, 0) for node in set(checkpoints) & recomputable}
    for node in recomputable:
        for producer, output in data_inputs(view, node):
            if producer in recomputable and places[producer] != places[node]:
                tensors.add((producer, output))
    stack = list(tensors)
    while stack:
        before = aliased_tensor(view, *stack.pop())
        if before is not None and before[0] in recomputable and before not in tensors:
            tensors.add(before)
            stack.append(before)
    return {node for node, _ in tensors}
