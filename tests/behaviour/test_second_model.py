"""A second model in one process: a cell of a notebook that runs twice, a sweep over parameters."""

import contextlib
import logging
from typing import Any, Dict

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.utils.errors import PlanError
from tests.behaviour.small import Small
from tests.parallel import in_process
from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense

init = in_process.init  # found here by pytest

KINDS: Dict[str, Dict[str, Any]] = {
    "data_parallel": {},
    "pipeline": {"pipeline__num_micro_batch": 2},
    "split": {"cluster__colocate_split_and_replicate": True},
    "zero": {"zero__level": "v2"},
}


def _scope(ctx: Context, kind: str) -> Any:
    """Of the second half of the model."""
    if not ctx.planned or kind in ("data_parallel", "zero"):
        return contextlib.ExitStack()
    return epl.split() if kind == "split" else epl.replicate(1)


def _two_models(ctx: Context, kind: str) -> None:
    """The same lines twice, as a notebook runs them: the names of the variables are the same, the rate is not.

    In float64, so that rounding hides nothing.
    """
    ctx.stages = 2 if kind == "pipeline" else 1
    data = samples()
    for rate in (0.1, 0.03):
        if not ctx.planned:
            tf.reset_default_graph()
        ctx.init(annotate=kind != "pipeline", **KINDS[kind])
        x, y = tf.placeholder(tf.float64, [None, FEATURES], "x"), tf.placeholder(tf.int32, [None], "y")
        with ctx.scope() if kind == "pipeline" else contextlib.ExitStack():
            hidden = dense(x, 8, "hidden", tf.nn.tanh)
        with _scope(ctx, kind):
            loss = cross_entropy(y, dense(hidden, CLASSES, "out"))
        train_op = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss)
        sess = tf.Session()  # of the first model, it stays open
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_same_model_again(oracle: Oracle, kind: str) -> None:
    oracle.check((2, 2), _two_models, kind=kind)


def _train() -> None:
    linear = in_process.Linear()
    train_op = linear.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, linear.feed())


def test_it_is_said_once_that_the_default_graph_is_new(init: Any, monkeypatch: Any, caplog: Any) -> None:
    init()
    monkeypatch.setattr(Env.get(), "_said", set())
    for _ in range(3):
        _train()
        _begin()
        assert not tf.get_default_graph().get_operations()
    assert [record.levelno for record in caplog.records if "called again" in record.message] == [logging.WARNING]


def test_the_first_init_and_one_ahead_of_any_op_keep_the_graph(init: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(Env.get(), "inits", 0)
    early = tf.constant(1.0)
    config = epl.Config({"cluster.device_type": "cpu"})
    epl.init(config)
    assert tf.get_default_graph() is early.graph
    tf.reset_default_graph()
    tf.set_random_seed(3)
    epl.init(config)
    assert tf.get_default_graph().seed == 3


def _begin() -> None:
    """As a script does that keeps its configuration."""
    epl.init(Env.get().config)
    epl.set_default_strategy(epl.replicate(1))


@pytest.mark.parametrize("config", [{}, {"zero__level": "v1"}], ids=["data_parallel", "zero"])
def test_a_second_model_next_to_replicas_of_an_earlier_one_is_refused(init: Any, config: Any) -> None:
    init(**config)
    with tf.Graph().as_default() as graph:
        _begin()
        with tf.variable_scope("first"):
            _train()
        _begin()
        assert tf.get_default_graph() is graph
        with tf.variable_scope("second"), pytest.raises(PlanError, match="trained before epl.init was called again"):
            _train()
        with tf.Graph().as_default():
            _train()


def test_on_one_device_a_second_model_is_trained_in_the_same_graph(init: Any) -> None:
    init(1)
    with tf.Graph().as_default():
        for scope in ("first", "second"):
            _begin()
            with tf.variable_scope(scope):
                _train()
        assert Graph.get().rewritten.is_plain


def test_under_zero_a_second_model_without_another_init_is_refused(init: Any) -> None:
    init(zero__level="v1")
    _train()
    with tf.variable_scope("second"), pytest.raises(PlanError, match="rewritten for 2 devices.*call epl.init again"):
        Small(prefix="second_")
