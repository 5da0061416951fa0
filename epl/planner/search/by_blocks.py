"""Searches plans by blocks of a model that the script leaves open: uniform split, two ways, and what a walk finds.

    uniform split          all blocks in shards, in groups of the devices of a worker, or of all
    two ways               the last blocks split, or on one device; those before them by rows
    BlockSearch            any way for each block; at last also ways of a part of the devices, where these can win

They are compared by choices that are found once, where the whole model is split. What is taken has choices of its own.
"""

import functools
import itertools
import logging
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from epl.env import Env
from epl.parallel.plan.strategy import Strategy
from epl.planner.search import comparison
from epl.planner.search.block_plans import BlockPlan, BlockPlans, Way, group_sizes, on_device
from epl.planner.search.block_search import BlockSearch, Found, SearchLimits, SearchSpace, rank
from epl.planner.search.candidates import PlanCandidate, is_left_alone
from epl.planner.search.comparison import Compared, PlanOutcome
from epl.planner.search.search_time import SearchTime
from epl.utils.errors import EplError

logger = logging.getLogger("epl.search")

_TAKEN = 3  # of the best plans, of which the first that can be trained is compared with the candidates
_SIMULATED = 8  # of the best plans by estimates
_WALK = 0.9  # part of auto.budget after which the walk ends: its best plans are to be simulated then
_LAST = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # blocks that are computed in another way than those before them


class BlockResult(NamedTuple):
    """What a search by blocks has found.

    Attributes:
      compared: plans, to be compared with the candidates.
      told: how it was searched, in words.
    """

    compared: Tuple[Compared, ...]
    told: str


def search_blocks(
    base: Strategy,
    plans: BlockPlans,
    balance: Callable[[Strategy], Strategy],
    simulate: Callable[[Strategy], PlanOutcome],
    estimate: Optional[Callable[[BlockPlan], PlanOutcome]] = None,
    search_time: Optional[SearchTime] = None,
) -> BlockResult:
    """The uniform splits, and the best plans by blocks.

    Args:
      base: the strategy of the script as it is, which leaves the blocks open.
      plans: of the model.
      balance: the strategy with the rows of replicas decided.
      simulate: what the simulator says of a strategy; it refuses what cannot be trained.
      estimate: what the walk takes in place of it, for a large model; the best plans are simulated then.
      search_time: of the search; the uniform splits take what they need. None: as long as it takes.
    """
    search_time = search_time or SearchTime(None)
    auto = Env.get().config.auto
    steps = None if auto.steps < 0 else auto.steps
    limits = SearchLimits(search_time.left(_WALK), steps, auto.seed)

    def simulated(plan: BlockPlan) -> PlanOutcome:
        return simulate(balance(plans.strategy(plan)))

    evaluate = estimate or simulated
    space = SearchSpace(
        classes=plans.blocks.classes,
        groups=tuple(group_sizes(base)),
        checkpoint=(False, True) if is_left_alone(base, "gradient_checkpoint.type") else (False,),
        zero=("", "v0", "v1") if is_left_alone(base, "zero.level") else ("",),
        further=functools.lru_cache(maxsize=None)(lambda group: _further(plans, group, evaluate)),
        renamed=plans.renamed,
    )
    search = BlockSearch(space, evaluate, limits, lambda text: logger.info("%s", text))
    uniform, *others = [_uniform(space, group) for group in space.groups]
    starts = [*_two_ways(space), *[plan for plans_of_group in others for plan in plans_of_group]]
    with search_time.until_interrupted():
        search.run(uniform, starts, _on_parts(space))
    compared = [_compared(f"uniform split: {plan.describe()}", plan, plans, balance, simulate) for plan in uniform]
    best = search.best(_TAKEN if estimate is None else _SIMULATED)
    if estimate is not None:
        known = {plan: one.outcome for plan, one in zip(uniform, compared)}
        best = _simulated(best, simulated, known, search_time)
    for one in best[:_TAKEN]:
        if set(one.plan.ways) != {Way.ROWS} and one.plan not in uniform:
            compared.append(_compared(one.plan.describe(), one.plan, plans, balance, simulate))
            if compared[-1].fits or search_time.is_over():
                break
    ended = search_time.in_words() if search_time.interrupted else search.ended
    told = f"{len(space.classes)} blocks: {search.looked_at} plans in {search.steps} steps; {ended}"
    logger.info("search: %s", told)
    return BlockResult(tuple(compared), told)


