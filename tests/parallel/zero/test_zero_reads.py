"""Reads and writes of variables that wait for something, and what they give (ZeRO)."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import PlanError

LEVELS = pytest.mark.parametrize("level", ["v0", "v1", "v2"])
KINDS = pytest.mark.parametrize("resource", [False, True])


def loss_of(output):
    return tf.reduce_mean(tf.square(output))


@pytest.mark.grid
@LEVELS
@pytest.mark.parametrize("lookup", [False, True])
def test_what_a_read_waits_for_is_done(init, level, lookup):
    """TensorFlow lets the read alone wait, and not what is computed with the value."""
    init(2, zero__level=level)
    x = tf.placeholder(tf.int32 if lookup else tf.float32, [None] if lookup else [None, 8])
    count = tf.Variable(0, trainable=False)
    weight = tf.get_variable("w", [8, 8], use_resource=True)
    with tf.control_dependencies([tf.assign_add(count, 1)]):
        output = tf.nn.embedding_lookup(weight, x) if lookup else tf.matmul(x, weight)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss_of(output))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(3):
            sess.run(train_op, {x: np.ones([4] if lookup else [4, 8])})
        assert sess.run(count) == 3


@LEVELS
def test_a_read_behind_an_assignment_is_of_what_was_assigned(init, level):
    init(2, zero__level=level)
    mask = np.tile([1.0, 0.0], [8, 4]).astype(np.float32)
    x = tf.placeholder(tf.float32, [None, 8])
    weight = tf.get_variable("w", [8, 8], initializer=tf.ones_initializer(), use_resource=True)
    other = tf.get_variable("other", [8, 8], initializer=tf.ones_initializer(), use_resource=True)
    with tf.control_dependencies([weight.assign(weight * mask)]):
        output = tf.matmul(x, weight) + tf.matmul(x, other)
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_mean(tf.reduce_sum(output, axis=1)))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        first, _ = sess.run([output, train_op], {x: np.ones([2, 8])})
        np.testing.assert_allclose(first, np.tile([16.0, 8.0], [1, 4]))
        np.testing.assert_allclose(sess.run(weight), mask - 0.5)
        np.testing.assert_allclose(sess.run(other), np.full([8, 8], 0.5))
        second = sess.run(output, {x: np.ones([2, 8])})
        np.testing.assert_allclose(second, np.tile([8.0, 4.0], [2, 4])[: len(second)])
        np.testing.assert_allclose(sess.run(weight), 0.5 * mask)


@pytest.mark.grid
@LEVELS
@KINDS
@pytest.mark.parametrize("after", [False, True])
def test_what_an_assignment_gives_is_what_was_assigned(init, level, resource, after):
    init(2, zero__level=level)
    weight = tf.get_variable("w", [8, 8], use_resource=resource)

    def assigned():
        return tf.reduce_sum(weight.assign(tf.ones([8, 8])))

    total = None if after else assigned()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss_of(weight))
    total = assigned() if after else total
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        assert sess.run(total) == 64
        np.testing.assert_array_equal(sess.run(weight), np.ones([8, 8]))


@LEVELS
@KINDS
def test_assignments_that_a_later_op_waits_for(init, level, resource):
    """Built before the first run, and the op that groups them after it."""
    init(2, zero__level=level)
    weights = [tf.get_variable(name, [6, 4], use_resource=resource) for name in "ab"]
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weights[0] * weights[1]))
    assignments = [weight.assign(tf.zeros([6, 4])) for weight in weights]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        sess.run(tf.group(*assignments))
        np.testing.assert_array_equal(sess.run(weights), np.zeros([2, 6, 4]))
        late = tf.identity(assignments[0])
        if not resource:
            with pytest.raises(PlanError, match="was built after the first Session.run"):
                sess.run(late)


def pipeline(init, write):
    """Two replicas of two stages of a pipeline; the first one reads after an op; the training step and its feed."""
    init(4, annotate=False, zero__level="v1", pipeline__num_micro_batch=2)
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.replicate(1):
        count = tf.Variable(0, trainable=False)
        first = tf.get_variable("first", [8, 8], use_resource=True)
        with tf.control_dependencies([first.assign(0.5 * first) if write else tf.assign_add(count, 1)]):
            hidden = tf.matmul(x, first)
    with epl.replicate(1):
        output = tf.matmul(hidden, tf.get_variable("second", [8, 8]))
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss_of(output)), {x: np.ones([8, 8])}, count


def test_a_pipeline_does_what_a_read_waits_for(init):
    train_op, feed, count = pipeline(init, write=False)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(3):
            sess.run(train_op, feed)
        assert sess.run(count) == 3  # as without ZeRO: it takes nothing of a micro batch


def test_a_read_behind_an_assignment_in_a_pipeline_is_refused(init):
    train_op, feed, _ = pipeline(init, write=True)
    with tf.Session() as sess:
        with pytest.raises(PlanError, match="takes 'first' after what the model writes into it"):
            sess.run(tf.global_variables_initializer())


@pytest.mark.parametrize("level", ["v1", "v2"])
def test_what_an_op_on_the_variable_itself_gives_can_be_fetched(init, level):
    init(2, zero__level=level)
    variable = tf.get_variable("v", initializer=np.arange(16, dtype=np.float32).reshape([8, 2]), use_resource=True)
    shape = tf.raw_ops.VariableShape(input=variable.handle)
    has_value = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    row = tf.raw_ops.ResourceGather(resource=variable.handle, indices=[5], dtype=tf.float32)
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(variable))
    with tf.Session() as sess:
        assert not sess.run(has_value)
        sess.run(tf.global_variables_initializer())
        assert sess.run(has_value)
        np.testing.assert_array_equal(sess.run(shape), [8, 2])
        np.testing.assert_array_equal(sess.run(row), [[10.0, 11.0]])


def test_a_checkpoint_of_the_old_format_is_refused_in_words_of_checkpoints(init):
    init(2, zero__level="v1")
    x = tf.placeholder(tf.float32, [None, 8])
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 16)))
    tf.train.AdamOptimizer().minimize(loss)
    tf.train.Saver(write_version=tf.train.SaverDef.V1)
    with pytest.raises(PlanError, match="in checkpoints of the old format.*Leave out write_version"):
        with tf.Session() as session:
            session.run(loss, {x: np.ones([2, 8])})
