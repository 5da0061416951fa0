"""What the planner decides for models in a graph: all that is open, or the rows of replicas alone."""

import contextlib
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Strategy
from epl.parallel.strategy import record
from epl.planner.prediction.layout import decided
from epl.planner.search.decision import SearchResult
from epl.planner.search.stage_search import StageSearch
from epl.utils.errors import PlanError
from tests.parallel.in_process import init  # noqa: F401

UNEQUAL = {
    "devices": {"small": {"preset": "v100-16", "flops": {"contraction": {"float32": "4 TFLOP/s"}}}},
    "nodes": [{"devices": ["1*v100-16", "1*small"], "links": ["pcie3"]}],
}


def _minimize(rows=None, width=64, layers=4):
    x = tf.placeholder(tf.float32, [rows, width], "x")
    hidden = x
    for _ in range(layers):
        hidden = tf.layers.dense(hidden, width, tf.nn.relu)
    loss = tf.reduce_mean(tf.square(hidden))
    return x, loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def _machine(tmp_path, plain):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(plain))
    return str(path)


def test_a_search_finds_a_plan_that_trains_as_one_device(init):  # noqa: F811
    feed = np.random.RandomState(0).rand(16, 64).astype(np.float32)
    losses = []
    for devices, config in (
        (1, {}),
        (4, {"auto__planner": "search", "auto__steps": 0, "auto__machine": "4*v100-16", "auto__rows": 16}),
    ):
        init(devices, annotate=False, **config)
        tf.set_random_seed(1)
        x, loss, train = _minimize()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses.append([session.run([loss, train], {x: feed})[0] for _ in range(3)])
    found = Graph.get().state_of(SearchResult)
    fitting = [one.outcome.seconds for one in found.compared if one.fits]
    assert len(fitting) > 20 and found.chosen.outcome.seconds <= 1.01 * min(fitting)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_memory_decides_where_it_is_short(init, tmp_path):  # noqa: F811
    machine = {"devices": {"tiny": {"preset": "v100-16", "memory": "36 MB"}}, "nodes": ["4*tiny"]}
    config = {"auto__planner": "search", "auto__steps": 0, "auto__rows": 16}
    init(4, annotate=False, auto__machine=_machine(tmp_path, machine), **config)
    _minimize(width=768)
    found = Graph.get().state_of(SearchResult)
    as_it_is = next(one for one in found.compared if one.candidate.name == "the script as it is")
    assert as_it_is.outcome.lacks and found.chosen.fits
    machine["devices"]["tiny"]["memory"] = "1 MB"
    init(4, annotate=False, auto__machine=_machine(tmp_path, machine), **config)
    with pytest.raises(PlanError, match="candidates fits the memory of the devices"):
        _minimize(width=768)


@pytest.mark.parametrize("is_recording", [True, False])
def test_ctrl_c_while_stages_are_cut_ends_the_search_alone(init, monkeypatch, is_recording):  # noqa: F811
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(StageSearch, "candidates", interrupted)
    monkeypatch.setattr(record, "is_recording", lambda: is_recording)
    init(4, annotate=False, auto__planner="search", auto__machine="4*v100-16", auto__rows=16)
    with contextlib.ExitStack() if is_recording else pytest.raises(KeyboardInterrupt):
        _minimize()
    if is_recording:
        found = Graph.get().state_of(SearchResult)
        assert found.chosen.candidate.name == "the script as it is" and found.by_blocks == ""
        assert found.left_out.endswith(
            "pipelines of 2, 4 stages that are cut for their devices: not simulated, as Ctrl-C ended the search"
        )


def _trained_batches(found):
    """(stages, micro batches) of the candidates that can be simulated."""
    return {
        (len(one.candidate.strategy.blocks), decided(one.candidate.strategy)["pipeline.num_micro_batch"])
        for one in found.compared
        if one.outcome
    }


@pytest.mark.parametrize("config", [{}, {"auto__auto_parallel": True, "pipeline__num_micro_batch": 4}])
def test_a_number_of_stages_of_the_user_stays(init, config):  # noqa: F811
    init(
        4,
        annotate=False,
        auto__planner="search",
        auto__steps=0,
        auto__machine="4*v100-16",
        pipeline__num_stages=2,
        **config,
    )
    _minimize(rows=8 if config else None)
    trained = _trained_batches(Graph.get().state_of(SearchResult))
    assert {stages for stages, _ in trained} == {2} and (not config or trained == {(2, 4)})
    assert len(transformation.transform().plan.stages) == 2
    init(4, annotate=False, auto__planner="search", auto__steps=0, auto__machine="4*v100-16", pipeline__num_stages=3)
    with pytest.raises(PlanError, match="pipeline.num_stages is 3, and no candidate of the search has as many"):
        _minimize()


