"""The segments of a model with `gradient_checkpoint.type` "auto": one chain of ops per stage, cut by `division.py`."""

from typing import Collection, Dict, List, NamedTuple, Sequence, Set, Tuple

from epl.ir.dataflow import aliased_tensor, data_inputs
from epl.ir.view import GraphView
from epl.parallel.costs.costs import Costs
from epl.parallel.costs.repeated_blocks import find_blocks
from epl.parallel.costs.shapes import num_bytes
from epl.parallel.recompute.division import Chain, Division, fewest_flops, least_peak
from epl.parallel.recompute.segments import BackwardPass, SegmentId
from epl.utils.errors import PlanError

MAX_CANDIDATES = 128  # places where a cut is considered, next to the ends of repeated blocks


class Starts(NamedTuple):
    """Where the segments of a stage begin.

    Attributes:
      starts: the first node of each segment but the first.
      whole: numbers of the segments that are kept, not recomputed.
    """

    starts: Sequence[int]
    whole: Sequence[int]


class SegmentChoice(NamedTuple):
    """The segments of a model.

    Attributes:
      places: the segment of each node that may be recomputed.
      whole: segments that are kept, not recomputed.
      divisions: by stage, where its segments begin.
    """

    places: Dict[int, SegmentId]
    whole: Set[SegmentId]
    divisions: Dict[int, Starts]


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
      backward: the backward pass, with its forward pass.
      recomputable: the nodes that may be recomputed.
      stages: the stage of each node.
      costs: costs of the forward pass.
      budget: bytes of recomputable activations that a stage may hold at once; 0: as few as possible.

    Raises:
      PlanError: a stage needs more than the budget.
    """
    orders = orders_of(backward, recomputable, stages)
    blocks = find_blocks(view, [node for node in backward.forward if node not in backward.prepared], costs)
    divisions = {}
    for stage, order in orders.items():
        chain = chain_of(view, backward, recomputable, order, costs)
        found = _divide(chain, cut_candidates(chain, _ends_of(blocks, order)), stage == max(orders), budget, stage)
        divisions[stage] = Starts([order[cut] for cut in found.cuts], found.whole)
    return divided(view, backward, recomputable, stages, divisions)


def orders_of(backward: BackwardPass, recomputable: Set[int], stages: Sequence[int]) -> Dict[int, List[int]]:
    """By stage, the nodes that may be recomputed, in the order of the forward pass, but for those in `prepared`."""
    orders: Dict[int, List[int]] = {}
    for node in backward.forward:
        if node in recomputable and node not in backward.prepared:
            orders.setdefault(stages[node], []).append(node)
    return dict(sorted(orders.items()))


def divided(
    view: GraphView, backward: BackwardPass, recomputable: Set[int], stages: Sequence[int], divisions: Dict[int, Starts]
) -> SegmentChoice:
    """The segments of a model, from the division of its stages."""
    places: Dict[int, SegmentId] = {}
    for stage, order in orders_of(backward, recomputable, stages).items():
        starts = set(divisions[stage].starts)
        number = 0
        for node in order:
            number += node in starts
            places[node] = stage, number
    whole = {(stage, number) for stage, found in divisions.items() for number in found.whole}
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
    """The nodes of one stage, in `order`, as a chain. An alias has no own memory: its uses count for its input."""
    position = {node: at for at, node in enumerate(order)}
    source: Dict[Tuple[int, int], int] = {}  # tensor -> the position of the op that allocates its memory
    sizes = [0] * len(order)
    for at, node in enumerate(order):
        for output, one in enumerate(costs.types[node]):
            before = aliased_tensor(view, node, output)
            source[node, output] = at if before is None else source.get(before, at)
            sizes[at] += num_bytes(one) if source[node, output] == at else 0
    last = list(range(len(order)))
    saved = [False] * len(order)
    consumers = view.consumers()
    for node in order:
        for consumer in consumers[node]:
            taken = {source[tensor] for tensor in data_inputs(view, consumer) if tensor[0] == node}
            if consumer in position:
                for memory in taken or {position[node]}:
                    last[memory] = max(last[memory], position[consumer])
            elif consumer in backward.nodes or consumer in recomputable:
                for memory in taken:
                    saved[memory] = True
    return Chain(sizes, last, saved, [costs.flops[node] for node in order])


def cut_candidates(chain: Chain, block_ends: Collection[int] = ()) -> List[int]:
    """The ends of blocks; and in each of `MAX_CANDIDATES` equal parts of the memory, the cut that keeps least."""
    count = len(chain.sizes)
    change = [0] * (count + 1)
    for at, (size, last) in enumerate(zip(chain.sizes, chain.last)):
        change[at + 1 if at < count else at] += size  # alive at cuts after it ...
        change[min(last + 1, count)] -= size  # ... up to the one before its last use
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
    """The positions after the last node of each block."""
    position = {node: at for at, node in enumerate(order)}
    ends = [max([position[node] for node in block if node in position] or [-1]) + 1 for block in blocks]
    return [end for end in ends if 0 < end < len(order)]


def _place_prepared(
    view: GraphView, backward: BackwardPass, recomputable: Set[int], stages: Sequence[int], places: Dict[int, SegmentId]
) -> None:
    """Puts nodes that TensorFlow adds for the backward pass into the latest segment that they read from."""
    for node in backward.forward:
        if node in recomputable and node not in places:
            own = [places[p] for p, _ in data_inputs(view, node) if p in places and places[p][0] == stages[node]]
            places[node] = max(own or [(stages[node], 0)])
