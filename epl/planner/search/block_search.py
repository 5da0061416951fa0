"""Looks for plans by blocks that are faster than all candidates: Markov chain Monte Carlo in FlexFlow's manner.

    the best candidates -> rounds from each of them in turn -> the best plans of all rounds
    a step              a change or two: the way of a block, of neighbours, of all equal blocks; group, checkpoint, ZeRO
                        taken if it is faster, else with the probability exp(-b * difference)

The walk begins with the ways that all devices have a part in, and the first device. When these give nothing better, or
for the last part of its time, every other way that it draws is one of a part of the devices, if there are such ways.
Plans that differ in the names of equal devices alone are one plan.

Memory is a constraint: a plan that fits is never left for one that does not, and one that does not only for one that
lacks less. Each plan is simulated once. With the same seed and number of steps the same plan is found.

Source: Jia, Zaharia, Aiken, Beyond Data and Model Parallelism for Deep Neural Networks, MLSys 2019, section 6.
"""

import math
import random
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from epl.planner.search.block_plans import WAYS, BlockPlan, Way
from epl.planner.search.comparison import PlanOutcome
from epl.utils.errors import EplError

_COOL = 20.0  # b: a plan that is slower by a twentieth of the best is taken with the probability 1 / e
_ZERO = ("", "v0", "v1")  # levels that go together with splits
# Part of the time for plans that are given, so that the walk makes steps at every size of a model; where those with
# further ways are given, also a part of the steps.
_OF_STARTS = 0.5
_STARTS = 4  # candidates from which rounds begin
_LEAST_ROUND, _OF_BLOCK = 40, 4  # steps of a round: at least, and for each block
_TWICE = 0.3  # part of the steps that make two changes
_OF_FURTHER = 0.3  # part of the walk, by time or steps, that has further ways
_TRIES = 20  # changes that are drawn, at most, until one is none to the same plan
_PATIENCE = 5  # rounds without a better plan, after which the search ends
_CLEARLY = 1e-3  # part of the time by which a plan is better that makes the search go on
_TOLD = 1.0  # seconds between two messages


class SearchLimits(NamedTuple):
    """When a search ends, at the latest.

    Attributes:
      seconds: of time; it begins no step after that.
      steps: the number of steps; None: as many as the time allows.
      seed: of the random numbers.
    """

    seconds: float
    steps: Optional[int]
    seed: int


class SearchSpace(NamedTuple):
    """What a plan may choose.

    Attributes:
      classes: of the blocks; equal blocks have equal ones.
      groups: sizes of groups.
      ways, checkpoint, zero: values; a key that the user has set has one.
      further: ways of a size of groups that the walk takes later.
      renamed: one of all plans that differ from a plan in the names of equal devices alone.
    """

    classes: Tuple[int, ...]
    groups: Tuple[int, ...]
    ways: Tuple[str, ...] = WAYS
    checkpoint: Tuple[bool, ...] = (False, True)
    zero: Tuple[str, ...] = _ZERO
    further: Callable[[int], Tuple[str, ...]] = lambda group: ()
    renamed: Callable[[BlockPlan], BlockPlan] = lambda plan: plan

    def size(self, has_further: bool) -> float:
        """How many plans there are, at most; with further ways or without."""
        settings, rows = len(self.checkpoint) * len(self.zero), int(Way.ROWS in self.ways)
        counts = [len(self.ways) + has_further * len(self.further(group)) for group in self.groups]
        return float(settings * (sum(float(count) ** len(self.classes) - rows for count in counts) + 1))


class Found(NamedTuple):
    """A plan with its outcome."""

    plan: BlockPlan
    outcome: PlanOutcome


# Seconds of a plan, and what it lacks.
Evaluate = Callable[[BlockPlan], PlanOutcome]


