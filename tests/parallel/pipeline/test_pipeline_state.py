"""State in a pipeline: what is written once per micro batch, in order, and what once per step."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import plain_graph
from tests.parallel.pipelines import Chain, begin, dense, no_stage, rows, stage


class Normalised:
    """Batch norm in stage 0, a dense layer in stage 1."""

    def __init__(self, stage, dependent, fused=True):
        self.x = tf.placeholder(tf.float32, [None, 3], "x")
        self.training = tf.placeholder_with_default(True, [], "training")
        with stage():
            shaped = tf.reshape(self.x, [-1, 1, 1, 3])
            normal = tf.layers.batch_normalization(shaped, momentum=0.8, training=self.training, fused=fused, name="bn")
            hidden = tf.reshape(normal, [-1, 3])
        with stage():
            self.out = dense(hidden, 1, 1)
            self.loss = tf.reduce_mean(tf.square(self.out - 1.0))
        self.updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(self.updates if dependent else []):
            self.train_op = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)
        self.means = [v for v in tf.global_variables() if "moving" in v.name]


def expected_means(batches, fused=True):
    """The moving averages of plain TensorFlow, fed the batches one after the other."""
    with plain_graph():
        model = Normalised(no_stage, True, fused)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for batch in batches:
                sess.run(model.updates, {model.x: batch})
            return sess.run(model.means)


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_moving_averages_are_those_of_the_micro_batches_in_order(init, dependent, fused):
    begin(init, 4, 2)
    model = Normalised(stage, dependent, fused)
    values = rows(16)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op if dependent else [model.train_op, model.updates], {model.x: values})
        found = sess.run(model.means)
    for mine, other in zip(found, expected_means(np.split(values, 4), fused)):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_updates_alone_are_done_once_with_all_rows_that_are_fed(init):
    begin(init, 4, 2)
    model = Normalised(stage, False)
    values = rows(16)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.updates, {model.x: values})
        found = sess.run(model.means)
        for mine, other in zip(found, expected_means([values])):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_evaluation_and_training_without_the_updates_leave_the_averages_alone(init):
    begin(init, 2, 2)
    model = Normalised(stage, False)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = sess.run(model.means)
        sess.run([model.out, model.loss], {model.x: rows(5), model.training: False})
        sess.run(model.train_op, {model.x: rows(4)})
        for mine, other in zip(sess.run(model.means), before):
            np.testing.assert_array_equal(mine, other)


def test_with_is_training_off_the_averages_are_used_in_every_micro_batch(init):
    begin(init, 2, 2)
    # Not fused: the updates run, too, and take the batch mean, in which TensorFlow's fused kernel for the CPU leaves
    # whatever lay in memory where it does not train. In plain TensorFlow, too, the average becomes NaN now and then.
    model = Normalised(stage, True, fused=False)
    values = rows(8)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        expected = sess.run(model.loss, {model.x: values, model.training: False})
        loss = sess.run([model.loss, model.train_op], {model.x: values, model.training: False})[0]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("devices", [2, 4])
def test_the_global_step_counts_steps(init, devices):
    begin(init, 4, devices)
    step = tf.train.get_or_create_global_step()
    model = Chain(2)
    model.minimize(global_step=step)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(3):
            sess.run(model.train_op, model.feed(16))
        assert sess.run(step) == 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_metric_counts_every_row_once(init, waits):
    begin(init, 4, 2)
    model = Chain(2)
    model.minimize()
    with tf.control_dependencies([model.train_op] if waits else []):
        mean, update = tf.metrics.mean(model.y, name="m")
    total, count = tf.local_variables()
    feed = model.feed(16)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run([model.train_op, update], feed)
        assert sess.run(count) == 16
        np.testing.assert_allclose(sess.run(total), feed[model.y].sum(), rtol=1e-4, atol=1e-5)


def test_a_metric_of_a_fed_evaluation_counts_every_row_once(init):
    begin(init, 4, 2)
    model = Chain(2)
    model.minimize()
    mean, update = tf.metrics.mean(model.y, name="m")
    feed = model.feed(5)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run(model.train_op, model.feed(8))
        sess.run(update, feed)
        np.testing.assert_allclose(sess.run(mean), feed[model.y].mean(), rtol=1e-5)
        assert sess.run(tf.local_variables()[1]) == 5


def test_moving_averages_of_variables_follow_the_step(init):
    begin(init, 4, 2)

    def train(stage):
        model = Chain(2, stage)
        average = tf.train.ExponentialMovingAverage(0.5)
        with tf.control_dependencies([model.minimize()]):
            train_op = average.apply(tf.trainable_variables())
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for seed in range(3):
                sess.run(train_op, model.feed(8, seed))
            return sess.run([average.average(v) for v in tf.trainable_variables()])

    planned = train(stage)
    with plain_graph():
        plain = train(no_stage)
    for mine, other in zip(planned, plain):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_a_moving_average_of_the_loss_takes_each_micro_batch(init):
    begin(init, 2, 2)
    model = Chain(2)
    model.minimize()
    average = tf.train.ExponentialMovingAverage(0.5)
    update = average.apply([model.loss])
    feed = model.feed(8)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run(model.loss, {key: value[i : i + 4] for key, value in feed.items()}) for i in (0, 4)]
        sess.run([model.train_op, update], feed)
        np.testing.assert_allclose(sess.run(average.average(model.loss)), 0.25 * losses[0] + 0.5 * losses[1], rtol=1e-4)


def test_a_count_in_a_branch_that_some_micro_batch_does_not_take(init):
    begin(init, 4, 2)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        taken = tf.get_variable("taken", [], initializer=tf.zeros_initializer(), trainable=False, use_resource=True)
        count = tf.cond(tf.reduce_sum(x) > 0, lambda: taken.assign_add(1.0), lambda: taken.read_value())
        with tf.control_dependencies([count]):
            hidden = dense(x, 3, 0)
    with stage():
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    values = np.repeat([1.0, -1.0, 1.0, 1.0], 2)[:, None].repeat(3, 1).astype("f")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run([train_op, loss], {x: values})
        assert sess.run(taken) == 3


def test_random_numbers_differ_between_micro_batches_and_come_again_with_the_seed(init):
    begin(init, 4, 2)
    tf.set_random_seed(7)
    x = tf.placeholder(tf.float32, [None, 1], "x")
    with stage():
        noise = tf.random_uniform(tf.shape(x), seed=3, name="noise")
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        hidden = noise * w
    with stage():
        loss = tf.reduce_mean(hidden)
    epl.add_to_collection(noise, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    runs = []
    for _ in range(2):
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            drawn = sess.run([noise, train_op], {x: np.zeros([8, 1])})[0]
            np.testing.assert_allclose(-sess.run(w), drawn.mean(), rtol=1e-5)
            runs.append(drawn)
    parts = [part.tobytes() for part in np.split(runs[0], 4)]
    assert len(set(parts)) == 4
    np.testing.assert_array_equal(runs[0], runs[1])


def test_the_end_of_data_within_a_step_changes_nothing(init):
    begin(init, 4, 2)
    data = tf.data.Dataset.from_tensor_slices(rows(12)).batch(2)
    iterator = tf.data.make_initializable_iterator(data)
    with stage():
        normal = tf.layers.batch_normalization(iterator.get_next(), training=True, name="bn")
    with stage():
        loss = tf.reduce_mean(tf.square(dense(normal, 1, 1)))
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(5):
            sess.run(iterator.initializer)
            sess.run(train_op)
            before = sess.run(tf.global_variables())
            with pytest.raises(tf.errors.OutOfRangeError):
                sess.run(train_op)
            for mine, other in zip(sess.run(tf.global_variables()), before):
                np.testing.assert_array_equal(mine, other)


def test_micro_batches_get_consecutive_batches(init):
    begin(init, 4, 2)
    data = tf.data.Dataset.range(100).map(lambda i: (tf.to_float(i), tf.to_float(i) * 10)).batch(1)
    x, y = data.make_one_shot_iterator().get_next()
    with stage():
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        hidden = x * w
    with stage():
        loss = tf.reduce_mean(hidden + 0 * y)
        pair = tf.stack([x, y], 1)
    epl.add_to_collection(pair, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for start in (0, 4, 8):
            found = sess.run([pair, train_op])[0]
            np.testing.assert_array_equal(found, [[i, 10 * i] for i in range(start, start + 4)])


def test_a_queue_feeds_the_micro_batches(init):
    begin(init, 4, 2)
    queue = tf.train.input_producer(tf.constant(np.arange(8.0, dtype="f")), shuffle=False, num_epochs=None)
    x = queue.dequeue_many(2)
    with stage():
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        hidden = x * w
    with stage():
        loss = tf.reduce_mean(hidden)
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coordinator)
        for _ in range(3):
            sess.run(train_op)
        assert sess.run(w) == -3 * 3.5
        coordinator.request_stop()
        sess.run(queue.close(cancel_pending_enqueues=True))
        coordinator.join(threads)
