"""A split that nothing differentiates is computed whole by each process, whatever devices it would be trained on."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.runtime import server


def beside():
    return epl.replicate(1), epl.split(2)


@contextlib.contextmanager
def stage():
    with epl.replicate(1), epl.split(2):
        yield


def inside():
    return epl.replicate(1), stage()


@pytest.mark.parametrize(
    "scopes, workers",
    [
        (beside, 2),
        (beside, 3),
        (inside, 2),
        *[pytest.param(*case, marks=pytest.mark.long) for case in ((beside, 4), (inside, 3), (inside, 4))],
    ],
)
def test_each_process_computes_it_by_itself(init, scopes, workers):
    """Workers of one device each: fewer than one model replica has, as many, or more."""
    init(1, annotate=False)
    hosts = [f"localhost:{port}" for port in range(1, workers + 1)]
    Env.get().use(epl.Cluster(worker_hosts=hosts, worker_index=1, layout="auto"))
    x = tf.placeholder(tf.float32, [None, 8])
    first, second = scopes()
    with first:
        features = tf.layers.dense(x, 4)
    with second:
        logits = tf.layers.dense(features, 1001)
    with tf.Session() as sess:
        assert not server.is_connected(sess)
        sess.run(tf.global_variables_initializer())
        assert sess.run(logits, {x: np.ones([3, 8])}).shape == (3, 1001)
