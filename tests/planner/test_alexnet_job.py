"""The strategies that a search finds for FlexFlow's AlexNet, trained for real at an eighth of the width.

In float64, so that the order in which devices add the same numbers counts for nothing.
"""

import json
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.launcher.run import run
from epl.parallel.plan.strategy import Strategy
from tests.planner.test_alexnet import machine

ROWS, STEPS = 8, 5


def train(plan_of):
    """Trains the model; (kinds of the blocks that were found, losses, variables).

    Args:
      plan_of: (rows, bandwidth) of the case that is searched; () to train on one device without EPL's planner.
    """
    search = {"auto.planner": "search", "auto.machine": "machine.json", "auto.steps": 20}
    epl.init(epl.Config({**search, "auto.rows": plan_of[0]}) if plan_of else None)
    tf.set_random_seed(1)
    x, y = tf.placeholder(tf.float64, [None, 227, 227, 3]), tf.placeholder(tf.int32, [None])
    hidden = x
    for width, kernel, stride, padding, pools in (
        (12, 11, 4, "valid", True), (32, 5, 1, "same", True), (48, 3, 1, "same", False), (48, 3, 1, "same", False),
        (32, 3, 1, "same", True)):  # fmt: skip
        hidden = tf.layers.conv2d(hidden, width, kernel, stride, padding, activation=tf.nn.relu)
        hidden = tf.nn.max_pool(hidden, 3, 2, "VALID") if pools else hidden
    hidden = tf.reshape(hidden, [-1, 6 * 6 * 32])
    hidden = tf.layers.dense(tf.layers.dense(hidden, 512, tf.nn.relu), 512, tf.nn.relu)
    logits = tf.layers.dense(hidden, 125)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    step = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
    worker, workers = Env.get().cluster.worker_index, Env.get().cluster.worker_num
    random = np.random.RandomState(0)
    rows, labels = random.rand(ROWS, 227, 227, 3), random.randint(0, 125, ROWS)
    own = slice(worker * ROWS // workers, (worker + 1) * ROWS // workers)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, step], {x: rows[own], y: labels[own]})[0] for _ in range(STEPS)]
        values = [session.run(one) for one in tf.trainable_variables()]
    strategy = Graph.get().state_of(Strategy) if plan_of else None
    return [one.kind for one in strategy.blocks] if plan_of else [], losses, values


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_strategies_that_are_found_train_as_one_device(tmp_path, monkeypatch):
    monkeypatch.setenv("EPL_CLUSTER_DEVICE_TYPE", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    ((_, losses, values),) = run(train, 1, 1, args=((),))
    assert losses[-1] < losses[0]
    found = {}
    for rows, bandwidth in ((32, "10 GB/s"), (32, "1.2 GB/s"), (256, "100 GB/s")):
        (tmp_path / "machine.json").write_text(json.dumps(machine(bandwidth)))
        for workers, devices in ((1, 2), (2, 1)):
            of_workers = run(train, workers, devices, args=((rows, bandwidth),))
            found[bandwidth, workers] = of_workers[0][0]
            mean = np.mean([one[1] for one in of_workers], axis=0)
            worst = max(np.abs(one - other).max() for one, other in zip(of_workers[0][2], values))
            print(bandwidth, workers, found[bandwidth, workers], np.abs(mean - losses).max(), worst)
            assert mean == pytest.approx(losses, rel=1e-5) and worst <= 1e-5
    assert {"split"} == {kind for (bandwidth, _), kinds in found.items() if bandwidth == "1.2 GB/s" for kind in kinds}
