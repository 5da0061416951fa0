"""A model trained by the strategy of a file is planned as the one that the strategy was recorded of."""

import contextlib
import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan import plan as plans
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.sections import PartitionSection, SplitSection
from epl.parallel.strategy import record, replay
from epl.utils.errors import PlanError
from tests.parallel.in_process import rewritten


def _model(width=8, prefix=""):
    """Two dense layers, and a loss on random rows."""
    x = tf.placeholder(tf.float32, [None, 4], prefix + "x")
    with tf.variable_scope(prefix + "one"):
        hidden = tf.layers.dense(x, width, tf.tanh)
    with tf.variable_scope(prefix + "two"):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 3)))
    return x, loss


def _scoped_model(counts=(1, 1)):
    x = tf.placeholder(tf.float32, [None, 4], "x")
    with epl.replicate(counts[0], "one"):
        hidden = tf.layers.dense(x, 8, tf.tanh, name="one")
    with epl.replicate(counts[1], "two"):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 3, name="two")))
    return x, loss


def _recorded(build):
    """The strategy of a model, and its plan."""
    with record.recording():
        _, loss = build()
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        plan = rewritten().plan
        return record.strategy_of(Graph.get()), plan


def _saved(tmp_path, strategy):
    path = tmp_path / "plan.json"
    path.write_text(strategies.to_json(strategy))
    return str(path)


AUTO = {"auto__auto_parallel": True, "pipeline__num_stages": 2, "pipeline__num_micro_batch": 2}


def test_recorded_strategy_has_blocks_settings_and_ops(init):
    init(2, annotate=False, **AUTO)
    strategy, plan = _recorded(_model)
    assert strategy.blocks_origin == plans.section(plan, PartitionSection).policy
    assert [block.kind for block in strategy.blocks] == ["replicate", "replicate"]
    assert {op.block for op in strategy.ops} == {0, 1}
    assert strategy.ops[0].type == "Placeholder" and strategy.ops[0].outputs == ("float32[?,4]",)
    assert {one.key: (one.value, one.origin) for one in strategy.settings}["pipeline.num_micro_batch"] == ("2", "code")
    assert strategies.from_json(strategies.to_json(strategy)) == strategy


@pytest.mark.parametrize(
    "config",
    [
        AUTO,
        {"zero__level": "v1", "pipeline__num_micro_batch": 2},
        {"zero__level": "v2", "gradient_checkpoint__type": "auto", "pipeline__num_micro_batch": 1},
        {"auto__balance": "3:1", "optimizer__num_apply_group": 2},
    ],
    ids=["pipeline", "ZeRO v1", "ZeRO v2", "uneven rows"],
)
def test_unannotated_model_is_trained_by_a_strategy_with_equal_plan(init, tmp_path, config):
    init(2, annotate=False, **config)
    strategy, plan = _recorded(_model)
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy))
    again, same = _recorded(_model)
    micro_batches = config.get("pipeline__num_micro_batch", 1)
    assert Env.get().config.pipeline.num_micro_batch == micro_batches
    assert Env.get().config.provenance("pipeline.num_micro_batch") == "planner"
    assert strategies.differences(again, strategy) == []
    assert plans.first_difference(plans.renamed(same, plan.name), plan) is None
    assert plans.plan_hash(plans.renamed(same, plan.name)) == plans.plan_hash(plan)
    assert again.blocks_origin == strategy.blocks_origin
    assert [op.block for op in again.ops] == [op.block for op in strategy.ops]


def test_renamed_model_is_the_same_model(init, tmp_path):
    init(2, annotate=False, **AUTO)
    strategy, plan = _recorded(_model)
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy))
    same = _recorded(lambda: _model(prefix="renamed_"))[1]
    assert same.stages == plan.stages and same.schedule == plan.schedule


def test_trains_as_the_script_that_was_recorded(init, tmp_path):
    losses, path = [], ""
    for _ in range(2):
        init(2, annotate=False, auto__plan_file=path, **(AUTO if not path else {}))
        tf.set_random_seed(1)
        x, loss = _model()
        with record.recording():
            train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            feed = {x: np.random.RandomState(0).randn(8, 4)}
            losses.append([sess.run([loss, train], feed)[0] for _ in range(3)])
        path = _saved(tmp_path, record.strategy_of(Graph.get()))
    assert losses[0] == losses[1] and losses[0][0] > losses[0][-1]


