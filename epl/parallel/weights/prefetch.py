"""When weights that lie on the host are copied to the device: a block of them while the block before is used.

    begin of block 0      fetch block 0, block 1         compute with block 0
    begin of block 1      fetch block 2                  compute with block 1      block 0 is dropped
    begin of block 2      fetch block 3                  compute with block 2      block 1 is dropped

The uses of weights are taken in the order in which they run, through the forward and the backward pass, and cut into
blocks of not much more bytes than the largest weight has, which a device must hold in any case: so it holds at most two
and a half times as much at a time. What is used in several blocks is copied for each of them.

A copy waits for what comes into the first op of the block before. It may wait for such ops alone as all who take the
copy need anyway: then no run computes more than it would, and no edge closes a circle. Where the block before has none,
the copy waits for what comes into its own op besides; where there is nothing of that kind, it is made at once.
"""

from typing import Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.weights.regions import WeightRegion


class WeightUse(NamedTuple):
    """An op on a device that takes a weight.

    Attributes:
      source, output: what gives the weight, on the host.
      consumer, position: the op, and which of its inputs the weight is.
      bytes: of the weight.
      waits: what comes into the op besides and depends on the data of the step.
    """

    source: int
    output: int
    consumer: int
    position: int
    bytes: int
    waits: Tuple[int, ...]


class Fetch(NamedTuple):
    """A copy of a weight, made for some ops that take it.

    Attributes:
      source, output: what gives the weight.
      uses: the ops.
      waits: what the copy waits for.
      block: number of the block in which it is used; consecutive in a section.
    """

    source: int
    output: int
    uses: List[WeightUse]
    waits: Tuple[int, ...]
    block: int


_MOST_NAMES = 3  # in a message
_SLACK = 0.25  # a full block may have so much more: a kernel and its bias are one
# They take weights where these are: no device has a kernel for them.
_OF_CPU = op_types.SUMMARIES | frozenset(["Save", "SaveSlices", "SaveV2"])

# Uses that belong together: those of a pipeline's action, or all.
Section = Tuple[int, bool]


def find_uses(
    tf_graph: tf.Graph, view: GraphView, region: WeightRegion, late: Set[int], changing: Set[int]
) -> List[WeightUse]:
    """The uses of weights, in the order in which they run.

    Args:
      tf_graph: the graph.
      view: of it.
      region: what runs on the host.
      late: nodes that run after variables are updated.
      changing: variables that are written before the gradients are there; a late copy would be another value.
    """
    levels = _levels(view, region.order)
    sizes: Dict[Tuple[int, int], int] = {}
    # Another value may be fed in their place, and what waits for them would have them run all the same.
    sources = set(view.of_types(op_types.DATA_SOURCES))
    uses = []
    for node in region.order:
        if node in region.nodes or node in late or view.types[node] in _OF_CPU:
            continue
        inputs = data_inputs(view, node)
        for position, (producer, output) in enumerate(inputs):
            variables = region.weights.get(producer)
            if variables is None or producer in late or not changing.isdisjoint(variables):
                continue
            if (producer, output) not in sizes:
                sizes[producer, output] = weight_bytes(tf_graph, view, producer, output)
            if sizes[producer, output] >= 0:
                others = [
                    p for p in dict.fromkeys(view.producers[node]) if p not in sources and region.depths[p] == (0, 0)
                ]
                waits = [p for p in others if p in region.moving] or [p for p in others if p in region.of_step]
                uses.append(WeightUse(producer, output, node, position, sizes[producer, output], tuple(waits)))
    return sorted(uses, key=lambda use: levels[use.consumer])


def plan_fetches(
    view: GraphView, uses: Sequence[WeightUse], sections: Mapping[int, Section], order: Sequence[int], block: int
) -> List[Fetch]:
    """The copies, and what each of them waits for; uses of which none can wait are left out.

    Args:
      view: the graph.
      uses: in their order.
      sections: consumer -> the section that it belongs to.
      order: all nodes, each after its producers.
      block: bytes with which a block is full, if no weight in it has more.
    """
    needed = Needed(view, order, {wait for use in uses for wait in use.waits})
    by_section: Dict[Section, List[WeightUse]] = {}
    for use in uses:
        by_section.setdefault(sections[use.consumer], []).append(use)
    fetches: List[Fetch] = []
    blocks = 0
    for own in by_section.values():
        before: List[WeightUse] = []
        for number, members in enumerate(cut_blocks(own, block), blocks):
            for of_weight in _by_weight(members):
                fetches += _fetches(of_weight, before or members, needed, number)
            before, blocks = members, number + 1
    return fetches


def cut_blocks(uses: Sequence[WeightUse], block: int) -> List[List[WeightUse]]:
    """Consecutive uses, of little more bytes than `block` or the largest of them; a weight counts once in a block."""
    blocks: List[List[WeightUse]] = []
    held: Dict[Tuple[int, int], int] = {}
    for use in uses:
        is_new = (use.source, use.output) not in held
        held[use.source, use.output] = use.bytes
        if not blocks or (is_new and sum(held.values()) > max(block, *held.values()) + _SLACK * block):
            blocks.append([])
            held = {(use.source, use.output): use.bytes}
        blocks[-1].append(use)
    return blocks


