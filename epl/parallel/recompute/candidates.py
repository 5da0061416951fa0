"""The automatic choice for a model: its ops as a chain per stage, where it may be cut, and what that gives."""

from typing import Collection, Dict, List, NamedTuple, Sequence, Set

from epl.ir.dataflow import ALIASES, data_inputs
from epl.ir.view import GraphView
from epl.parallel.costs.costs import Costs
from epl.parallel.costs.repeated_blocks import find_blocks
from epl.parallel.costs.shapes import num_bytes
from epl.parallel.recompute.division import Chain, Division, fewest_flops, least_peak
from epl.parallel.recompute.segments import BackwardPass, SegmentId
from epl.utils.errors import PlanError

MAX_CANDIDATES = 128  # places where a cut is considered, besides the ends of repeated blocks


class SegmentChoice(NamedTuple):
    """Segments of a model.

    Attributes:
      places: of each node that may be recomputed, its segment.
      whole: segments of which everything is kept.
      divisions: by stage, the division of its chain.
    """

    places: Dict[int, SegmentId]
    whole: Set[SegmentId]
    divisions: Dict[int, Division]


def choose(
    view: GraphView,
    backward: BackwardPass,
    recomputable: Set[int],
    stages: Sequence[int],
    costs: Costs,
    budget: int = 0,
) -> SegmentChoice:
    """Divides the forward pass of each stage into segments.

    Args:
      view: the graph.
      backward: the passes.
      recomputable: the nodes that may be recomputed.
      stages: of each node.
      costs: of the forward pass.
      budget: bytes of activations that a stage may have at once, of those that could be recomputed; 0: as few as
        possible.

    Raises:
      PlanError: a stage needs more than the budget.
    """
    prepared = min(backward.seeds)  # nodes created later were made for the backward pass, such as masks
    blocks = find_blocks(view, [node for node in backward.forward if node < prepared], costs)
    by_stage: Dict[int, List[int]] = {}
    for node in backward.forward:
        if node in recomputable and node < prepared:
            by_stage.setdefault(stages[node], []).append(node)
    places: Dict[int, SegmentId] = {}
    whole: Set[SegmentId] = set()
    divisions = {}
    for stage, order in sorted(by_stage.items()):
        chain = chain_of(view, backward, recomputable, order, costs)
        candidates = cut_candidates(chain, _ends_of(blocks, order))
        last = stage == max(by_stage)
        divisions[stage] = division = _divide(chain, candidates, last, budget, stage)
        whole.update((stage, number) for number in division.whole)
        starts = [0] + list(division.cuts) + [len(order)]
        for number, (start, end) in enumerate(zip(starts, starts[1:])):
            places.update((node, (stage, number)) for node in order[start:end])
    _place_prepared(view, backward, recomputable, stages, places)
    return SegmentChoice(places, whole, divisions)


def _divide(chain: Chain, candidates: Sequence[int], last_is_whole: bool, budget: int, stage: int) -> Division:
    division = fewest_flops(chain, candidates, budget, last_is_whole) if budget else None
    if division is None:
        division = least_peak(chain, candidates, last_is_whole)
    if 0 < budget < division.peak:
        raise PlanError(
            "gradient_checkpoint.memory_budget is {} bytes, and the activations of one micro batch in stage {} take at "
            "least {} bytes, whatever is recomputed. Allow for that much, make the batch or the micro batches smaller, "
            "or set the budget to 0 for as few as possible.".format(budget, stage, division.peak)
        )
    return division


def chain_of(
    view: GraphView, backward: BackwardPass, recomputable: Collection[int], order: Sequence[int], costs: Costs
) -> Chain:
    """The nodes of one stage, in `order`, as a chain. An alias has no memory of its own; its uses are its source's."""
    position = {node: at for at, node in enumerate(order)}
    source: Dict[int, int] = {}  # node -> the position at which its memory was made
    for at, node in enumerate(order):
        first = data_inputs(view, node)[0][0] if view.types[node] in ALIASES else -1
        source[node] = source.get(first, at)
    sizes = [sum(map(num_bytes, costs.types[node])) if source[node] == at else 0 for at, node in enumerate(order)]
    last = list(range(len(order)))
    saved = [False] * len(order)
    consumers = view.consumers()
    for node in order:
        memory = source[node]
        for consumer in consumers[node]:
            if consumer in position:
                last[memory] = max(last[memory], position[consumer])
            elif consumer in backward.nodes or consumer in recomputable:
                saved[memory] = saved[memory] or view.takes_data(consumer, node)
    return Chain(sizes, last, saved, [costs.flops[node] for node in order])


def cut_candidates(chain: Chain, block_ends: Collection[int] = ()) -> List[int]:
    """The ends of blocks, and of equal parts of the memory, where each is cut with the least to keep."""
    count = len(chain.sizes)
    change = [0] * (count + 1)
    for at, (size, last) in enumerate(zip(chain.sizes, chain.last)):
        change[at + 1 if at < count else at] += size  # alive at cuts behind it ...
        change[min(last + 1, count)] -= size  # ... up to the one in front of its last use
    alive = []
    total = 0
    for at in range(count):
        total += change[at]
        alive.append(total)
    if count - 1 <= MAX_CANDIDATES:
        return sorted(set(range(1, count)) | set(block_ends))
    memory = [size if saved else 0 for size, saved in zip(chain.sizes, chain.saved)]
    part = max(1.0, sum(memory) / MAX_CANDIDATES)
    best: Dict[int, int] = {}
    passed = 0
    for at in range(1, count):
        passed += memory[at - 1]
        bucket = int(passed / part)
        if bucket not in best or alive[at] <= alive[best[bucket]]:
            best[bucket] = at
    return sorted(set(best.values()) | set(block_ends))


def _ends_of(blocks: Sequence[Sequence[int]], order: Sequence[int]) -> List[int]:
    """The positions behind the last node of each block."""
    position = {node: at for at, node in enumerate(order)}
    ends = [max([position[node] for node in block if node in position] or [-1]) + 1 for block in blocks]
    return [end for end in ends if 0 < end < len(order)]


def _place_prepared(
    view: GraphView, backward: BackwardPass, recomputable: Set[int], stages: Sequence[int], places: Dict[int, SegmentId]
) -> None:
    """What is made for the backward pass belongs to the latest segment that it takes something of."""
    for node in backward.forward:
        if node in recomputable and node not in places:
            own = [places[p] for p, _ in data_inputs(view, node) if p in places and places[p][0] == stages[node]]
            places[node] = max(own or [(stages[node], 0)])
