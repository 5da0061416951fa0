"""State that is changed in unusual places is changed on every replica."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.in_process import Linear, counting_loop, replicas_equal, rewritten, value


@pytest.mark.parametrize("nested", [False, True])
def test_a_function_that_updates_state_runs_on_every_replica(init, nested):
    init()
    model = Linear()
    seen = tf.get_variable("seen", [], initializer=tf.zeros_initializer(), trainable=False, use_resource=True)

    @tf.function
    def count(x):
        seen.assign_add(tf.reduce_sum(x))
        return x

    outer = tf.function(lambda x: count(x) * 1.0) if nested else count
    out = outer(model.x)  # nothing of the training step needs it
    model.minimize()
    feed = model.feed(rows=8)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run([model.train_op, out], feed)
        own, other = value(sess, "seen"), value(sess, "EPL_REPLICA_1/seen")
        np.testing.assert_allclose(own, feed[model.x][:4].sum(), rtol=1e-5)
        np.testing.assert_allclose(other, feed[model.x][4:].sum(), rtol=1e-5)


def test_an_update_in_a_loop_runs_on_every_replica(init):
    init()
    model = Linear()
    loop = counting_loop()
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        sess.run(loop)
        assert value(sess, "count") == 3 and replicas_equal(sess, "count")


def test_a_queue_that_takes_what_was_trained_does_not_stop_the_training_of_replicas(init):
    init()
    model = Linear()
    model.minimize()
    queue = tf.queue.FIFOQueue(100, [tf.float32])
    with tf.control_dependencies([model.train_op]):
        log = queue.enqueue(tf.identity(model.loss))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(3):
            sess.run(log, model.feed())
        assert replicas_equal(sess, "w") and not np.array_equal(value(sess, "w"), np.ones([3, 1]))
        assert sess.run(queue.size()) == 3


@pytest.mark.parametrize("device", ["/job:worker", "/job:worker/task:0", "/job:worker/replica:0/task:1/device:CPU:0"])
def test_device_strings_of_a_cluster_name_devices_of_the_session(init, device):
    init()
    with tf.device(device):
        data = tf.data.Dataset.from_tensor_slices(np.ones([8, 3], "f")).batch(2).repeat()
        x = tf.data.make_initializable_iterator(data)
        hidden = tf.layers.dense(x.get_next(), 1, name="dense")
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(hidden))
    rewrite = rewritten()
    assert not [op.name for op in rewrite.tf_graph.get_operations() if "job" in op.device]
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), x.initializer])
        sess.run(train_op)
        assert replicas_equal(sess, "dense/kernel")


def test_device_strings_of_a_cluster_after_the_rewriting(init):
    init()
    with tf.device(tf.train.replica_device_setter(cluster={"worker": ["a:1"], "ps": ["b:1"]})):
        model = Linear()
        model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        assert replicas_equal(sess, "w")
