"""A graph without gradients runs by stages, and is the user's in all else."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from tests.parallel.in_process import plain_graph
from tests.parallel.pipelines import Chain, begin, equals_plain, no_stage, stage


def device_of(tensor):
    return tensor.op.device


def started():
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    return sess


def traced(sess, fetch, feed):
    """Name of each op that ran -> its device."""
    metadata = tf.RunMetadata()
    sess.run(fetch, feed, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
    return {
        stats.node_name: device.device[-5:] for device in metadata.step_stats.dev_stats for stats in device.node_stats
    }


@pytest.mark.parametrize("devices", [2, 4])
def test_each_stage_runs_on_its_device(init, devices):
    begin(init, 2, devices)
    model = Chain(2)
    feed = model.feed(5)
    with started() as sess:
        found = sess.run([model.loss, model.out], feed)
        ran = traced(sess, model.loss, feed)
        weights = sess.run(tf.trainable_variables())
    assert (ran["d0/Tanh"], ran["d1/BiasAdd"], ran["loss"]) == ("CPU:0", "CPU:1", "CPU:1")
    assert Graph.get().rewritten is None
    with plain_graph():
        model = Chain(2, no_stage)
        with tf.Session() as sess:
            feed = dict(zip([model.x, model.y], feed.values()))
            feed.update(zip(tf.trainable_variables(), weights))
            for mine, plain in zip(found, sess.run([model.loss, model.out], feed)):
                np.testing.assert_allclose(mine, plain, rtol=1e-5)


def test_ops_that_are_added_are_placed(init):
    begin(init, 2, 2)
    model = Chain(2)
    with started() as sess:
        double = 2 * model.hidden[1]
        sess.run(double, model.feed(4))
        assert "mul:0" == double.name and traced(sess, double, model.feed(4))["mul"] == "CPU:1"  # after the last scope
        third = tf.constant(1.0)
        assert sess.run(third) == 1.0


def test_what_is_exported_has_the_devices_of_the_user(init):
    begin(init, 2, 2)
    Chain(2)
    before = tf.get_default_graph().as_graph_def(add_shapes=True)
    with started():
        assert tf.get_default_graph().get_operation_by_name("d1/MatMul").device == "/device:CPU:1"
        after = tf.get_default_graph().as_graph_def(add_shapes=True)
    assert {n.name: n.device for n in before.node}.items() <= {n.name: n.device for n in after.node}.items()


def test_a_graph_that_gets_gradients_later_trains(init):
    begin(init, 2, 4)

    def build(stage):
        model = Chain(2, stage, tf.train.AdamOptimizer(0.1))
        with started() as sess:
            sess.run(model.loss, model.feed(4))
        model.minimize()
        return model

    equals_plain(build)
    assert not Graph.get().device_placement
    slot = tf.get_default_graph().get_operation_by_name("d1/kernel/Adam")
    assert slot.device == "/device:CPU:1"


def test_stages_that_do_not_fit_the_devices_run_on_one_with_a_warning(init, caplog):
    begin(init, 2, 1)
    model = Chain(2)
    with started() as sess:
        assert np.isfinite(sess.run(model.loss, model.feed(4)))
    assert "its stages run on one device: Total devices 1" in caplog.text


def test_one_stage_is_left_alone(init):
    init(2)
    tensor = tf.constant(1.0)
    with tf.Session() as sess:
        sess.run(tensor)
    assert device_of(tensor) == "" and epl.Graph.get().device_placement is None


def test_an_op_that_the_user_pinned_to_the_cpu_stays_there(init):
    begin(init, 2, 2)
    model = Chain(2)
    with stage(), tf.device("/cpu:0"):
        pinned = model.loss * 2.0
    with tf.Session() as sess:
        sess.run(tf.constant(1))
    assert device_of(pinned) == "/device:CPU:0"


def test_weights_of_a_graph_without_gradients_are_not_offloaded_and_that_is_said_once(init, caplog):
    begin(init, 2, 2, offload__level="v0")
    model = Chain(2)
    with started() as sess:
        for _ in range(2):
            sess.run(model.loss, model.feed(5))
            tf.identity(model.loss)
    assert [record.getMessage().split(" is ")[0] for record in caplog.records if "offload" in record.getMessage()] == [
        "offload.level"
    ]


def test_offload_is_no_matter_in_a_graph_that_is_trained(init, caplog):
    begin(init, 2, 2, offload__level="v0")
    model = Chain(2)
    model.minimize()
    with started() as sess:
        sess.run(model.train_op, model.feed(8))
    assert "has no effect" not in caplog.text