class BlockSearch:
    """One search.

    Attributes:
      steps: that were made.
      ended: why the search ended, in words.
    """

    def __init__(
        self, space: SearchSpace, evaluate: Evaluate, limits: SearchLimits, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """Takes what a plan may choose, and what a plan costs.

        Args:
          space: the plans.
          evaluate: simulates a plan; an EplError: it cannot be.
          limits: when the search ends.
          tell: is told the best so far, at most once a second.
        """
        self._space, self._evaluate, self._limits, self._tell = space, evaluate, limits, tell
        self._random = random.Random(limits.seed)
        self._known: Dict[BlockPlan, Optional[PlanOutcome]] = {}
        self._best: Optional[Found] = None
        self._end = time.monotonic() + limits.seconds
        self._told = time.monotonic()
        self._improved = 0  # step of the last better plan
        self._has_further = False
        self._further_starts: Iterable[BlockPlan] = ()
        self.steps = 0
        self.ended = ""

    def look(self, plan: BlockPlan) -> Optional[PlanOutcome]:
        """The outcome of a plan; None if it cannot be simulated."""
        if plan not in self._known:
            try:
                self._known[plan] = self._evaluate(plan)
            except EplError:
                self._known[plan] = None
            outcome = self._known[plan]
            if outcome is not None and (self._best is None or rank(outcome) < rank(self._best.outcome)):
                if self._best is None or _is_clearly_better(outcome, self._best.outcome):
                    self._improved = self.steps
                self._best = Found(plan, outcome)
            self._tell_best()
        return self._known[plan]

    @property
    def looked_at(self) -> int:
        """The number of different plans that were simulated, or refused."""
        return len(self._known)

    def run(
        self,
        candidates: Sequence[BlockPlan],
        starts: Sequence[BlockPlan] = (),
        further: Iterable[BlockPlan] = (),
    ) -> None:
        """Looks for better plans.

        Args:
          candidates: plans that are looked at in any case.
          starts: plans that are looked at for half of the time that is left; the walk has the other half.
          further: plans that the walk looks at before it takes further ways: for half of the time that is left for
            these, or as many as half of the steps.
        """
        for plan in candidates:
            self.look(plan)
        self._look_at(starts)
        self._further_starts = further
        self._walk()

    def _look_at(self, plans: Iterable[BlockPlan], most: float = math.inf) -> None:
        """Looks at plans for half of the time that is left, if the clock counts; at new ones until they are `most`."""
        until = time.monotonic() + _OF_STARTS * max(0.0, self._end - time.monotonic())
        most += len(self._known)
        for plan in plans:
            if len(self._known) >= most or (self._limits.steps is None and time.monotonic() >= until):
                return
            self.look(self._space.renamed(plan))

    def best(self, count: int) -> List[Found]:
        """The best plans, the best first, of equal ones those without further ways; of others those that lack least."""
        found = [Found(plan, outcome) for plan, outcome in self._known.items() if outcome is not None]
        simple = set(self._space.ways)
        return sorted(found, key=lambda one: (rank(one.outcome), not set(one.plan.ways) <= simple, one.plan))[:count]

    def _walk(self) -> None:
        """The rounds, without further ways at first."""
        limits, end = self._limits, self._end
        if not self._is_over(0) and any(map(self._space.further, self._space.groups)):
            steps = None if limits.steps is None else int((1.0 - _OF_FURTHER) * limits.steps)
            self._limits = limits._replace(steps=steps)
            self._end -= _OF_FURTHER * max(0.0, end - time.monotonic())
            self._rounds()
            self._limits, self._end = limits, end
            self._has_further, self._improved = True, self.steps
            left = math.inf if limits.steps is None else limits.steps - self.steps
            self._look_at(self._further_starts, _OF_STARTS * left)
        self.ended = ""
        self._rounds()

    def _rounds(self) -> None:
        round_steps = max(_LEAST_ROUND, _OF_BLOCK * len(self._space.classes))
        number = 0
        while not self._is_over(round_steps):
            starts = self.best(_STARTS)
            if not starts:
                self.ended = "no plan can be simulated"
                return
            here = starts[number % len(starts)]
            number += 1
            for _ in range(round_steps):
                if self._is_over(round_steps):
                    return
                self.steps += 1
                here = self._step(here)

    def _step(self, here: Found) -> Found:
        plan = self._other(here.plan)
        outcome = self.look(plan)
        if outcome is None:
            return here
        before, after = rank(here.outcome), rank(outcome)
        if after <= before:
            return Found(plan, outcome)
        if after[0] > before[0]:  # it lacks more
            return here
        assert self._best is not None
        difference = (after[1] - before[1]) / max(self._best.outcome.seconds, 1e-12)
        return Found(plan, outcome) if self._random.random() < math.exp(-_COOL * difference) else here

    def _other(self, here: BlockPlan) -> BlockPlan:
        """A plan with a change, or with two: where memory is short, one block must give what another takes."""
        plan = self._changed(here)
        if self._random.random() < _TWICE:
            twice = self._changed(plan)
            plan = plan if twice == here else twice
        return plan

    def _changed(self, plan: BlockPlan) -> BlockPlan:
        """Another plan, by one change; the same if none of the changes that are drawn makes another one."""
        drawn = (self._drawn(plan) for _ in range(_TRIES))
        return next((one for one in drawn if one != plan), plan)

    def _drawn(self, plan: BlockPlan) -> BlockPlan:
        """The plan with one change, which may be none where it is a change of names."""
        space, draw = self._space, self._random
        kind = draw.random()
        if kind < 0.1 and len(space.checkpoint) > 1:
            return plan._replace(checkpoint=not plan.checkpoint)
        if kind < 0.2 and len(space.zero) > 1:
            return plan._replace(zero=draw.choice([one for one in space.zero if one != plan.zero]))
        if kind < 0.3 and len(space.groups) > 1:
            return self._canonical(plan._replace(group=draw.choice([one for one in space.groups if one != plan.group])))
        count = len(plan.ways)
        begin = draw.randrange(count)
        if kind < 0.6:
            members = {begin}
        elif kind < 0.8:  # neighbours
            members = set(range(begin, draw.randrange(begin, count) + 1))
        else:
            members = {at for at in range(count) if space.classes[at] == space.classes[begin]}
        further = space.further(plan.group) if self._has_further else ()
        ways = further if further and draw.random() < 0.5 else space.ways
        if set(ways) == {plan.ways[begin]}:  # it has the only further way
            ways = space.ways
        way = draw.choice([one for one in ways if one != plan.ways[begin]])
        return self._canonical(
            plan._replace(ways=tuple(way if at in members else one for at, one in enumerate(plan.ways)))
        )

    def _canonical(self, plan: BlockPlan) -> BlockPlan:
        """One of the plans that do the same: by rows alone the group means nothing. Ways that it lacks are splits."""
        if self._has_further:
            known = {*self._space.ways, *self._space.further(plan.group)}
            plan = plan._replace(ways=tuple(one if one in known else Way.SPLIT for one in plan.ways))
            plan = self._space.renamed(plan)
        return plan._replace(group=self._space.groups[0]) if set(plan.ways) == {Way.ROWS} else plan

    def _is_late(self) -> bool:
        return self._limits.steps is None and time.monotonic() >= self._end

    def _is_over(self, round_steps: int) -> bool:
        limits = self._limits
        if limits.steps is not None and self.steps >= limits.steps:
            self.ended = f"auto.steps is {limits.steps}"
        elif self._is_late():
            self.ended = f"its {limits.seconds:.3g} s are over"
        elif len(self._known) >= self._space.size(self._has_further):
            self.ended = "all plans were looked at"
        elif limits.steps is None and self.steps - self._improved > _PATIENCE * round_steps:
            self.ended = f"nothing better came in {self.steps - self._improved} steps"
        return bool(self.ended)

    def _tell_best(self) -> None:
        now = time.monotonic()
        if self._best is not None and now - self._told >= _TOLD:
            self._told = now
            found = self._best
            lacks = "" if not found.outcome.lacks else ", which does not fit"
            self._tell(
                f"search: {len(self._known)} plans by blocks, {self.steps} steps; the best so far takes "
                f"{found.outcome.seconds * 1e3:.6g} ms{lacks}: {found.plan.describe()}"
            )


def rank(outcome: PlanOutcome) -> Tuple[float, float]:
    """Smaller is better: what does not fit comes after what does."""
    return sum(size for _, size in outcome.lacks), outcome.seconds


def _is_clearly_better(outcome: PlanOutcome, other: PlanOutcome) -> bool:
    lacking, seconds = rank(outcome)
    return lacking < rank(other)[0] or seconds < (1.0 - _CLEARLY) * other.seconds