def _simulated(
    estimated: Sequence[Found],
    simulate: Callable[[BlockPlan], PlanOutcome],
    known: Dict[BlockPlan, Optional[PlanOutcome]],
    search_time: SearchTime,
) -> List[Found]:
    """The plans with what the simulator says of them, the best first: the first of them, and others as time allows."""
    known, found = dict(known), []
    for number, one in enumerate(estimated):
        if one.plan not in known and (not number or not search_time.is_over()):
            try:
                known[one.plan] = simulate(one.plan)
            except EplError:
                known[one.plan] = None
        outcome = known.get(one.plan)
        if outcome is not None:
            found.append(Found(one.plan, outcome))
    return sorted(found, key=lambda one: rank(one.outcome))


def _further(plans: BlockPlans, group: int, evaluate: Callable[[BlockPlan], PlanOutcome]) -> Tuple[str, ...]:
    """The further ways that can win; whether one device has memory for all blocks is asked where it matters."""
    found = [plans.further_ways(group, is_short) for is_short in (False, True)]
    if found[0] == found[1]:
        return found[0]
    try:
        return found[bool(evaluate(BlockPlan((Way.FIRST,) * len(plans.blocks), group)).lacks)]
    except EplError:  # one device cannot compute it, so no other one can
        return ()


def _uniform(space: SearchSpace, group: int) -> List[BlockPlan]:
    return [BlockPlan((way,) * len(space.classes), group) for way in (Way.SPLIT, Way.SMALL)]


def _two_ways(space: SearchSpace) -> List[BlockPlan]:
    """Plans whose last blocks, or all on one device, are computed in another way.

    Those for which no other choices are needed come first.
    """
    count = len(space.classes)
    found = []
    for group in space.groups:
        for ways in ((Way.SPLIT, Way.SMALL), (Way.FIRST,)):
            for last in [one for one in _LAST if one < count]:
                found += [BlockPlan((Way.ROWS,) * (count - last) + (way,) * last, group) for way in ways]
        found.append(BlockPlan((Way.FIRST,) * count, group))
    return found


def _on_parts(space: SearchSpace) -> Iterator[BlockPlan]:
    """Plans with further ways, those of each sort in turn, as there may be no time for all.

    blocks on 2, 4, ... devices, one after the other; all blocks by one way; the last blocks on another device
    """
    count = len(space.classes)
    sorts: List[List[BlockPlan]] = []
    for group in space.groups:
        further = space.further(group)
        powers = [2**power for power in range(1, group.bit_length()) if on_device(1) in further]
        last = [one for one in _LAST if one < count and powers]
        sorts += [
            [BlockPlan(tuple(on_device(at * part // count) for at in range(count)), group) for part in powers],
            [BlockPlan((way,) * count, group) for way in reversed(further)],
            [BlockPlan((Way.FIRST,) * (count - one) + (on_device(1),) * one, group) for one in last],
        ]
    for turn in itertools.zip_longest(*sorts):
        yield from filter(None, turn)


def _compared(
    name: str,
    plan: BlockPlan,
    plans: BlockPlans,
    balance: Callable[[Strategy], Strategy],
    simulate: Callable[[Strategy], PlanOutcome],
) -> Compared:
    """The best strategy of a plan that can be trained."""
    try:
        strategies = [balance(one) for one in plans.exact(plan)]
    except EplError as error:
        return Compared(PlanCandidate(name, plans.bare(plan)), None, str(error))
    found = comparison.compare([PlanCandidate(name, one) for one in strategies], simulate)
    return comparison.in_order(found)[0]
