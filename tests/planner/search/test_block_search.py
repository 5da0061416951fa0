"""The walk over plans by blocks: on costs by hand, against looking at all plans."""

import itertools
import random
import statistics

import pytest

from epl.planner.search import block_search
from epl.planner.search.block_plans import BlockPlan, Way
from epl.planner.search.block_search import BlockSearch, SearchLimits, SearchSpace
from epl.planner.search.comparison import PlanOutcome
from epl.utils.errors import PlanError

TWO_WAYS = (Way.ROWS, Way.SPLIT)


class HandMade:
    """Seconds and bytes by way of each block, and of each pair of neighbours."""

    def __init__(self, seed, blocks, ways=TWO_WAYS, memory=None):
        draw = random.Random(seed)
        self.own = [{way: draw.uniform(1, 10) for way in ways} for _ in range(blocks)]
        self.between = [{pair: draw.uniform(0, 4) for pair in itertools.product(ways, ways)} for _ in range(blocks)]
        self.bytes = [{way: draw.uniform(1, 10) for way in ways} for _ in range(blocks)]
        self.memory = memory
        self.calls = 0
        self.space = SearchSpace(tuple(range(blocks)), (2,), ways, (False,), ("",))

    def __call__(self, plan):
        self.calls += 1
        ways = plan.ways
        seconds = sum(own[way] for own, way in zip(self.own, ways))
        seconds += sum(costs[pair] for costs, pair in zip(self.between, zip(ways, ways[1:])))
        lacking = sum(sizes[way] for sizes, way in zip(self.bytes, ways)) - (self.memory or float("inf"))
        return PlanOutcome(seconds, (("gpu", lacking),) if lacking > 0 else ())

    def plans(self):
        for ways in itertools.product(self.space.ways, repeat=len(self.own)):
            yield BlockPlan(ways, 2)

    def optimum(self):
        return min((one for one in map(self, self.plans()) if not one.lacks), default=None)


def rows(count):
    return BlockPlan((Way.ROWS,) * count, 2)


def search(costs, steps=None, seconds=60.0, seed=0, space=None, tell=lambda _: None, starts=None):
    found = BlockSearch(space or costs.space, costs, SearchLimits(seconds, steps, seed), tell)
    found.run([rows(len(costs.own))] if starts is None else starts)
    return found


@pytest.mark.long
def test_against_all_plans_of_small_models():
    worse = []
    for seed in range(100):
        blocks = 2 + seed % 9
        costs = HandMade(seed, blocks, memory=5.2 * blocks)  # a third of the plans fit, or fewer
        optimum = costs.optimum()
        if optimum is None:
            assert search(costs).best(1)[0].outcome.lacks
            continue
        found = search(costs).best(1)[0].outcome
        assert not found.lacks
        worse.append(found.seconds / optimum.seconds - 1.0)
    print(f"{len(worse)} models: median {statistics.median(worse):.2%}, worst {max(worse):.2%}")
    assert len(worse) > 80 and statistics.median(worse) <= 0.01 and max(worse) <= 0.05


def test_the_same_seed_and_steps_find_the_same_plan_and_another_seed_walks_elsewhere():
    made = [search(HandMade(1, 30), steps=60, seed=seed) for seed in (0, 0, 1)]
    assert [one.best(5) for one in made[:2]] == [made[0].best(5)] * 2
    assert made[0].steps == made[1].steps == 60
    assert made[2].best(5) != made[0].best(5)


def test_more_steps_find_no_worse_plan():
    found = [search(HandMade(2, 40), steps=steps).best(1)[0].outcome.seconds for steps in (0, 50, 500, 1000)]
    assert found == sorted(found, reverse=True) and found[-1] < 0.85 * found[0]


def test_no_time_is_left_for_anything_but_the_candidates():
    costs = HandMade(3, 20)
    found = search(costs, seconds=0.0, starts=[rows(20), BlockPlan((Way.SPLIT,) * 20, 2)])
    assert costs.calls == 2 and found.steps == 0 and found.ended == "its 0 s are over"
    costs = HandMade(3, 20)
    assert search(costs, steps=0).ended == "auto.steps is 0" and costs.calls == 1


def test_a_search_ends_when_all_plans_were_looked_at_or_nothing_gets_better():
    small, large = HandMade(4, 3), HandMade(4, 20)
    assert search(small).ended == "all plans were looked at" and small.calls == 8
    found = search(large)
    assert found.ended.startswith("nothing better came in ")
    assert large.calls < 60_000


def test_no_plan_is_simulated_twice():
    costs = HandMade(5, 6)
    seen = []
    found = BlockSearch(costs.space, lambda plan: seen.append(plan) or costs(plan), SearchLimits(60.0, 300, 0))
    found.run([rows(6)])
    assert len(seen) == len(set(seen)) == found.looked_at


def test_plans_that_are_refused_are_passed_over():
    costs = HandMade(6, 6)

    def evaluate(plan):
        if plan.ways[2] == Way.SPLIT:
            raise PlanError("block 2 cannot be split")
        return costs(plan)

    found = BlockSearch(costs.space, evaluate, SearchLimits(60.0, None, 0))
    found.run([rows(6)])
    allowed = [costs(plan).seconds for plan in costs.plans() if plan.ways[2] == Way.ROWS]
    assert found.best(1)[0].outcome.seconds == min(allowed)

    def refuse(plan):
        raise PlanError("no")

    found = BlockSearch(costs.space, refuse, SearchLimits(60.0, None, 0))
    found.run([rows(6)])
    assert found.ended == "no plan can be simulated" and not found.best(1)