def largest(uses: Sequence[WeightUse]) -> int:
    """Bytes of the largest weight."""
    return max([use.bytes for use in uses] or [0])


def _by_weight(block: Sequence[WeightUse]) -> List[List[WeightUse]]:
    found: Dict[Tuple[int, int], List[WeightUse]] = {}
    for use in block:
        found.setdefault((use.source, use.output), []).append(use)
    return list(found.values())


def _fetches(members: List[WeightUse], before: Sequence[WeightUse], needed: "Needed", block: int) -> List[Fetch]:
    """The copies of a weight for its uses in a block, given the uses in the block before."""
    first = members[0]
    waits = next((use.waits for use in before if needed.by_all(members, use.waits)), ())
    if not waits and needed.by_all(members, first.waits):
        waits = first.waits
    if waits:
        return [Fetch(first.source, first.output, members, waits, block)]
    return [Fetch(use.source, use.output, [use], use.waits, block) for use in members if use.waits]


class Needed:
    """What each node of a graph needs of some nodes of interest: a bit for each of them, in one pass over the graph."""

    def __init__(self, view: GraphView, order: Sequence[int], interest: Set[int]) -> None:
        self._bits = {node: 1 << place for place, node in enumerate(sorted(interest))}
        self._masks = dict(self._bits)
        while self._pass_on(view, order) and view.of_types(op_types.NEXT_ITERATIONS):
            pass  # once more around each loop

    def _pass_on(self, view: GraphView, order: Sequence[int]) -> bool:
        """Gives each node what its producers need; whether that is more than before."""
        masks, more = self._masks, False
        for node in order:
            before = mask = masks.get(node, 0)
            for producer in view.producers[node]:
                mask |= masks.get(producer, 0)
            if mask != before:
                masks[node], more = mask, True
        return more

    def by_all(self, uses: Sequence[WeightUse], nodes: Sequence[int]) -> bool:
        """Whether there are any of these nodes, and all ops of the uses need all of them before they run."""
        return bool(nodes) and all(use.consumer not in nodes and self.by(use.consumer, nodes) for use in uses)

    def by(self, node: int, nodes: Sequence[int]) -> bool:
        """Whether a node needs all of `nodes`, or is one of them."""
        mask = self._masks.get(node, 0)
        return all(mask & self._bits[other] for other in nodes)


def late_uses(
    view: GraphView, fetches: Sequence[Fetch], region: WeightRegion, gradients: Mapping[int, Sequence[int]]
) -> Dict[int, List[int]]:
    """What an optimizer must not overtake: ops that take a copy of a variable which it writes.

    Args:
      view: the graph.
      fetches: the copies.
      region: what runs on the host.
      gradients: variable -> the nodes that give its gradient; of those that change under who has read them before.

    Returns:
      Node that gives a gradient -> the ops that it is to wait for; all that these need, it needs anyway.
    """
    consumers = {use.consumer for fetch in fetches for use in fetch.uses}
    waits = {wait for fetch in fetches for use in fetch.uses for wait in use.waits}
    ends = {node for nodes in gradients.values() for node in nodes}
    needed = Needed(view, region.order, consumers | waits | ends)
    found: Dict[int, List[int]] = {}
    for fetch in fetches:
        for gradient in {g for variable in region.weights[fetch.source] for g in gradients.get(variable, ())}:
            for use in fetch.uses:
                if needed.by(gradient, [use.consumer]) or needed.by(use.consumer, [gradient]):
                    continue
                if region.depths[use.consumer] == (0, 0) and use.waits and needed.by(gradient, use.waits):
                    found.setdefault(gradient, []).append(use.consumer)
    return {gradient: sorted(set(nodes)) for gradient, nodes in found.items()}


def bytes_at_a_time(fetches: Sequence[Fetch]) -> int:
    """Bytes of two blocks, one that is used and one that is fetched meanwhile, where they are most."""
    blocks: Dict[int, int] = {}
    for fetch in fetches:
        blocks[fetch.block] = blocks.get(fetch.block, 0) + fetch.uses[0].bytes
    return max([size + blocks.get(block + 1, 0) for block, size in blocks.items()] or [0])


def largest_names(sizes: Mapping[str, int]) -> str:
    """The names of the largest of some weights, for a message."""
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


def _levels(view: GraphView, order: Sequence[int]) -> List[int]:
    """Per node, the length of the longest way to it: about when it runs."""
    levels = [0] * len(view)
    done = [False] * len(view)
    for node in order:
        levels[node] = 1 + max([levels[p] for p in view.producers[node] if done[p]] or [0])
        done[node] = True
    return levels


def weight_bytes(tf_graph: tf.Graph, view: GraphView, node: int, output: int) -> int:
    """The size of a tensor; -1 of one that stays where it is: a handle, or a single value."""
    tensor = tf_graph.get_operation_by_name(view.nodes[node].name).outputs[output]
    if tensor.dtype.base_dtype in (tf.resource, tf.variant, tf.string):
        return -1
    elements = tensor.shape.num_elements()
    if elements is None:
        return 0
    return -1 if elements < 2 else elements * tensor.dtype.base_dtype.size
