"""Estimates of plans by blocks: against the simulator, after changes against anew, and how many a second."""

import json
import random
import time

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.planner.prediction.prediction import KnownParts
from epl.planner.search import block_plans, by_blocks, decision
from epl.planner.search.block_estimate import BlockEstimate
from epl.planner.search.block_plans import WAYS, BlockPlan, Way, further_ways, on_device, split_over
from epl.planner.search.decision import SearchResult, find_strategy
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.search.searched_model import skipping
from tests.yardstick import quiet_seconds


class Estimated:
    """A model, as a search has it."""

    def __init__(self, init, monkeypatch, build, machine, devices, **config):  # noqa: F811
        made = decision._block_plans

        def keep_model(graph, found, ys, model, machine, are_cut):
            self.model, self.machine = model, machine
            return made(graph, found, ys, model, machine, are_cut)

        def keep_plans(base, plans, balance, simulate, estimate, spent):
            self.plans = plans
            self.simulate = lambda plan: simulate(plans.strategy(plan))
            return by_blocks.BlockResult((), "")

        monkeypatch.setattr(decision, "_block_plans", keep_model)
        monkeypatch.setattr(decision, "search_blocks", keep_plans)
        init(devices, annotate=False, auto__planner="search", auto__machine=machine, **config)
        find_strategy(Graph.get(may_create=True), build(), tf.trainable_variables())
        monkeypatch.undo()

    def estimate(self):
        known = KnownParts(self.model.costs, self.machine, self.model.strategy)
        return BlockEstimate(self.plans, self.model.costs, self.machine, self.model.rows, known)


@pytest.fixture
def estimated(init, monkeypatch):  # noqa: F811
    return Estimated(init, monkeypatch, lambda: skipping(8, 512), "4*v100-16,pcie3", 4, auto__rows=2048)


EVERY = (*WAYS, *further_ways(4, are_equal=False, can_mix=True, has_branches=True, is_short=False))


def changed(plan, draw, ways=EVERY):
    block = draw.randrange(len(plan.ways))
    return plan._replace(ways=(*plan.ways[:block], draw.choice(ways), *plan.ways[block + 1 :]))


def test_estimates_agree_with_the_simulator(estimated):
    estimate, draw = estimated.estimate(), random.Random(0)
    count = len(estimated.plans.blocks)
    plans = [BlockPlan((way,) * count, 4, False, zero) for way in EVERY for zero in ("", "v1")]
    for ways in (WAYS, EVERY):
        plan = plans[0]
        for _ in range(30):
            plan = changed(plan, draw, ways)
            plans.append(plan)
    ratios = [estimate(one).seconds / estimated.simulate(one).seconds for one in plans]
    print(f"{min(ratios):.3f} to {max(ratios):.3f}")
    assert 0.85 < min(ratios) and max(ratios) < 1.15


def test_branches_on_different_devices_are_computed_at_the_same_time(init, monkeypatch):  # noqa: F811
    def towers():
        tops = []
        for name in "ab":
            x = tf.placeholder(tf.float32, [None, 1024])
            for number in range(4):
                x = tf.layers.dense(x, 1024, tf.nn.relu, name=f"{name}{number}")
            tops.append(x)
        return tf.reduce_mean(tf.square(tops[0] - tops[1]))

    found = Estimated(init, monkeypatch, towers, "2*v100-16,pcie3", 2, auto__rows=64)
    first, other = (Way.FIRST,) * 4, (on_device(1),) * 4
    plans = [BlockPlan(ways, 2) for ways in (first + first, first + other, other + first)]
    simulated = [found.simulate(plan).seconds for plan in plans]
    assert simulated[1] == pytest.approx(simulated[2]) and simulated[1] < 0.8 * simulated[0]
    for plan, seconds in zip(plans, simulated):
        assert found.estimate()(plan).seconds == pytest.approx(seconds, rel=0.1)


def test_a_wide_head_on_very_unequal_devices(init, tmp_path, monkeypatch):  # noqa: F811
    """The weights are updated where they are: by fast devices alone, or, by rows, by all when they are reduced."""

    def head():
        x = tf.placeholder(tf.float32, [None, 256])
        for number in range(2):
            x = tf.layers.dense(x, 256, tf.nn.relu, name=f"layer{number}")
        return tf.reduce_mean(tf.square(tf.layers.dense(x, 5000, name="head")))

    slow = {"flops": {"contraction": {"float32": "1.4 TFLOP/s"}}, "bandwidth": "80 GB/s"}
    machine = {
        "devices": {"fast": {"preset": "v100-16"}, "slow": {"preset": "v100-16", **slow}},
        "links": {"l": {"latency": "2 us", "bandwidth": "10 GB/s", "shared_by": 1}},
        "nodes": [{"devices": ["2*fast", "2*slow"], "links": ["l"]}],
    }
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(machine))
    found = Estimated(init, monkeypatch, head, str(path), 4, auto__rows=256)
    ways = [(way,) * 3 for way in (*WAYS, split_over(2), on_device(3))]
    ways += [(Way.ROWS, Way.ROWS, way) for way in (Way.SPLIT, Way.FIRST, split_over(2))]
    estimate = found.estimate()
    for plan in [BlockPlan(one, 4) for one in ways]:
        assert estimate(plan).seconds == pytest.approx(found.simulate(plan).seconds, rel=0.1), plan.describe()