def test_equal_blocks_change_together():
    costs = HandMade(7, 64)
    costs.own = [{Way.ROWS: 2.0, Way.SPLIT: 1.0}] * 64
    costs.between = [{("rows", "split"): 9.0, ("split", "rows"): 9.0, ("rows", "rows"): 0, ("split", "split"): 0}] * 64
    tied = costs.space._replace(classes=(0,) * 64)
    assert set(search(costs, steps=40, space=tied).best(1)[0].plan.ways) == {Way.SPLIT}


def test_settings_and_groups_are_changed_too():
    space = SearchSpace((0, 1), (2, 4), TWO_WAYS)

    def evaluate(plan):
        seconds = 10.0 - 2 * plan.checkpoint - (plan.zero == "v1") - (plan.ways[0] == Way.SPLIT and plan.group == 4)
        return PlanOutcome(seconds, ())

    found = BlockSearch(space, evaluate, SearchLimits(60.0, None, 0))
    found.run([rows(2)])
    best = found.best(1)[0].plan
    assert best.checkpoint and best.zero == "v1" and best.group == 4 and best.ways[0] == Way.SPLIT
    assert "groups of 4, ZeRO v1, gradient checkpoint" in best.describe()


def test_the_best_so_far_is_told_each_second_and_ctrl_c_leaves_it(monkeypatch):
    costs, told = HandMade(8, 20), []
    now = itertools.count()
    monkeypatch.setattr(block_search.time, "monotonic", lambda: next(now) / 10)
    found = search(costs, seconds=50.0, tell=told.append)
    assert found.ended == "its 50 s are over" and 10 < len(told) < 60
    assert told[-1].startswith("search: ") and "ms: blocks by" in told[-1]

    def evaluate(plan):
        if costs.calls > 30:
            raise KeyboardInterrupt
        return costs(plan)

    costs.calls = 0
    found = BlockSearch(costs.space, evaluate, SearchLimits(1e9, None, 0))
    with pytest.raises(KeyboardInterrupt):
        found.run([rows(20)])
    assert found.best(1)[0].outcome.seconds == min(one.outcome.seconds for one in found.best(99))


def test_the_walk_makes_steps_however_many_plans_are_given(monkeypatch):
    """Each plan takes a second, and the plans that are given would take more than all of the time."""
    now = [0.0]
    monkeypatch.setattr(block_search.time, "monotonic", lambda: now[0])
    costs = HandMade(0, 8)

    def slow(plan):
        now[0] += 1.0
        return costs(plan)

    found = BlockSearch(costs.space, slow, SearchLimits(40.0, None, 0))
    found.run([rows(8)], list(costs.plans()))
    assert found.steps >= 15 and now[0] <= 41.0


def test_further_ways_come_after_the_others_and_only_where_they_are_better():
    further = {2: ("device 1",), 4: ("device 3", "split over 2")}
    space = SearchSpace((0, 1, 2), (2, 4), TWO_WAYS, (False,), ("",), lambda group: further[group])
    seen = []

    def evaluate(plan):
        seen.append(plan)
        assert set(plan.ways) <= {*TWO_WAYS, *further[plan.group]}
        return PlanOutcome(10.0 - ("split over 2" in plan.ways) - (plan.ways[2] == Way.SPLIT), ())

    start = BlockPlan(("split over 2",) * 3, 4)
    found = BlockSearch(space, evaluate, SearchLimits(60.0, None, 0))
    found.run([rows(3)], [], [start])
    at = seen.index(start)
    assert len(set(seen[:at])) == 15 and all(set(plan.ways) <= set(TWO_WAYS) for plan in seen[:at])
    best = found.best(1)[0].plan
    assert "split over 2" in best.ways and best.ways[2] == Way.SPLIT
    assert len(seen) == len(set(seen)) and (space.size(False), space.size(True)) == (15, 1 + 26 + 63)

    found = BlockSearch(space, lambda plan: PlanOutcome(1.0, ()), SearchLimits(60.0, 50, 0))
    found.run([rows(3)], [], [start])
    assert set(found.best(1)[0].plan.ways) <= set(TWO_WAYS)  # of equal plans


def test_further_starts_take_half_of_the_steps_that_are_left_for_further_ways():
    space = SearchSpace((0, 1, 2, 3), (8,), TWO_WAYS, (False,), ("",), lambda group: ("device 1",))
    starts = [BlockPlan(("device 1",) * last + (Way.ROWS,) * (4 - last), 8) for last in range(1, 5)] * 2
    starts += [BlockPlan(("device 1", *ways), 8) for ways in itertools.product(TWO_WAYS, repeat=3)]
    for steps, expected in ((0, 0), (20, 3), (30, 5)):
        found = BlockSearch(space, lambda plan: PlanOutcome(1.0, ()), SearchLimits(60.0, steps, 0))
        taken = []
        found.run([rows(4)], [], (taken.append((found.steps, found.looked_at)) or plan for plan in starts))
        at, looked_at = zip(*taken) if taken else ((), ())
        assert set(at) == ({int(0.7 * steps)} if steps else set()) and found.steps == steps
        assert max(looked_at, default=0) - min(looked_at, default=0) == expected


def test_no_step_changes_nothing():
    """The only further way of groups of 2, rows without a group, and all that has the same name."""
    space = SearchSpace(
        (0, 0), (2, 4), TWO_WAYS, further=lambda group: ("device 1",),
        renamed=lambda plan: plan._replace(ways=tuple(Way.SPLIT if way == "device 1" else way for way in plan.ways)),
    )  # fmt: skip
    for one in (space, space._replace(renamed=lambda plan: plan)):
        found = BlockSearch(one, lambda plan: PlanOutcome(1.0, ()), SearchLimits(60.0, 1, 0))
        found.run([rows(2)])
        found._has_further = True
        plan = rows(2)
        for _ in range(500):
            before, plan = plan, found._other(plan)
            assert plan != before
