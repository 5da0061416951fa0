"""Rows by the speed of devices: the best division that fits, and even rows where no other gains."""

import json

import pytest
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.strategy import record
from epl.planner.prediction.layout import decided
from epl.planner.prediction.prediction import predict
from epl.planner.search import decision
from epl.planner.search.decision import SearchResult
from epl.planner.search.speed_balance import KEY, SPEED, balanced, with_balance
from tests.parallel.in_process import init, rewritten  # noqa: F401
from tests.planner.search.test_own_splits import _begin

ROWS = 256


def _machine(tmp_path, memory, **settings):
    slow = {"preset": "v100-16", "flops": {"contraction": {"float32": "4 TFLOP/s"}}, **settings}
    nodes = [{"devices": ["1*slow", "1*small"], "links": ["nvlink2"]}]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"devices": {"slow": slow, "small": {"preset": "v100-16", **memory}}, "nodes": nodes}))
    return str(path)


def _minimize():
    """A loss whose peak is at the wide layer with many rows, and at the update with few."""
    x = tf.placeholder(tf.float32, [None, 64], "x")
    wide = tf.layers.dense(x, 20000, tf.nn.relu)
    loss = tf.reduce_mean(tf.square(tf.layers.dense(wide, 64)))
    return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def _prediction(strategy, model, first):
    shares = "even" if 2 * first == ROWS else f"{first}:{ROWS - first}"
    return predict(with_balance(strategy, shares), model.costs, model.machine, ROWS)


@pytest.mark.parametrize("memory", [{}, {"memory": "80 MB"}, {"memory": "64 MB"}, {"memory": "55 MB"}])
def test_rows_are_those_of_an_exhaustive_search(init, tmp_path, memory):  # noqa: F811
    init(2, auto__machine=_machine(tmp_path, memory), auto__rows=ROWS)
    loss, _ = _minimize()
    graph = Graph.get()
    found = record.forward_pass(graph, loss, tf.trainable_variables())
    model = decision.planned_model(graph, found, {"Momentum": 1.0})
    every = {first: _prediction(model.strategy, model, first) for first in range(8, ROWS, 8)}
    fitting = {first: one.seconds for first, one in every.items() if one.fits}
    given = balanced(with_balance(model.strategy, SPEED), model.costs, model.machine, ROWS)
    by_speed = predict(given, model.costs, model.machine, ROWS)
    assert by_speed.fits and by_speed.seconds <= 1.01 * min(fitting.values())


@pytest.mark.parametrize("name", ["ratios", "unequal"])
def test_rows_stay_even_where_a_split_gives_a_rank_more_to_do_and_others_gain_nothing(init, name):  # noqa: F811
    with record.recording():
        _begin(init, name, auto__balance=SPEED)
        rewritten()
        assert decided(record.strategy_of(Graph.get()))[KEY] == "even"


def test_a_search_tries_rows_by_speed_where_devices_differ(init, tmp_path):  # noqa: F811
    config = {"auto__machine": _machine(tmp_path, {}), "auto__rows": 16 * ROWS}  # a split sends them all
    init(2, annotate=False, auto__planner="search", auto__steps=0, **config)
    _minimize()
    found = Graph.get().state_of(SearchResult)
    assert found.chosen.candidate.name.endswith("rows by speed")
    assert Env.get().config.auto.balance not in ("even", SPEED)
    seconds = {one.candidate.name: one.outcome.seconds for one in found.compared if one.fits}
    name = found.chosen.candidate.name
    assert seconds[name] < 0.7 * seconds[name.rpartition(", rows by speed")[0]]
    assert SPEED not in {decided(one.candidate.strategy)[KEY] for one in found.compared}


@pytest.mark.parametrize("config", [{"auto__machine": "2*v100-16"}, {"auto__balance": "even"}])
def test_a_search_leaves_rows_of_equal_devices_and_of_the_user_even(init, tmp_path, config):  # noqa: F811
    config = {"auto__machine": _machine(tmp_path, {}), "auto__rows": ROWS, **config}
    init(2, annotate=False, auto__planner="search", auto__steps=0, **config)
    _minimize()
    found = Graph.get().state_of(SearchResult)
    assert {decided(one.candidate.strategy)[KEY] for one in found.compared} == {"even"}