def test_rows_by_speed(init, tmp_path):  # noqa: F811
    init(2, annotate=False, auto__balance="speed", auto__machine=_machine(tmp_path, UNEQUAL), auto__rows=4096)
    _minimize(width=2048)
    shares = transformation.transform().plan.row_shares
    assert shares[0] > shares[1] > 0
    assert Env.get().config.provenance("auto.balance") == "planner"
    assert epl.local_rows(64) == 64


@pytest.mark.parametrize("config", [{"auto__balance": "speed"}, {"auto__planner": "search", "auto__steps": 0}])
def test_a_model_that_is_built_again_is_trained_by_the_same_strategy(init, config):  # noqa: F811
    init(2, annotate=False, auto__machine="2*v100-16", **config)
    used = []
    for _ in range(2):
        with tf.Graph().as_default() as graph:
            _minimize()
            used.append(Graph.of(graph).state_of(Strategy))
            assert transformation.transform().plan.owners == (0, 0)
    assert used[0] is not None and used[0] is used[1]
    with tf.Graph().as_default():
        with pytest.raises(PlanError, match=r"\(call it again before the next one\), was made for another model"):
            _minimize(width=32)


def test_rows_by_speed_of_equal_devices_are_even(init):  # noqa: F811
    init(2, annotate=False, auto__balance="speed", auto__machine="2*v100-16")
    _minimize()
    assert transformation.transform().plan.row_shares == ()


def test_search_finds_rows_by_speed_too(init, tmp_path):  # noqa: F811
    config = {"auto__planner": "search", "auto__steps": 0, "auto__balance": "speed", "auto__rows": 4096}
    init(2, annotate=False, auto__machine=_machine(tmp_path, UNEQUAL), **config)
    _minimize(width=2048)
    chosen = Graph.get().state_of(SearchResult).chosen.candidate.strategy
    assert strategies.from_json(strategies.to_json(chosen)) == chosen
    if len(chosen.blocks) == 1:
        assert Env.get().config.auto.balance not in ("even", "speed")


def test_what_is_asked_wrongly(init):  # noqa: F811
    init(2, annotate=False, auto__balance="speed", auto__auto_parallel=True, pipeline__num_stages=2)
    with pytest.raises(PlanError, match="the rows depend on stages that are found later"):
        _minimize()
    init(4, annotate=False, auto__planner="search", auto__steps=0, auto__machine="2*v100-16")
    with pytest.raises(PlanError, match=r"room for 0 worker\(s\) of 4 device\(s\)"):
        _minimize()
    init(4, annotate=False, auto__planner="search", auto__steps=0, auto__machine="2*v100-17")
    with pytest.raises(PlanError, match="v100-16"):
        _minimize()
    init(2, annotate=False, auto__planner="search", auto__steps=0, auto__plan_file="plan.json")
    with pytest.raises(PlanError, match="Leave one of them out"):
        _minimize()
    wanted = {"auto__planner": "search", "auto__steps": 0, "auto__balance": "speed", "auto__machine": "2*v100-16"}
    init(2, annotate=False, auto__rows=1, pipeline__num_stages=1, **wanted)  # 2 stages would do with a row
    with pytest.raises(PlanError, match="A batch of 1 rows cannot be shared out"):
        _minimize()


def test_stages_are_cut_for_devices_of_different_speed_and_train_as_one_device(init, tmp_path):  # noqa: F811
    feed = np.random.RandomState(0).rand(4096, 64).astype(np.float32)
    speeds = {"fast": "3 GFLOP/s", "slow": "1 GFLOP/s"}
    kinds = {name: {"preset": "v100-16", "flops": {"contraction": {"float32": rate}}} for name, rate in speeds.items()}
    where = _machine(tmp_path, {"devices": kinds, "nodes": [{"devices": ["2*fast", "2*slow"], "links": ["pcie3"]}]})
    losses = []
    search = {"auto__planner": "search", "auto__machine": where, "auto__rows": 4096, "pipeline__num_stages": 2}
    for devices, config in ((1, {}), (4, search)):
        init(devices, annotate=False, **config)
        tf.set_random_seed(1)
        x, loss, train = _minimize(layers=8)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses.append([session.run([loss, train], {x: feed})[0] for _ in range(3)])
    strategy = Graph.get().state_of(SearchResult).chosen.candidate.strategy
    layers = [sum(op.type == "MatMul" and op.block == block for op in strategy.ops) for block in (0, 1)]
    assert layers == [6, 2] and [block.devices for block in strategy.blocks] == [2, 2]
    stages = Graph.get().rewritten.plan.stages
    assert [[name[-1] for name in one.devices] for one in stages] == [["0", "1"], ["2", "3"]]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
