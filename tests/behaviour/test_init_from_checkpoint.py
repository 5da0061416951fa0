"""tf.train.init_from_checkpoint, called before and after what trains: as on one device, parts of variables too."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense

VALUES = {"hidden/kernel": [FEATURES, 8], "hidden/bias": [8], "out/kernel": [8, CLASSES]}


def _write(path: str) -> str:
    """A checkpoint in which no two rows are alike; returns its path."""
    random = np.random.RandomState(5)
    with tf.Graph().as_default(), tf.Session() as sess:
        for name, shape in VALUES.items():
            tf.get_variable(name, initializer=random.uniform(-0.5, 0.5, shape).astype(np.float32))
        sess.run(tf.global_variables_initializer())
        return tf.train.Saver().save(sess, path)


def _load(path: str, by_object: bool) -> None:
    names = sorted(VALUES)
    objects = [variable for name in names for variable in tf.trainable_variables() if variable.name == name + ":0"]
    tf.train.init_from_checkpoint(path, dict(zip(names, objects if by_object else names)))


def _train(ctx: Context, path: str, resource: bool, after: bool, by_object: bool, **config: Any) -> None:
    ctx.init(**config)
    data = samples()
    with tf.variable_scope("", use_resource=resource):
        x, y = tf.placeholder(tf.float32, [None, FEATURES]), tf.placeholder(tf.int32, [None])
        loss = cross_entropy(y, dense(dense(x, 8, "hidden", tf.nn.tanh), CLASSES, "out"))
    if not after:
        _load(path, by_object)
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss)
    if after:
        _load(path, by_object)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)


@pytest.mark.grid
@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)
@pytest.mark.parametrize("level,resource", [("", False), ("v1", False), ("v2", True)])
def test_values_are_loaded(oracle: Oracle, tmp_path: Any, topology: Any, level: str, resource: bool) -> None:
    path = _write(str(tmp_path / "model"))
    oracle.check(
        topology, _train, path=path, resource=resource, after=bool(level), by_object=resource, zero__level=level
    )
