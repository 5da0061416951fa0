"""How often what a pipeline writes is written, when, and what is read of it."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import PlanError
from tests.parallel.in_process import plain_graph
from tests.parallel.pipelines import Chain, begin, dense, no_stage, rewritten, rows, stage


def started():
    sess = tf.Session()
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    return sess


def sgd(loss, **kwargs):
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss, **kwargs)


def test_a_step_reads_nothing_of_the_iterator_of_an_evaluation(init):
    begin(init, 2, 2)
    values = tf.data.Dataset.from_tensor_slices(rows(8)).batch(2)
    x = tf.data.make_one_shot_iterator(values.repeat()).get_next()
    evaluation = tf.data.make_initializable_iterator(values)
    other = evaluation.get_next()
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    counted = tf.metrics.mean(tf.reduce_sum(other, 1))[1]
    train_op = sgd(loss)
    with started() as sess:
        sess.run(train_op)
        sess.run(evaluation.initializer)
        sess.run(train_op)
        sess.run(counted)
        sess.run(counted)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(counted)


def test_data_that_a_branch_reads_is_read_in_order(init):
    begin(init, 4, 2)
    numbers = tf.data.Dataset.range(1000).map(lambda n: tf.cast(tf.fill([1, 3], n), tf.float32))
    one, other = [tf.data.make_one_shot_iterator(numbers) for _ in range(2)]
    x = tf.cond(tf.placeholder_with_default(True, []), one.get_next, other.get_next)
    x = tf.reshape(x, [1, 3])
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    epl.add_to_collection(x, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    train_op = sgd(loss)
    with started() as sess:
        read = [sess.run([x, train_op])[0][:, 0] for _ in range(10)]
    np.testing.assert_array_equal(np.concatenate(read), np.arange(40.0))


def test_what_is_set_by_hand_is_written_once(init):
    begin(init, 4, 2)
    model = Chain()
    step = tf.train.get_or_create_global_step()
    rate = tf.get_variable("rate", initializer=0.1, trainable=False)
    number, value = tf.placeholder(tf.int64, []), tf.placeholder(tf.float32, [])
    set_step, set_rate, halve = step.assign(number), rate.assign(value), rate.assign(rate * 0.5)
    train_op = tf.train.GradientDescentOptimizer(rate).minimize(model.loss, step)
    with started() as sess:
        sess.run(set_step, {number: 5})
        sess.run(set_rate, {value: 0.8})
        sess.run(halve)
        sess.run(train_op, model.feed(8))
        assert sess.run(step) == 6
        assert sess.run(rate) == pytest.approx(0.4)


@pytest.mark.parametrize("resource", [False, True])
def test_a_moving_average_of_statistics_after_the_update_takes_one_step(init, resource):
    begin(init, 4, 2)
    tf.get_variable_scope().set_use_resource(resource)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        hidden = tf.layers.batch_normalization(dense(x, 3, 0), training=True)
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    (mean,) = [v for v in tf.global_variables() if "moving_mean" in v.name]
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = sgd(loss)
    averages = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([train_op]):
        train_op = averages.apply([mean] + tf.trainable_variables())
    with started() as sess:
        sess.run(train_op, {x: rows(16)})
        found, statistics = sess.run([averages.average(mean), mean])
    np.testing.assert_allclose(found, 0.1 * statistics, rtol=1e-4)


@pytest.mark.parametrize("resource", [False, True])
def test_an_average_without_bias_counts_what_it_averages(init, resource):
    tf.get_variable_scope().set_use_resource(resource)

    def build(stage):
        with tf.variable_scope("", use_resource=resource):
            model = Chain(2, stage, resource=resource)
            model.mean = tf.reduce_mean(model.x)
            averages = tf.train.ExponentialMovingAverage(0.5, zero_debias=True)
            model.update = averages.apply([model.mean])
            model.average = averages.average(model.mean)
        with tf.control_dependencies([model.update]):
            model.train_op = sgd(model.loss)
        return model

    begin(init, 4, 2)
    model = build(stage)
    with started() as sess:
        for seed in range(3):
            sess.run(model.train_op, model.feed(8, seed))
        found = sess.run([model.average] + [v for v in tf.global_variables() if "mean" in v.op.name.lower()])
    with plain_graph():
        model = build(no_stage)
        with started() as sess:
            for seed in range(3):
                for part in np.split(model.feed(8, seed)[model.x], 4):
                    sess.run(model.update, {model.x: part})
            plain = sess.run([model.average] + [v for v in tf.global_variables() if "mean" in v.op.name.lower()])
    assert len(found) == len(plain) > 3
    np.testing.assert_allclose(found, plain, rtol=1e-5)


def test_the_new_value_of_a_metric_is_that_after_all_micro_batches(init):
    begin(init, 4, 2)
    model = Chain()
    mean = tf.metrics.mean(tf.reshape(model.x, [-1]))[1]
    train_op = sgd(model.loss)
    feed = model.feed(16)
    with started() as sess:
        for _ in range(20):
            found, _ = sess.run([mean, train_op], feed)
            assert found == pytest.approx(feed[model.x].mean(), rel=1e-4)


@pytest.mark.parametrize("devices", [2, 4])
def test_a_metric_read_behind_its_update_in_a_fed_evaluation(init, devices):
    begin(init, 2, devices)
    model = Chain()
    total = tf.get_variable(
        "total", initializer=0.0, trainable=False, use_resource=True, collections=[tf.GraphKeys.LOCAL_VARIABLES]
    )
    update = total.assign_add(tf.reduce_sum(model.x), read_value=False)
    with tf.control_dependencies([update]):
        read = total.read_value()
    group = tf.group(update)
    train_op = sgd(model.loss)
    values = rows(8)
    with started() as sess:
        sess.run(train_op, model.feed(8))
        sess.run(total.initializer)
        assert sess.run(read, {model.x: values[:3]}) == pytest.approx(values[:3].sum(), rel=1e-4)
        sess.run(group, {model.x: values[3:]})
        assert sess.run(total) == pytest.approx(values.sum(), rel=1e-4)


def test_writes_of_a_run_that_does_not_train_are_in_order(init):
    begin(init, 4, 2)
    numbers = tf.data.Dataset.range(1000).map(lambda n: tf.cast(tf.fill([1, 3], n), tf.float32))
    x = tf.reshape(tf.data.make_one_shot_iterator(numbers).get_next(), [1, 3])
    with stage():
        memory = tf.get_variable("memory", initializer=0.0, trainable=False, use_resource=True)
        update = memory.assign(memory.read_value() * 0.5 + x[0, 0], read_value=False)
        hidden = dense(x, 3, 0)
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    with tf.control_dependencies([update]):
        sgd(loss)
    expected = 0.0
    with started() as sess:
        for step in range(10):
            sess.run(update)
            for number in range(4 * step, 4 * step + 4):
                expected = expected * 0.5 + number
            assert sess.run(memory) == pytest.approx(expected, rel=1e-5)


def test_an_output_that_is_computed_once_is_not_summed_over_micro_batches(init):
    begin(init, 4, 2)
    model = Chain()
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(model.loss)
    norm = tf.global_norm([gradient for gradient, _ in pairs])
    same = norm * 1.0
    epl.add_to_collection(norm, epl.GraphKeys.LOCAL_SUM_OBJECTS)
    train_op = optimizer.apply_gradients(pairs)
    with started() as sess:
        summed, plain, _ = sess.run([norm, same, train_op], model.feed(8))
    assert summed == pytest.approx(plain)


def test_a_gradient_of_accumulated_gradients_is_refused(init):
    begin(init, 2, 2)
    model = Chain()
    variables = tf.trainable_variables()
    gradients = tf.gradients(model.loss, variables)
    tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, variables))
    scale = tf.get_variable("scale", [3, 1])
    loss = tf.reduce_mean(tf.matmul(model.x, scale)) * tf.stop_gradient(tf.global_norm(gradients))
    sgd(loss, var_list=[scale])
    with tf.Session() as sess, pytest.raises(PlanError, match="computed from gradients that an optimizer applies"):
        sess.run(tf.global_variables_initializer())


def test_a_placeholder_in_the_midst_of_the_model_keeps_the_schedule(init):
    begin(init, 2, 2)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        hidden = tf.placeholder_with_default(dense(x, 3, 0), [None, 3])
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    sgd(loss)
    barriers = [name for name in rewritten().barriers[0] if "device0" in name]
    assert len(barriers) == 3  # 0F0 | 0F1 | 0B0 | 0B1


def test_gradients_given_by_a_tensor_of_the_model_begin_the_backward_pass(init):
    begin(init, 2, 2)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        out = dense(hidden, 3, 1)
    variables = tf.trainable_variables()
    gradients = tf.gradients([out], variables, grad_ys=[hidden])
    tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, variables))
    assert len(rewritten().barriers[0]) == 6


@pytest.mark.parametrize("strategy", ["PreferForward", "PreferBackward"])
def test_the_forward_pass_sees_a_variable_as_it_is_before_the_step_that_updates_it_beside(init, strategy):
    """As one device does, whose update takes the same read."""
    begin(init, 4, 2, pipeline__strategy=strategy)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        mean = tf.get_variable("mean", [3], initializer=tf.zeros_initializer(), trainable=False, use_resource=True)
        before = mean.read_value()
        hidden = dense(x - before, 3, 0)
        update = mean.assign(0.5 * before + 0.5 * tf.reduce_mean(x, axis=0), read_value=False)
    with stage():
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1)))
    train_op = tf.group(sgd(loss), update)
    values = rows(16) + 100.0
    begun = tf.global_variables_initializer()
    with started() as sess:
        for _ in range(20):  # each from the beginning: what a trained model gives is smaller than rounding
            old, expected = sess.run([mean, loss], {x: values})
            seen, _ = sess.run([loss, train_op], {x: values})
            np.testing.assert_allclose(seen, expected, rtol=1e-4)
            for part in np.split(values, 4):
                old = 0.5 * old + 0.5 * part.mean(axis=0)
            np.testing.assert_allclose(sess.run(mean), old, rtol=1e-5)
            sess.run(begun)
