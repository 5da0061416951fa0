"""Parts in given ratios on devices of one process: what is decided, planned and estimated."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.plan import describe
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.profiler.memory_estimate import memory_estimate
from epl.utils.errors import PlanError
from tests.parallel.in_process import rewritten

COLOCATED = {"cluster__colocate_split_and_replicate": True}


def train(*splits):
    """A layer in each of some scopes; its training op and what it is fed."""
    x = tf.placeholder(tf.float32, [None, 64])
    hidden = x
    for number, split in enumerate(splits):
        with split:
            hidden = tf.layers.dense(hidden, 1024, tf.nn.relu, use_bias=False, name="layer%d" % number)
    loss = tf.reduce_mean(tf.square(hidden))
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss), {x: np.ones([8, 64], "f")}


@pytest.mark.parametrize("ratios", [[3, 1], [1, 3]])
def test_the_memory_estimate_follows_the_sizes(init, ratios):
    init(2, annotate=False, **COLOCATED)
    train_op, feed = train(epl.split(2, ratios=ratios))
    assert "split over 2 devices in 1 group(s), {}:{}".format(*ratios) in describe(rewritten().plan)
    devices = memory_estimate(train_op, feed, advise=False).devices
    assert [device.weights for device in devices] == [64 * 1024 * 4 // 4 * ratio for ratio in ratios]
    larger, smaller = sorted([device.peak - device.weights for device in devices], reverse=True)
    assert larger > 2 * smaller


def test_equal_ratios_are_none(init):
    init(2, annotate=False, **COLOCATED)
    train(epl.split(2, ratios=[5, 5]), epl.split(2))
    assert Graph.get().state_of(ReplicaGroups).ratios == ()


@pytest.mark.parametrize("others", [None, [1, 3]])
def test_scopes_with_different_ratios_are_refused(init, others):
    init(2, annotate=False, **COLOCATED)
    with pytest.raises(PlanError, match="every split of a model is cut in the same way"):
        train(epl.split(2, ratios=[3, 1]), epl.split(2, ratios=others))
