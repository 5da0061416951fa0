"""A training step that a script builds after the first run of the graph: Keras compiles again, a second optimizer."""

from typing import Any, List, Sequence

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel import in_process
from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense

init = in_process.init  # found here by pytest

TOPOLOGIES = [(1, 2), (2, 1), (1, 1)]


def _second_optimizer(ctx: Context, resource: bool) -> None:
    """A loss with a decay of weights and a variable of its own, and another optimizer, after three steps."""
    ctx.init()
    data = samples()
    with tf.variable_scope("model", use_resource=resource):
        x, y = tf.placeholder(tf.float32, [None, FEATURES]), tf.placeholder(tf.int32, [None])
        hidden = dense(x, 8, "hidden", tf.nn.tanh)
        loss = cross_entropy(y, dense(hidden, CLASSES, "out"))
        first = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, tf.train.get_or_create_global_step())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feeds = [{x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)} for step in range(STEPS)]
        for feed in feeds[:3]:
            ctx.record(loss=sess.run([loss, first], feed)[0])
        known = set(tf.global_variables())
        with tf.variable_scope("later", use_resource=resource):
            again = cross_entropy(y, dense(hidden, CLASSES, "second_out"))
            again += 0.1 * tf.reduce_mean(tf.square(hidden))
            second = tf.train.AdamOptimizer(0.05).minimize(again, tf.train.get_or_create_global_step())
        sess.run(tf.variables_initializer([v for v in tf.global_variables() if v not in known]))
        for feed in feeds:  # one after the other
            ctx.record(loss=sess.run([again, second], feed)[0])
            ctx.record(loss=sess.run([loss, first], feed)[0])
        third = tf.train.GradientDescentOptimizer(0.01).minimize(loss + again)
        ctx.record(loss=sess.run([loss, third], feeds[0])[0])
        ctx.record_variables(sess)


@pytest.mark.parametrize("resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_second_optimizer_after_the_first_steps(oracle: Oracle, topology: Sequence[int], resource: bool) -> None:
    oracle.check(topology, _second_optimizer, resource=resource)


def _model() -> tf.keras.Model:
    layers = tf.keras.layers
    draw = tf.keras.initializers.glorot_uniform
    hidden = [layers.Dense(8, "tanh", kernel_initializer=draw(3 + i), name="hidden%d" % i) for i in range(2)]
    return tf.keras.Sequential([layers.InputLayer((FEATURES,)), *hidden, layers.Dense(1, kernel_initializer=draw(9))])


def _keras(ctx: Context, how: str) -> None:
    """Fits, changes what is trained, and fits again."""
    ctx.init()
    data = samples()
    x = ctx.stream(data.x)
    y = np.sum(np.abs(x[:, :3]), axis=1, keepdims=True)
    rows = ctx.process_batch
    model = _model()

    def compiled(rate: float) -> None:
        model.compile(tf.keras.optimizers.SGD(rate, momentum=0.9), "mse")

    def fit(**keywords: Any) -> None:
        found: List[float] = []
        told = tf.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: found.append(logs["loss"]))
        model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, callbacks=[told], **keywords)
        for loss in found:
            ctx.record(loss=loss)

    compiled(0.05)
    fit()
    if how == "sample_weight":
        fit(sample_weight=np.abs(x[:, 0]) + 0.5)
        fit()
    elif how == "freeze":
        model.layers[0].trainable = False
        compiled(0.05)
        fit()
        model.layers[0].trainable = True
        compiled(0.01)
        fit()
    elif how == "rate":
        compiled(0.005)
        fit(epochs=2)
    elif how == "load":
        path = ctx.temporary_directory() + "/best.h5"
        model.save(path)
        model = tf.keras.models.load_model(path)
        fit(epochs=2)
    for loss in [model.evaluate(x, y, batch_size=rows, verbose=0)] * 2:
        ctx.record(loss=loss)
    ctx.record_variables(tf.keras.backend.get_session(), model.weights)


@pytest.mark.grid
@pytest.mark.parametrize("how", ["sample_weight", "freeze", "rate", "load"])
@pytest.mark.parametrize("topology", [(1, 2), (2, 1)])
def test_keras_goes_on_with_another_training_function(oracle: Oracle, topology: Sequence[int], how: str) -> None:
    oracle.check(topology, _keras, how=how)


def test_a_write_that_is_built_late_keeps_the_rows_of_its_replica_and_is_told(init, caplog):
    init(2)
    x = tf.placeholder(tf.float32, [None, 2])
    w = tf.get_variable("w", [2, 1], initializer=tf.ones_initializer())
    mean, bank = [
        tf.get_variable(name, [2], initializer=tf.zeros_initializer(), trainable=False) for name in ("mean", "bank")
    ]
    first = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.matmul(x, w)))
    early = mean.assign(tf.reduce_mean(x, 0))
    rows = np.arange(8.0).reshape(4, 2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run([first, early], {x: rows})
        assert session.run(mean).tolist() == rows.mean(0).tolist()
        second = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(w)) + tf.reduce_mean(x))
        late = bank.assign(tf.reduce_mean(x, 0))
        session.run([second, early, late], {x: rows})
        assert session.run(mean).tolist() == rows.mean(0).tolist()
    assert "writes `bank` from the rows of each replica" in caplog.text and "`mean`" not in caplog.text
