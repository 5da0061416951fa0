"""What a run of a pipeline's graph gives: fetches of all kinds, before, between and after training steps."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.profiler import step_stats
from epl.utils.errors import PlanError
from tests.parallel.pipelines import Chain, begin, dense, rewritten, rows, stage


@pytest.fixture
def trained(init):
    """A function that gives a pipeline of two stages, its accuracy and a session."""
    begin(init, 4, 2)
    model = Chain(2)
    model.accuracy = tf.reduce_mean(tf.cast(model.out > 0, tf.float32), name="accuracy")
    model.minimize(global_step=tf.train.get_or_create_global_step())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        yield model, sess


def test_inference_takes_any_number_of_rows_at_any_time(trained):
    model, sess = trained
    feed = model.feed(5)
    for _ in range(2):
        out, accuracy = sess.run([model.out, model.accuracy], feed)
        assert out.shape == (5, 1) and 0 <= accuracy <= 1
        assert sess.run(model.out, {model.x: feed[model.x]}).shape == (5, 1)
        np.testing.assert_allclose(sess.run(model.loss, feed), np.mean(np.square(out - feed[model.y])), rtol=1e-5)
        sess.run(model.train_op, model.feed(8))


def test_inference_runs_no_other_micro_batch_and_no_barrier(trained):
    model, sess = trained
    sess.run(model.train_op, model.feed(8))
    names = {execution.op for execution in step_stats.trace(sess, [model.out, model.loss], model.feed(5))}
    assert "d0/Tanh" in names or "d0/BiasAdd" in names
    assert not [name for name in names if name.startswith("EPL_")]


def test_the_loss_and_the_accuracy_of_a_step_are_means_over_the_micro_batches(trained):
    model, sess = trained
    feed = model.feed(8)
    expected = sess.run([model.loss, model.accuracy], feed)
    values = sess.run([model.loss, model.accuracy, model.train_op], feed)
    np.testing.assert_allclose(values[:2], expected, rtol=1e-5)


def test_structures_of_fetches(trained):
    model, sess = trained
    found = sess.run({"a": [model.loss, (model.train_op, model.out)], "b": model.loss}, model.feed(8))
    assert found["a"][1][0] is None and found["a"][1][1].shape == (2, 1)
    assert found["a"][0] == found["b"]


def test_fetches_by_name(trained):
    model, sess = trained
    loss, _ = sess.run(["loss:0", model.train_op.name], {"x:0": rows(8), "y:0": rows(8, 1)})
    assert np.isfinite(loss) and sess.run("global_step:0") == 1


def test_a_callable(trained):
    model, sess = trained
    step = sess.make_callable([model.loss, model.train_op], [model.x, model.y])
    feed = model.feed(8)
    losses = [step(feed[model.x], feed[model.y])[0] for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize(
    "key, expected",
    [
        (epl.GraphKeys.LOCAL_CONCAT_OBJECTS, lambda y: y),
        (epl.GraphKeys.GLOBAL_CONCAT_OBJECTS, lambda y: y),
        (epl.GraphKeys.LOCAL_SUM_OBJECTS, lambda y: y.reshape(4, 2, 1).sum(0)),
        (epl.GraphKeys.GLOBAL_MEAN_OBJECTS, lambda y: y.reshape(4, 2, 1).mean(0)),
    ],
)
def test_collections_merge_the_micro_batches(init, key, expected):
    begin(init, 4, 2)
    model = Chain(2)
    shown = tf.identity(model.y)
    epl.add_to_collection(shown, key)
    model.minimize()
    feed = model.feed(8)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        found = sess.run([shown, model.train_op], feed)[0]
    np.testing.assert_allclose(found, expected(feed[model.y]), rtol=1e-5)


def test_gradients_fetched_alone_and_with_the_step(init):
    begin(init, 4, 2)
    model = Chain(2)
    pairs = model.optimizer.compute_gradients(model.loss)
    model.train_op = model.optimizer.apply_gradients(pairs)
    gradient = pairs[0][0]
    feed = model.feed(8)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = sess.run(pairs[0][1])
        alone = sess.run(gradient, feed)
        found = sess.run([gradient, model.train_op], feed)[0]
        np.testing.assert_allclose(alone, found, rtol=1e-5)
        np.testing.assert_allclose(sess.run(pairs[0][1]), before - 0.1 * found, rtol=1e-5)


@pytest.mark.parametrize("devices", [2, 4])
def test_what_is_fetched_with_gradients_is_of_all_that_is_fed(init, devices):
    begin(init, 4, devices)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        hidden = tf.layers.dense(x, 3)
    with stage():
        losses = tf.reduce_sum(tf.square(hidden), axis=1)
        loss = tf.reduce_mean(losses)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    _, seen = tf.metrics.mean(losses)
    train_op = optimizer.apply_gradients(pairs)
    rows = np.random.RandomState(0).rand(32, 3).astype(np.float32) * np.arange(1, 33)[:, None]
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        expected = sess.run(loss, {x: rows})
        found, _ = sess.run([loss, pairs[0][0]], {x: rows})
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        mean, _ = sess.run([seen, pairs[0][0]], {x: rows})
        trained, _ = sess.run([loss, train_op], {x: rows})
        np.testing.assert_allclose(trained, expected, rtol=1e-5)
        if devices == 2:  # one replica, whose metric has seen all rows
            np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_python_functions_and_strings_in_a_stage(init):
    begin(init, 2, 2)
    seen = []

    def note(values):
        seen.append(len(values))
        return values

    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        noted = tf.py_func(note, [x], tf.float32)
        noted.set_shape([None, 3])
        hidden = dense(noted, 3, 0)
    with stage():
        text = tf.as_string(tf.reduce_sum(hidden))
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        found = sess.run([text, train_op], {x: rows(8)})[0]
        assert isinstance(found, bytes) and seen == [4, 4]


@pytest.mark.parametrize("bad", [False, True])
def test_prints_and_assertions_in_a_stage(init, bad, capfd):
    begin(init, 2, 2)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        with tf.control_dependencies([tf.assert_less(x, 10.0), tf.print("rows", tf.shape(x)[0])]):
            hidden = dense(x, 3, 0)
    with stage():
        loss = tf.reduce_mean(tf.square(tf.Print(dense(hidden, 1, 1), [tf.constant(1)], "seen")))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    values = rows(8)
    values[7] = 11.0 if bad else 0.0
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        if bad:
            with pytest.raises(tf.errors.InvalidArgumentError):
                sess.run(train_op, {x: values})
            return
        sess.run(train_op, {x: values})
    assert capfd.readouterr().err.count("rows 4") == 2


def test_ops_pinned_to_the_cpu_stay_there(init):
    begin(init, 2, 2)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        with tf.device("/cpu:0"):
            pinned = tf.tanh(hidden, name="pinned")
        loss = tf.reduce_mean(tf.square(dense(pinned, 1, 1)))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    assert rewrite.operation("pinned").device == "/device:CPU:0"
    assert rewrite.operation("EPL_MICRO_BATCH_1/pinned").device == "/device:CPU:0"
    assert rewrite.operation("EPL_MICRO_BATCH_1/d1/MatMul").device == "/device:CPU:1"


def test_several_graphs_and_init_again(init):
    losses = []
    for devices in (2, 4):
        begin(init, 2, devices)
        for _ in range(2):
            with tf.Graph().as_default():
                model = Chain(2)
                model.minimize()
                with tf.Session() as sess:
                    sess.run(tf.global_variables_initializer())
                    losses.append(sess.run([model.loss, model.train_op], model.feed(8))[0])
    np.testing.assert_allclose(losses, losses[:1] * 4, rtol=1e-5)


def test_default_strategies_one_after_the_other_are_stages(init):
    begin(init, 2, 2)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    epl.set_default_strategy(epl.replicate(1))
    hidden = dense(x, 3, 0)
    epl.set_default_strategy(epl.replicate(1))
    loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: rows(4)})
    assert len(rewritten().plan.stages) == 2


def test_an_evaluation_by_an_iterator_of_its_own_draws_one_batch(init):
    begin(init, 2, 2)
    training = tf.data.Dataset.from_tensor_slices(rows(64)).batch(2).make_one_shot_iterator().get_next()
    checking = tf.data.Dataset.range(100).batch(1).make_one_shot_iterator().get_next()
    with stage():
        hidden = dense(training, 3, 0)
        count = checking * 2
    with stage():
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert sess.run(count) == [0]
        sess.run(train_op)
        assert sess.run(count) == [2]


@pytest.mark.parametrize("devices, micro_batches", [(2, 1), (2, 2)])
def test_random_numbers_of_a_generator_are_refused(init, devices, micro_batches):
    begin(init, micro_batches, devices)
    generator = tf.random.experimental.Generator.from_seed(1)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        hidden = tf.layers.dense(x, 3) + generator.normal([4, 3])
    if micro_batches > 1:
        with stage():
            hidden = tf.layers.dense(hidden, 3)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(hidden))
    with tf.Session() as sess:
        with pytest.raises(PlanError, match="draws from a tf.random.experimental.Generator"):
            sess.run(train_op, {x: np.ones([8, 3])})
