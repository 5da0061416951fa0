"""When weights in host memory are copied to the device: a block of them is copied while the block before is used.

    begin of block 0      fetch block 0, block 1         compute with block 0
    begin of block 1      fetch block 2                  compute with block 1      block 0 is dropped
    begin of block 2      fetch block 3                  compute with block 2      block 1 is dropped

The uses of weights are sorted by the order in which they run, through the forward and the backward pass, and cut into
blocks of little more bytes than the largest weight, which a device must hold in any case: so it holds at most two and a
half times as much at a time. A weight that several blocks use is copied for each of them.

A copy waits for the other inputs of the first op of the block before (the activation of a MatMul). It may wait only for
ops that all consumers of the copy need anyway: then no run computes more than without the copy, and no edge closes a
cycle. Where the block before has no such op, the copy waits for the other inputs of its own consumer; where these do
not depend on the data either, it is made at once.
"""

from typing import Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.weights.regions import WeightRegion


class WeightUse(NamedTuple):
    """An op on a device that reads a weight.

    Attributes:
      source, output: the tensor that holds the weight, on the host.
      consumer, position: the op, and the index of the input.
      bytes: size of the weight.
      waits: the op's other inputs that depend on the data of the step.
    """

    source: int
    output: int
    consumer: int
    position: int
    bytes: int
    waits: Tuple[int, ...]


class Fetch(NamedTuple):
    """A copy of a weight for some of its uses.

    Attributes:
      source, output: the tensor that holds the weight.
      uses: the uses that read the copy.
      waits: the ops that the copy waits for.
      block: number of the block that uses it; consecutive in a section.
    """

    source: int
    output: int
    uses: List[WeightUse]
    waits: Tuple[int, ...]
    block: int


_MOST_NAMES = 3  # in a message
_SLACK = 0.25  # a block may be larger by this share: a kernel and its bias stay together
# They read weights on the host: they have no kernel for other devices.
_OF_CPU = op_types.SUMMARIES | frozenset(["Save", "SaveSlices", "SaveV2"])

# Uses are cut into blocks within a section: an action of a pipeline's schedule, or the step.
Section = Tuple[int, bool]


def find_uses(
    tf_graph: tf.Graph, view: GraphView, region: WeightRegion, late: Set[int], changing: Set[int]
) -> List[WeightUse]:
    """The uses of weights, in the order in which they run.

    Args:
      tf_graph: the graph.
      view: its view.
      region: the ops that run on the host.
      late: nodes that run after variables are updated.
      changing: variables that are written before the gradients are computed; a later copy could have another value.
    """
    levels = _levels(view, region.order)
    sizes: Dict[Tuple[int, int], int] = {}
    # No op waits for a data source: where the user feeds another value in its place, the wait would still run it.
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
    """The copies, and what each of them waits for; uses whose copy has nothing to wait for are left out.

    Args:
      view: the graph.
      uses: the uses, in their order.
      sections: consumer -> its section.
      order: all nodes, each after its producers.
      block: capacity of a block in bytes, if no weight in it is larger.
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
    """Cuts uses into blocks of little more bytes than `block` or their largest weight; a weight counts once a block."""
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
    """Which of some nodes of interest each node of a graph depends on: one bit for each, in one pass over the graph."""

    def __init__(self, view: GraphView, order: Sequence[int], interest: Set[int]) -> None:
        self._bits = {node: 1 << place for place, node in enumerate(sorted(interest))}
        self._masks = dict(self._bits)
        while self._pass_on(view, order) and view.of_types(op_types.NEXT_ITERATIONS):
            pass  # once more around each loop

    def _pass_on(self, view: GraphView, order: Sequence[int]) -> bool:
        """Adds the bits of its producers to each node; returns whether a bit was new."""
        masks, more = self._masks, False
        for node in order:
            before = mask = masks.get(node, 0)
            for producer in view.producers[node]:
                mask |= masks.get(producer, 0)
            if mask != before:
                masks[node], more = mask, True
        return more

    def by_all(self, uses: Sequence[WeightUse], nodes: Sequence[int]) -> bool:
        """Whether `nodes` is not empty, and the consumer of each use needs all of them before it runs."""
        return bool(nodes) and all(use.consumer not in nodes and self.by(use.consumer, nodes) for use in uses)

    def by(self, node: int, nodes: Sequence[int]) -> bool:
        """Whether a node needs all of `nodes`, or is one of them."""
        mask = self._masks.get(node, 0)
        return all(mask & self._bits[other] for other in nodes)


def late_uses(
    view: GraphView, fetches: Sequence[Fetch], region: WeightRegion, gradients: Mapping[int, Sequence[int]]
) -> Dict[int, List[int]]:
    """The ops that must read their copy of a variable before the optimizer writes it.

    Args:
      view: the graph.
      fetches: the copies.
      region: the ops that run on the host.
      gradients: variable -> the nodes that compute its gradient, for variables whose earlier reads see a later write.

    Returns:
      Node that computes a gradient -> the ops that it waits for; it depends on all inputs of these anyway.
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
    """The most bytes of two consecutive blocks: one that is used, and one that is copied meanwhile."""
    blocks: Dict[int, int] = {}
    for fetch in fetches:
        blocks[fetch.block] = blocks.get(fetch.block, 0) + fetch.uses[0].bytes
    return max([size + blocks.get(block + 1, 0) for block, size in blocks.items()] or [0])


def largest_names(sizes: Mapping[str, int]) -> str:
    """The names of the largest weights, for a message."""
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


def _levels(view: GraphView, order: Sequence[int]) -> List[int]:
    """Per node, the length of the longest path to it: about when it runs."""
    levels = [0] * len(view)
    done = [False] * len(view)
    for node in order:
        levels[node] = 1 + max([levels[p] for p in view.producers[node] if done[p]] or [0])
        done[node] = True
    return levels


def weight_bytes(tf_graph: tf.Graph, view: GraphView, node: int, output: int) -> int:
    """The size of a tensor; -1 for one that is not copied: a handle, a string, or a single value."""
    tensor = tf_graph.get_operation_by_name(view.nodes[node].name).outputs[output]
    if tensor.dtype.base_dtype in (tf.resource, tf.variant, tf.string):
        return -1
    elements = tensor.shape.num_elements()
    if elements is None:
        return 0
    return -1 if elements < 2 else elements * tensor.dtype.base_dtype.size
