"""TensorFlow leaves out its search for what XLA could compile, unless something asks for XLA."""

import logging
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

from epl.runtime import xla_clustering
from tests.parallel.in_process import Linear

SCRIPT = """
import contextlib
import sys
import tensorflow.compat.v1 as tf
import epl

epl.init(epl.Config({"cluster.num_virtual_devices": 2}))
scope = tf.xla.experimental.jit_scope if sys.argv[1] == "jit" else contextlib.ExitStack
with epl.replicate(1), scope():
    x = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
"""


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A process in which nothing is decided yet."""
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    fresh = xla_clustering._Process()
    monkeypatch.setattr(xla_clustering, "_process", fresh)
    return fresh


def flags(graph=None, config=None):
    with xla_clustering.left_out(graph or tf.Graph(), config):
        return os.environ.get("TF_XLA_FLAGS")


def with_jit():
    proto = tf.ConfigProto()
    proto.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    return proto


def with_scope():
    with tf.Graph().as_default() as graph, tf.xla.experimental.jit_scope():
        tf.constant(1.0) + 1.0
    return graph


def test_the_first_session_is_made_without_fuel_and_the_variable_is_taken_back():
    assert flags() == "--tf_xla_clustering_fuel=0"
    assert "TF_XLA_FLAGS" not in os.environ
    assert flags() is None  # TensorFlow has read it


@pytest.mark.parametrize("asks", [{"config": with_jit}, {"graph": with_scope}])
def test_a_first_session_that_asks_for_xla_has_it(asks):
    assert flags(**{name: make() for name, make in asks.items()}) is None
    assert flags() is None  # all sessions of a process have the same flags


def test_a_first_session_without_a_configuration_has_what_tf_config_was_told(monkeypatch):
    monkeypatch.setattr(context, "_context", context.Context())
    tf.config.optimizer.set_jit(True)
    assert flags() is None


def test_flags_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_min_cluster_size=2")
    assert flags() == "--tf_xla_min_cluster_size=2" == os.environ["TF_XLA_FLAGS"]


def test_who_asks_too_late_is_told_once(init, process, caplog):
    init()
    model = Linear()
    model.minimize()
    process.left_out = True  # by an earlier session
    with caplog.at_level(logging.WARNING, "epl"):
        for config in (None, with_jit(), with_jit()):
            with tf.Session(config=config) as sess:
                sess.run(tf.global_variables_initializer())
    assert [record.getMessage()[:23] for record in caplog.records if "XLA" in record.getMessage()] == [
        "A session asks for XLA,"
    ]


@pytest.mark.parametrize("kind, is_left_out", [("plain", True), ("jit", False)])
def test_tensorflow_does_so(kind, is_left_out):
    environment = dict(os.environ, TF_CPP_VMODULE="mark_for_compilation_pass=5", TF_CPP_MIN_LOG_LEVEL="0")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert ("Hit fuel limit" in done.stdout) == is_left_out, done.stdout
