"""Parts in given ratios on devices of one process: what is decided, planned and estimated."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.plan import describe, section
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.parallel.plan.sections import SplitSection
from epl.profiler.memory_estimate import memory_estimate
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


@pytest.mark.parametrize("others, told", [(None, "equal"), ([1, 0], "1:0")])
def test_scopes_may_have_different_ratios(init, others, told):
    init(2, annotate=False, **COLOCATED)
    train_op, feed = train(epl.split(2, ratios=[3, 1]), epl.split(2, ratios=others))
    assert f"1 group(s), 3:1 in TaskGraph 0, {told} in TaskGraph 1: ranks 0, 1" in describe(rewritten().plan)
    first, second = [variable.sizes for variable in section(rewritten().plan, SplitSection).variables]
    assert {first, second} == {(768, 256), (1024, 0) if others else (512, 512)}
    devices = memory_estimate(train_op, feed, advise=False).devices
    assert sum(device.weights for device in devices) == 4 * (64 * 1024 + 1024 * 1024)


@pytest.mark.parametrize("ratios", [[1, 0], [0, 1]])
def test_a_device_of_ratio_0_holds_and_computes_nothing(init, ratios):
    init(2, annotate=False, **COLOCATED)
    train_op, feed = train(epl.split(2, ratios=ratios))
    devices = memory_estimate(train_op, feed, advise=False).devices
    assert [device.weights for device in devices] == [64 * 1024 * 4 * ratio for ratio in ratios]