def test_scopes_of_the_script_must_be_the_blocks(init, tmp_path):
    init(2, annotate=False)
    strategy, _ = _recorded(_scoped_model)
    assert strategy.blocks_origin == strategies.SCOPES
    path = _saved(tmp_path, strategy)
    init(2, annotate=False, auto__plan_file=path)
    assert [op.block for op in _recorded(_scoped_model)[0].ops] == [op.block for op in strategy.ops]
    init(2, annotate=False, auto__plan_file=path)
    with pytest.raises(PlanError, match=r"has epl.replicate\(1\), and the strategy of .*plan.json.* has .*take the"):
        _recorded(lambda: _one_scope())


def _one_scope():
    with epl.replicate(1):
        return _unscoped()


def _unscoped():
    x = tf.placeholder(tf.float32, [None, 4], "x")
    hidden = tf.layers.dense(x, 8, tf.tanh, name="one")
    return x, tf.reduce_mean(tf.square(tf.layers.dense(hidden, 3, name="two")))


def test_strategy_of_scopes_makes_the_stages_of_a_script_without(init, tmp_path):
    init(2, annotate=False)
    strategy, plan = _recorded(_scoped_model)
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy))
    again, same = _recorded(_unscoped)
    assert [stage.devices for stage in same.stages] == [stage.devices for stage in plan.stages]
    assert [op.block for op in again.ops] == [op.block for op in strategy.ops]


def _split_model(scope=epl.split, most=1):
    """A layer before the split, and `most` layers in as many splits."""
    x = tf.placeholder(tf.float32, [None, 4], "x")
    hidden = tf.layers.dense(x, 64, tf.tanh, name="before")
    for number in range(most):
        with scope():
            hidden = tf.layers.dense(hidden, 64, name=f"split{number}")
            loss = tf.reduce_mean(tf.square(hidden), name=f"loss{number}")
    return x, loss


def test_a_split_holds_the_same_ops_in_a_script_without_scopes(init, tmp_path):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    strategy, plan = _recorded(_split_model)
    assert {op.name.split("/")[0]: op.block for op in strategy.ops}["before"] == strategies.OUTSIDE
    for scope in (epl.split, contextlib.suppress):
        init(2, annotate=False, cluster__colocate_split_and_replicate=True, auto__plan_file=_saved(tmp_path, strategy))
        again, same = _recorded(functools.partial(_split_model, scope))
        assert again.ops == strategy.ops
        mine, other = [plans.section(one, SplitSection) for one in (same, plan)]
        assert mine is not None and mine.groups == other.groups
        assert any(op.name.startswith("EPL_SPLIT/") for op in tf.get_default_graph().get_operations())


def test_ops_before_a_split_of_a_search_leave_the_scope_of_the_script(init):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    strategy, plan = _recorded(_split_model)

    def one_scope():
        with epl.replicate(1):
            return _split_model(contextlib.suppress)

    init(2, annotate=False, cluster__colocate_split_and_replicate=True, auto__planner="search")
    Env.get().find_strategy = lambda graph, ys, xs: strategy
    again, same = _recorded(one_scope)
    assert again.ops == strategy.ops
    assert plans.section(same, SplitSection).ops == plans.section(plan, SplitSection).ops
    assert "EPL_SPLIT/before/MatMul" not in [op.name for op in tf.get_default_graph().get_operations()]


def test_ops_before_several_splits_are_told_by_scopes_alone(init, tmp_path):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    path = _saved(tmp_path, _recorded(lambda: _split_model(most=2))[0])
    init(2, annotate=False, cluster__colocate_split_and_replicate=True, auto__plan_file=path)
    with pytest.raises(PlanError, match="has ops before its first scope, epl.split.None. .*Write the scopes"):
        _recorded(lambda: _split_model(contextlib.suppress, most=2))


def test_data_parallelism_of_one_block(init, tmp_path):
    init(2)
    strategy, plan = _recorded(_model)
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy))
    same = _recorded(_model)[1]
    assert plans.world_size(same) == 2 and same.stages == plan.stages


def test_another_model_is_refused(init, tmp_path):
    init(2)
    strategy, _ = _recorded(_model)
    init(2, auto__plan_file=_saved(tmp_path, strategy))
    with pytest.raises(PlanError, match=r"another model.*float32\[4,9\] here and .*float32\[4,8\] there, in block 0"):
        _recorded(lambda: _model(width=9))