def test_choices_of_another_device_are_made_once(estimated, monkeypatch):
    moved, made = block_plans._moved, []
    monkeypatch.setattr(block_plans, "_moved", lambda text, place: made.append(text) or moved(text, place))
    plan = BlockPlan((on_device(1),) * len(estimated.plans.blocks), 4)
    for _ in range(2):
        estimated.plans.strategy(plan)
    assert 0 < len(made) <= len(estimated.plans.base.ops)


def test_shards_that_are_reduced_between_nodes_divide_the_network(init, monkeypatch):  # noqa: F811
    hosts = ["a.invalid:1", "b.invalid:1"]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}))
    found = Estimated(init, monkeypatch, lambda: skipping(8, 512), "2x4*v100-16,eth-10", 4, auto__rows=2048)
    estimate = found.estimate()
    for way in (Way.SPLIT, Way.SMALL):
        plan = BlockPlan((way,) * len(found.plans.blocks), 4)
        assert estimate(plan).seconds == pytest.approx(found.simulate(plan).seconds, rel=0.15)


def test_an_estimate_after_changes_is_that_made_anew(estimated):
    estimate, anew, draw = estimated.estimate(), estimated.estimate(), random.Random(1)
    plan = BlockPlan((Way.ROWS,) * len(estimated.plans.blocks), 4)
    for number in range(1000):
        plan = changed(plan, draw)
        if number % 50 == 49:
            plan = plan._replace(checkpoint=not plan.checkpoint, zero=draw.choice(["", "v1"]))
        before = anew.computed
        anew._plan = None  # all of it is computed
        expected = anew(plan)
        assert anew.computed - before == 2 * len(plan.ways)
        found = estimate(plan)
        assert found.seconds == pytest.approx(expected.seconds, rel=1e-9) and found.lacks == expected.lacks
    assert estimate.computed < 0.9 * anew.computed


def test_plans_that_no_strategy_says_are_refused_and_leave_nothing_half_made(estimated):
    estimate = estimated.estimate()
    plan = BlockPlan((Way.ROWS,) * len(estimated.plans.blocks), 4)
    expected = estimate(plan)
    with pytest.raises(decision.PlanError, match="would share devices"):
        estimate(plan._replace(ways=(Way.SPLIT, *plan.ways[1:]), group=2))
    assert estimate(plan) == expected


def test_a_large_model_is_walked_by_estimates_and_the_best_is_simulated(init, monkeypatch):  # noqa: F811
    monkeypatch.setattr(decision, "_ESTIMATED", 1)
    init(4, annotate=False, auto__planner="search", auto__machine="4*v100-16,pcie3", auto__rows=64, auto__steps=100)
    find_strategy(Graph.get(may_create=True), skipping(8, 512), tf.trainable_variables())
    found = Graph.get().state_of(SearchResult)
    by_rows = next(one for one in found.compared if one.candidate.name == "the script as it is")
    assert found.chosen.fits and found.chosen.outcome.seconds < 0.8 * by_rows.outcome.seconds
    assert "plans in 100 steps" in found.by_blocks


@pytest.mark.long
@pytest.mark.timeout(600)
def test_how_many_plans_a_second(init, monkeypatch):  # noqa: F811
    """10,000 ops on 64 devices, and neighbours that change; seconds are those of the yardstick."""
    hosts = [f"w{number}.invalid:1" for number in range(8)]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}))
    config = {"auto__rows": 8192, "auto__budget": 0}
    found = Estimated(init, monkeypatch, lambda: skipping(1333, 64), "8x8*v100-16,eth-100", 8, **config)
    estimate, draw = found.estimate(), random.Random(2)
    rows = (Way.ROWS,) * len(found.plans.blocks)
    for way in (Way.SPLIT, Way.SMALL):
        estimate(BlockPlan((way,) * len(rows), 8))
    scale, count = quiet_seconds(), 2000
    begin = time.process_time()
    for _ in range(count):
        last = draw.randrange(1, len(rows))
        ways = tuple(draw.choice((Way.SPLIT, Way.SMALL)) for _ in range(last))
        estimate(BlockPlan(rows[last:] + ways, 8))
    rate = count / (scale * (time.process_time() - begin))
    print(f"{len(found.model.strategy.ops)} ops: {rate:.0f} plans a second")
    assert rate >= 500
