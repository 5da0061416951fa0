"""A script with `epl.split` keeps its shards, whatever the planner decides: its ratios and choices are followed."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan import plan as plans
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.sections import SplitSection
from epl.parallel.strategy import record
from epl.planner.search.decision import SearchResult
from tests.parallel.in_process import init, rewritten  # noqa: F401

WIDE = 1003
ROWS = 24
ANY = contextlib.ExitStack  # in place of a scope


class Model:
    """A wide softmax after two layers; `scopes` are those of the layers, and of the softmax with its loss."""

    def __init__(self, scopes):
        layers, head = scopes
        start = tf.random_normal_initializer(stddev=0.05, seed=1)
        self.x = tf.placeholder(tf.float32, [None, 16], "x")
        self.y = tf.placeholder(tf.int32, [None], "y")
        with layers():
            hidden = tf.layers.dense(self.x, 256, tf.tanh, kernel_initializer=start, name="first")
            hidden = tf.layers.dense(hidden, 64, kernel_initializer=start, name="second")
        with head():
            logits = tf.layers.dense(hidden, WIDE, kernel_initializer=start, name="head")
            self.loss = tf.losses.sparse_softmax_cross_entropy(self.y, logits)
        epl.add_to_collection(self.loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        self.train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(self.loss)

    def losses(self, steps=3):
        """The losses of some steps, and all trained values after them."""
        random = np.random.RandomState(0)
        feed = {self.x: random.rand(ROWS, 16), self.y: random.randint(0, WIDE, ROWS)}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([self.loss, self.train], feed)[0] for _ in range(steps)]
            return [np.asarray(losses), *session.run(tf.trainable_variables())]


@contextlib.contextmanager
def _stage(count):
    with epl.replicate(1), epl.split(count):
        yield


# By script: devices, keys of the configuration, and scopes.
SCRIPTS = {
    "split": (2, {}, (lambda: epl.replicate(1), lambda: epl.split(2))),
    "all": (2, {}, (epl.split, ANY)),
    "groups": (4, {}, (lambda: epl.replicate(1), lambda: epl.split(2))),
    "ratios": (2, {}, (lambda: epl.replicate(1), lambda: epl.split(2, ratios=[3, 1]))),
    "choices": (2, {}, (lambda: epl.replicate(1), lambda: epl.split(2, choices={"head/MatMul": "shard(1)"}))),
    "stages": (4, {"pipeline__num_micro_batch": 3}, (lambda: _stage(2), lambda: _stage(2))),
    "unequal": (2, {}, (lambda: epl.replicate(2), lambda: epl.replicate(1))),
}
TOGETHER = {"cluster__colocate_split_and_replicate": True}
PLANNERS = {
    "search": {"auto__planner": "search", "auto__steps": 0},
    "speed": {"auto__balance": "speed"},
}


def _config(name, **config):
    devices, own, _ = SCRIPTS[name]
    shared = {} if name == "stages" else TOGETHER
    return devices, {**shared, **own, "auto__rows": ROWS, "auto__machine": f"{devices}*v100-16", **config}


def _begin(init, name, **config):  # noqa: F811
    devices, values = _config(name, **config)
    init(devices, annotate=False, **values)
    tf.set_random_seed(1)
    return Model(SCRIPTS[name][2])


def _section(plan):
    """What is cut, and how; whose choices they are does not count."""
    found = plans.section(plan, SplitSection)
    return found._replace(ops=tuple(one._replace(given=False) for one in found.ops))


def _saved(tmp_path, strategy):
    path = tmp_path / "plan.json"
    path.write_text(strategies.to_json(strategy))
    return str(path)


@pytest.mark.grid
@pytest.mark.parametrize("planner", sorted(PLANNERS))
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_shards_are_those_of_the_script(init, tmp_path, name, planner):  # noqa: F811
    _begin(init, name)
    own = _section(rewritten().plan)
    assert own.variables and any(one.sizes for one in own.variables)
    with record.recording():
        _begin(init, name, **PLANNERS[planner])
        assert _section(rewritten().plan) == own
        graph = Graph.get()
        strategy = record.strategy_of(graph)
        found = graph.state_of(SearchResult)
    assert strategy.choices
    if found is not None:
        assert all(one.candidate.strategy.choices == strategy.choices for one in found.compared)
    _begin(init, name, auto__plan_file=_saved(tmp_path, strategy))
    assert _section(rewritten().plan) == own


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_numbers_are_those_of_one_device(init, tmp_path, name):  # noqa: F811
    init(1, annotate=False)
    tf.set_random_seed(1)
    expected = Model((ANY, ANY)).losses()
    with record.recording():
        _begin(init, name, **PLANNERS["search"])
        rewritten()
        strategy = record.strategy_of(Graph.get())
    for config in (*PLANNERS.values(), {"auto__plan_file": _saved(tmp_path, strategy)}):
        found = _begin(init, name, **config).losses()
        for value, wanted in zip(found, expected):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
