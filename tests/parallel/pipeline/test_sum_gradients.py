"""Sums of gradients over micro batches, as a step really runs them: one gradient at a time."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.profiler import memory, step_stats
from tests.parallel.in_process import rewritten
from tests.parallel.pipelines import begin, stage

_MICRO_BATCHES = 8
_UNITS = 512
_BYTES = _UNITS * _UNITS * 4  # of one gradient


@pytest.fixture(params=["", "PreferForward", "PreferBackwardOptimizer"])
def traced(request, init):
    """What a step of two stages with large weights and few rows did."""
    begin(init, _MICRO_BATCHES, **({"pipeline__strategy": request.param} if request.param else {}))
    x = tf.placeholder(tf.float32, [None, _UNITS])
    hidden = x
    for _ in range(2):
        with stage():
            hidden = tf.layers.dense(hidden, _UNITS, tf.tanh)
            loss = tf.reduce_mean(tf.square(hidden))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    options = step_stats.run_options()
    options.output_partition_graphs = True
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            metadata = tf.RunMetadata()
            sess.run(train_op, {x: np.ones([_MICRO_BATCHES, _UNITS])}, options, metadata)
    return metadata


def test_gradients_are_added_one_at_a_time(traced):
    nodes = [node for graph in traced.partition_graphs for node in graph.node]
    sums = [node for node in nodes if "micro_batches/gradients" in node.name and node.op.startswith("Add")]
    assert {node.op for node in sums} == {"AddV2"}
    assert len(sums) == 4 * (_MICRO_BATCHES - 1)  # of two kernels and biases
    timelines = memory.timelines(traced, tf.get_default_graph())
    assert len(timelines) == 2
    for timeline in timelines:
        peak = max(change.live for change in timeline.changes) - timeline.persistent
        # The sum, and what is added to it in place; an AddN keeps one of each micro batch.
        assert peak < 2.5 * _BYTES, timeline.device


def test_one_micro_batch_has_no_sums(init):
    begin(init, 1)
    hidden = tf.placeholder(tf.float32, [None, 4])
    for _ in range(2):
        with stage():
            hidden = tf.layers.dense(hidden, 4, tf.tanh)
            loss = tf.reduce_mean(tf.square(hidden))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    assert len(rewrite.plan.stages) == 2
    assert not [op.name for op in rewrite.tf_graph.get_operations() if "micro_batches/gradients" in op.name]