def test_keys_of_the_user_are_never_changed(init, tmp_path):
    init(2, zero__level="v1")
    path = _saved(tmp_path, _recorded(_model)[0])
    init(2, auto__plan_file=path, zero__level="v0")
    with pytest.raises(PlanError, match="zero.level is 'v0' .from code., and the strategy of .* has 'v1'"):
        _recorded(_model)
    init(2, auto__plan_file=path, pipeline__num_stages=3)
    with pytest.raises(PlanError, match=r"num_stages is 3 .* has 1 block"):
        _recorded(_model)
    init(2, auto__plan_file=path)
    assert _recorded(_model)[0].settings != ()
    assert Env.get().config.zero.level == "v1"


@pytest.mark.parametrize("text, message", [("{", "no JSON"), (json.dumps({"a": 1}), "format"), (None, "No such file")])
def test_files_that_are_no_strategy(init, tmp_path, text, message):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    init(2, auto__plan_file=str(path))
    with pytest.raises(PlanError, match=f"auto.plan_file .*plan.json.* cannot be used: .*{message}.*epl-plan --save"):
        _recorded(_model)


def test_a_search_decides_what_the_script_leaves_open(init):
    init(2, annotate=False, **AUTO)
    strategy, plan = _recorded(_model)
    for build in (_model, lambda: _one_scope()):
        init(2, annotate=False, auto__planner="search")
        Env.get().find_strategy = lambda graph, ys, xs: strategy
        again, same = _recorded(build)
        assert len(same.stages) == 2 and same.schedule == plan.schedule
        assert Env.get().config.provenance("pipeline.num_micro_batch") == "planner"
        assert [op.block for op in again.ops] == [op.block for op in strategy.ops]


def test_workers_meet_before_worker_0_searches(init, monkeypatch):
    init(2)
    calls = []
    monkeypatch.setattr(Env.get(), "cluster", SimpleNamespace(worker_index=0, worker_num=2))
    monkeypatch.setattr(replay.agreement, "meet", lambda: calls.append("meet"))
    monkeypatch.setattr(replay.agreement, "from_worker_0", lambda what, text: text)
    told = replay._of_worker_0(lambda: calls.append("search") or replay._Told("found", ""))
    assert calls == ["meet", "search"] and told.text == "found"


def test_a_search_that_finds_nothing_is_an_error(init):
    def find(graph, ys, xs):
        raise PlanError("nothing fits")

    init(2, annotate=False, auto__planner="search")
    Env.get().find_strategy = find
    with pytest.raises(PlanError, match="^nothing fits$"):
        _recorded(_model)


def test_another_job_is_told(init, tmp_path, caplog):
    init(2)
    path = _saved(tmp_path, _recorded(_model)[0])
    init(4, auto__plan_file=path)
    _recorded(_model)
    assert "was made for 1 worker(s) x 2 CPU device(s), and the job has 1 x 4" in caplog.text


def test_a_job_whose_devices_do_not_do_is_refused(init, tmp_path):
    init(2, annotate=False, **AUTO)
    path = _saved(tmp_path, _recorded(_model)[0])
    for devices in (1, 3):
        init(devices, annotate=False, auto__plan_file=path)
        with pytest.raises(PlanError, match=rf"made for 1x2 devices .* its 2 block\(s\) do not fit the 1x{devices} of"):
            _recorded(_model)


def test_next_init_forgets_what_a_strategy_decided(init, tmp_path):
    init(2, zero__level="v1")
    path = _saved(tmp_path, _recorded(_model)[0])
    init(2, auto__plan_file=path)
    _recorded(_model)
    config = Env.get().config.copy()
    assert config.zero.level == "v1"
    tf.reset_default_graph()
    epl.init(config)
    assert config.zero.level == "" and config.provenance("zero.level") == "default"


def _hybrid_model(**scope):
    """A dense layer on each device's rows, and two in a split."""
    x = tf.placeholder(tf.float32, [None, 4], "x")
    with epl.replicate(1):
        hidden = tf.layers.dense(x, 8, tf.tanh, name="one")
    with epl.split(2, **scope):
        hidden = tf.layers.dense(hidden, 64, tf.nn.relu, name="two")
        loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 6, name="three")))
    return x, loss


