"""The order of unequal devices: found by a search, the same time however a machine names them, and trained with."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.strategy import replay
from epl.planner.machine.files import from_json
from epl.planner.prediction.layout import decided
from epl.planner.search.decision import SearchResult
from epl.planner.search.device_orders import device_orders, with_order
from epl.utils.errors import ClusterError, PlanError
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.prediction.hand_made import HandCosts, Layer, strategy

SLOW = "p100-16"
FAST = "v100-32"


def _minimize(width=2048, layers=4):
    x = tf.placeholder(tf.float32, [None, width], "x")
    hidden = x
    for number in range(layers):
        hidden = tf.layers.dense(hidden, width, tf.nn.relu, name=f"layer{number}")
    loss = tf.reduce_mean(tf.square(hidden))
    return x, loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def _machine(kinds):
    return json.dumps({"nodes": [{"devices": [f"1*{kind}" for kind in kinds], "links": ["pcie3"]}]})


@pytest.mark.parametrize("stages", [1, 2])
def test_the_same_machine_in_any_order_gives_the_same_time(init, tmp_path, stages):  # noqa: F811
    """One stage: blocks that one device computes; two: a pipeline. Rows stay even, so that the order counts."""
    steps, chosen = [], []
    for kinds in ([FAST, SLOW], [SLOW, FAST]):
        path = tmp_path / "{}.json".format("_".join(kinds))
        path.write_text(_machine(kinds))
        init(
            2,
            annotate=False,
            auto__planner="search",
            auto__steps=20,
            auto__balance="even",
            auto__machine=str(path),
            auto__rows=32,
            pipeline__num_stages=stages,
        )
        _minimize()
        found = Graph.get().state_of(SearchResult)
        steps.append(found.chosen.outcome.seconds)
        chosen.append(found.chosen.candidate.name)
    assert steps[0] == pytest.approx(steps[1], rel=1e-9), chosen


def test_a_pipeline_trains_in_another_order_as_on_one_device(init):  # noqa: F811
    feed = np.random.RandomState(0).rand(8, 16).astype(np.float32)
    losses = []
    for devices, keys in (
        (1, {}),
        (2, {"auto__auto_parallel": True, "pipeline__num_stages": 2, "pipeline__num_micro_batch": 2}),
    ):
        init(devices, annotate=False, **keys, **({"cluster__device_order": "1,0"} if devices > 1 else {}))
        tf.set_random_seed(1)
        x, loss, train = _minimize(width=16)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses.append([session.run([loss, train], {x: feed})[0] for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    (first, last) = Graph.get().rewritten.plan.stages
    assert [one.devices[0][-1] for one in (first, last)] == ["1", "0"]


def test_orders_do_not_depend_on_the_numbers_of_the_devices(init):  # noqa: F811
    """All orders of kinds if they are few; the order of the job itself is none of them."""

    def kinds_in_order(kinds):
        init(len(kinds), annotate=False)
        machine = from_json(_machine(kinds))
        base = strategy(HandCosts([Layer(1.0, 2.0)]), devices=len(kinds))
        found = device_orders(base, machine)
        assert all(decided(with_order(base, one))["cluster.device_order"] == one for one in found)
        return {tuple(kinds)} | {tuple(kinds[int(number)] for number in one.split(",")) for one in found}

    assert kinds_in_order([FAST, SLOW]) == kinds_in_order([SLOW, FAST]) == {(FAST, SLOW), (SLOW, FAST)}
    assert len(kinds_in_order([SLOW, FAST, FAST, SLOW])) == 6
    assert kinds_in_order([FAST] * 8) == {(FAST,) * 8}
    many = [[FAST] * 4 + [SLOW] * 4, [SLOW] * 4 + [FAST] * 4, [SLOW, FAST] * 4]
    assert len({frozenset(kinds_in_order(one)) for one in many}) == 1


@pytest.mark.parametrize("order", ["0", "0,2", "1,0,2"])
def test_an_order_names_each_device_once(init, order):  # noqa: F811
    with pytest.raises(ClusterError, match="does not name the devices of a process"):
        init(2, cluster__device_order=order)


def _job(layout="auto"):
    env = Env.get()
    hosts = ["a.invalid:1", "b.invalid:1"]
    env.cluster = Cluster(hosts, worker_index=1, layout=layout, config=env.config)
    return env.cluster


def test_a_plan_with_an_order_keeps_the_job(init):  # noqa: F811
    init(2, annotate=False)
    plan = with_order(strategy(HandCosts([Layer(1.0, 2.0)]), workers=2, devices=2), "1,0")
    cluster = _job()
    Env.get().config.decide("cluster.device_order", "1,0")
    laid_out = replay._laid_out(plan, cluster, "plan.json")
    assert (laid_out.hosts, laid_out.worker_index) == (cluster.hosts, 1)
    with pytest.raises(PlanError, match="plan.json was made for 2x4 devices"):
        replay._laid_out(plan._replace(devices=4), cluster, "plan.json")
    with pytest.raises(PlanError, match="orders the devices .*, and the script lays them out itself"):
        replay._laid_out(plan, _job("all"), "plan.json")
