"""What begins with the value of a variable in parts (`initialized_value`), as the averages of weights do."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils.errors import PlanError
from tests.tensorflows import RESOURCE_HAS_INITIALIZED_VALUE

KINDS = pytest.mark.parametrize("resource", [False, True])
READABLE_KINDS = pytest.mark.parametrize("resource", [False, pytest.param(True, marks=RESOURCE_HAS_INITIALIZED_VALUE)])
SHAPE = (8, 1000)
CUTS = pytest.mark.parametrize("cut", ["split", "v0", "v1", "v2"])


def weight_in_parts(init, cut, resource):
    """A weight and an output that takes it, to be trained by two devices."""
    init(2, **({"cluster__colocate_split_and_replicate": True} if cut == "split" else {"zero__level": cut}))
    with epl.split(2) if cut == "split" else tf.name_scope("replicated"):
        weight = tf.get_variable("weight", SHAPE, use_resource=resource)
        return weight, tf.matmul(tf.ones([4, SHAPE[0]]), weight)


def is_in_parts(name):
    return Graph.of(tf.get_default_graph()).state_of(ShardedVariables).shard_of(name) != name


def train(output, **arguments):
    return tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(output)), **arguments)


@pytest.mark.grid
@CUTS
@READABLE_KINDS
@pytest.mark.parametrize("after", [False, True])
def test_it_is_the_value_that_the_variable_has_by_then(init, cut, resource, after):
    weight, output = weight_in_parts(init, cut, resource)

    def double():
        return tf.get_variable("double", initializer=2 * weight.initialized_value(), trainable=False)

    other = None if after else double()
    train_op = train(output)
    other = double() if after else other
    average = tf.train.ExponentialMovingAverage(0.5)
    update = average.apply([weight])
    value = np.arange(SHAPE[0] * SHAPE[1], dtype="f").reshape(SHAPE)
    assign = tf.group(weight.assign(value))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert is_in_parts("weight")
        begin, twice, same = sess.run([weight, other, average.average(weight)])
        np.testing.assert_array_equal(twice, 2 * begin)
        np.testing.assert_array_equal(same, begin)
        sess.run(train_op)
        sess.run(update)
        sess.run(tf.variables_initializer([other, average.average(weight)]))
        now, twice, same = sess.run([weight, other, average.average(weight)])
        assert not np.array_equal(now, begin)
        np.testing.assert_array_equal(twice, 2 * now)
        np.testing.assert_array_equal(same, now)
    with tf.Session() as sess:  # as a Saver does
        sess.run(assign)
        sess.run(other.initializer)
        np.testing.assert_array_equal(sess.run(other), 2 * value)


@READABLE_KINDS
@pytest.mark.parametrize("level", ["v1", "v2"])
def test_a_variable_in_parts_begins_with_another(init, level, resource):
    weight, output = weight_in_parts(init, level, resource)
    second = tf.get_variable("second", initializer=2 * weight.initialized_value(), use_resource=resource)
    train_op = train(output * tf.reduce_sum(second))
    value = np.arange(SHAPE[0] * SHAPE[1], dtype="f").reshape(SHAPE) * 1e-6
    assign = tf.group(weight.assign(value))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert is_in_parts("weight") and is_in_parts("second")
        begin, twice = sess.run([weight, second])
        np.testing.assert_array_equal(twice, 2 * begin)
        sess.run(train_op)
        sess.run(assign)
        sess.run(second.initializer)
        np.testing.assert_array_equal(sess.run(second), 2 * value)
        sess.run(train_op)
        assert not np.array_equal(sess.run(second), 2 * value)


def test_in_the_stages_of_a_pipeline(init):
    init(4, annotate=False, zero__level="v1", pipeline__num_micro_batch=2)
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.replicate(1):
        hidden = tf.layers.dense(x, 8, use_bias=False, name="first")
    with epl.replicate(1):
        output = tf.layers.dense(hidden, 8, use_bias=False, name="second")
    train_op = train(output)
    weights = tf.trainable_variables()
    average = tf.train.ExponentialMovingAverage(0.5)
    average.apply(weights)
    shadows = [average.average(weight) for weight in weights]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([8, 8])})
        begin = sess.run(shadows)
        sess.run(tf.variables_initializer(shadows))
        np.testing.assert_array_equal(sess.run(shadows), sess.run(weights))
        assert not np.array_equal(sess.run(shadows), begin)


@READABLE_KINDS
def test_one_that_is_built_behind_the_first_run_is_refused(init, resource):
    weight, output = weight_in_parts(init, "v1", resource)
    train_op = train(output)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        late = weight.initialized_value()
        with pytest.raises(PlanError, match="was built after the first Session.run"):
            sess.run(late)


@KINDS
def test_whether_there_is_a_value_is_fetched_with_what_depends_on_it(init, resource):
    weight, output = weight_in_parts(init, "v1", resource)
    flag = tf.is_variable_initialized(weight)
    chosen = tf.cond(flag, weight.read_value, lambda: weight.initial_value)
    other = tf.get_variable("other", initializer=2 * chosen, trainable=False)
    train_op = train(output)
    with tf.Session() as sess:
        assert not sess.run(flag)
        sess.run(weight.initializer)
        assert sess.run(flag)
        there, _, value, now = sess.run([flag, other.initializer, chosen, weight])
        assert there
        np.testing.assert_array_equal(value, now)
        np.testing.assert_array_equal(sess.run(other), 2 * now)
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)


@RESOURCE_HAS_INITIALIZED_VALUE
def test_outputs_beside_it_are_merged_as_without_it(init):
    weight, _ = weight_in_parts(init, "v1", True)
    output = tf.matmul(tf.random_uniform([4, SHAPE[0]]), weight)
    epl.add_to_collection(output, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    value = weight.initialized_value()
    train_op = train(output)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        rows, begin = sess.run([output, value])
        assert rows.shape == (8, SHAPE[1])
        np.testing.assert_array_equal(begin, sess.run(weight))


@KINDS
@pytest.mark.parametrize("of_itself", [False, True])
def test_other_choices_leave_a_variable_whole(init, resource, of_itself):
    """Of what asks for another variable, or leads the variable to something else than a read (a gradient)."""
    weight, output = weight_in_parts(init, "v1", resource)
    other = tf.get_variable("other", [], initializer=tf.ones_initializer(), trainable=False)
    flag = tf.is_variable_initialized(weight if of_itself else other)
    chosen = tf.cond(flag, lambda: tf.nn.embedding_lookup(weight, [1]), lambda: tf.zeros([1, SHAPE[1]]))
    train_op = train(tf.concat([output, chosen], axis=0))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = sess.run(weight)
        value, _ = sess.run([chosen, train_op])
        np.testing.assert_array_equal(value, before[1:2])
        assert not np.array_equal(sess.run(weight), before)