SPLIT = {"cluster__colocate_split_and_replicate": True}


def test_choices_of_a_split_are_those_of_the_strategy(init, tmp_path, monkeypatch):
    init(2, annotate=False, **SPLIT)
    given = {"two/MatMul": "shard(1)", "three/MatMul": "partial"}
    strategy, plan = _recorded(lambda: _hybrid_model(choices=given))
    texts = {strategy.ops[one.op].name: one.placements for one in strategy.choices}
    assert texts["two/MatMul"].startswith("full, shard(1: 32+32) -> ") and texts["three/MatMul"].endswith("partial")
    other = [one._replace(placements="full, full -> full") for one in strategy.choices]
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy), **SPLIT)
    again, same = _recorded(_hybrid_model)
    assert again.choices == strategy.choices and again.blocks == strategy.blocks
    assert [one._replace(given=False) for one in plans.section(same, SplitSection).ops] == [
        one._replace(given=False) for one in plans.section(plan, SplitSection).ops
    ]
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy._replace(choices=tuple(other[:1]))), **SPLIT)
    with pytest.raises(PlanError, match="give other placements for it"):
        _recorded(lambda: _hybrid_model(choices=given))
    wrong = [one._replace(placements="shard(7) -> shard(7)") for one in strategy.choices]
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy._replace(choices=tuple(wrong))), **SPLIT)
    with pytest.raises(PlanError, match="cannot be computed so"):
        _recorded(_hybrid_model)


def test_a_split_of_the_strategy_makes_the_scopes(init, tmp_path):
    init(2, annotate=False, **SPLIT)
    strategy, plan = _recorded(lambda: _hybrid_model(ratios=[3, 1], choices={"two/MatMul": "shard(1)"}))
    init(2, annotate=False, auto__plan_file=_saved(tmp_path, strategy), **SPLIT)

    def build():
        x = tf.placeholder(tf.float32, [None, 4], "x")
        hidden = tf.layers.dense(tf.layers.dense(x, 8, tf.tanh, name="one"), 64, tf.nn.relu, name="two")
        return x, tf.reduce_mean(tf.square(tf.layers.dense(hidden, 6, name="three")))

    same = plans.section(_recorded(build)[1], SplitSection)
    assert same.variables == plans.section(plan, SplitSection).variables
    assert any(48 in variable.sizes for variable in same.variables)


def test_uneven_rows_are_part_of_a_strategy(init, tmp_path):
    init(2, auto__balance="3:1")
    strategy, plan = _recorded(_model)
    init(2, auto__plan_file=_saved(tmp_path, strategy))
    same = _recorded(_model)[1]
    assert same.row_shares == plan.row_shares == (3, 1)
    assert Env.get().config.provenance("auto.balance") == "planner"


def test_gradients_by_other_tensors_do_not_annotate_the_model(init, tmp_path):
    """A gradient penalty is differentiated first, and a key of training is set."""

    def with_penalty():
        x, loss = _model()
        loss += tf.reduce_mean(tf.square(tf.gradients(loss, x)[0]))
        return x, loss

    init(2, annotate=False, **AUTO)
    path = _saved(tmp_path, _recorded(with_penalty)[0])
    init(2, annotate=False, auto__plan_file=path, pipeline__num_micro_batch=2)
    assert len(_recorded(with_penalty)[1].stages) == 2


def test_a_strategy_of_the_script_stays_with_automatic_stages(init, tmp_path):
    init(2, annotate=False, **AUTO)
    path = _saved(tmp_path, _recorded(_model)[0])
    init(4, annotate=False, auto__plan_file=path, **AUTO)
    epl.set_default_strategy(epl.replicate(2))
    with pytest.raises(PlanError, match=r"The script has epl.replicate\(2\), and the strategy of"):
        _recorded(_model)


@pytest.mark.parametrize("annotate", [False, True])
def test_gradients_of_a_tape_would_ignore_the_strategy(init, tmp_path, annotate):
    init(2)
    path = _saved(tmp_path, _recorded(_model)[0])
    init(2, annotate=annotate, auto__plan_file=path)
    weight = tf.get_variable("w", [3], use_resource=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(weight))
    gradient = tape.gradient(loss, weight)
    with pytest.raises(PlanError, match="whose strategy was not used: no call of tf.gradients"):
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, weight)])
