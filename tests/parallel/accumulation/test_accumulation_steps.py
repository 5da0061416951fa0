"""Gradient accumulation in one process: what runs when, what users hold and fetch, sessions, and what is refused."""

import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import PlanError
from tests.parallel.in_process import Linear, error_text, replicas_equal
from tests.tensorflows import WITH_ESTIMATOR

both = pytest.mark.parametrize("devices", [1, 2])
STEPS = 3


def started(sess=None):
    sess = sess or tf.Session()
    sess.run(tf.global_variables_initializer())
    return sess


def with_value(feed, key, fed):
    feed[key] = fed
    return feed


def expected(model, feeds, rate=0.1, start=1.0):
    """The weight after one step of gradient descent on the mean over the feeds."""
    weight = np.full([3, 1], start, "f")
    rows = [(feed[model.x], feed[model.y]) for feed in feeds]
    return weight - rate * np.mean([2 * x.T.dot(x.dot(weight) - y) / len(x) for x, y in rows], axis=0)


@both
def test_the_mean_is_applied_in_the_last_micro_step(init, devices):
    init(devices, pipeline__num_micro_batch=STEPS)
    model = Linear()
    train_op = model.minimize()
    feeds = [model.feed(seed=seed) for seed in range(STEPS)]
    with started() as sess:
        for feed in feeds:
            assert (sess.run(model.w) == 1).all()
            sess.run(train_op, feed)
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)


@both
def test_the_loss_is_that_of_the_run(init, devices):
    init(devices, pipeline__num_micro_batch=STEPS)
    model = Linear()
    train_op = model.minimize()
    with started() as sess:
        for seed in range(2):
            feed = model.feed(seed=seed)
            loss, _ = sess.run([model.loss, train_op], feed)
            squares = (feed[model.x].sum(1, keepdims=True) - feed[model.y]) ** 2
            np.testing.assert_allclose(loss, np.mean(squares), rtol=1e-5)


@both
def test_a_run_without_the_training_op_is_no_micro_step(init, devices):
    init(devices, pipeline__num_micro_batch=2)
    model = Linear()
    gradients = tf.gradients(model.loss, [model.w])
    clipped, norm = tf.clip_by_global_norm(gradients, 1e6)
    train_op = model.optimizer.apply_gradients(zip(clipped, [model.w]))
    feeds = [model.feed(seed=seed) for seed in range(2)]
    with started() as sess:
        sess.run(train_op, feeds[0])
        for _ in range(3):
            sess.run([norm, clipped], model.feed(seed=9))
        sess.run(train_op, feeds[1])
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)


@both
def test_a_changed_gradient_is_fetched_as_the_mean_so_far(init, devices):
    init(devices, pipeline__num_micro_batch=2, communication__clip_after_allreduce=True)
    model = Linear()
    (gradient,) = tf.gradients(model.loss, [model.w])
    train_op = model.optimizer.apply_gradients([(2 * gradient, model.w)])
    feed = model.feed()
    with started() as sess:
        first, _ = sess.run([gradient, train_op], feed)
        second, _ = sess.run([gradient, train_op], feed)
        full = (1 - expected(model, [feed])) / 0.1
        np.testing.assert_allclose(second, full, rtol=1e-5)
        if devices == 1:
            np.testing.assert_allclose(first, full / 2, rtol=1e-5)


@both
def test_what_waits_for_the_training_op_runs_in_every_run(init, devices):
    init(devices, pipeline__num_micro_batch=STEPS)
    model = Linear()
    runs = tf.get_variable("runs", [], initializer=tf.zeros_initializer(), trainable=False)
    with tf.control_dependencies([model.minimize()]):
        counted = runs.assign_add(1.0)
    with started() as sess:
        assert [sess.run(counted, model.feed()) for _ in range(STEPS + 1)] == [1, 2, 3, 4]


def test_the_training_op_is_an_op_and_the_one_of_the_collection(init):
    init(1, pipeline__num_micro_batch=2)
    train_op = Linear().minimize()
    assert isinstance(train_op, tf.Operation)
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [train_op]


@both
def test_variables_and_checkpoints_are_those_without_accumulation(init, devices, tmp_path):
    names = []
    for steps in (1, 2):
        init(devices, pipeline__num_micro_batch=steps)
        with tf.name_scope("training"):
            model = Linear(optimizer=tf.train.AdamOptimizer(0.1))
            train_op = model.minimize()
        with started() as sess:
            sess.run(train_op, model.feed())
            path = tf.train.Saver().save(sess, str(tmp_path / "model.ckpt"))
        names.append((tf.train.list_variables(path), tf.local_variables(), [v.name for v in tf.global_variables()]))
    assert names[0] == names[1]


@both
def test_no_initializer_is_needed_for_the_sums(init, devices):
    init(devices, pipeline__num_micro_batch=2)
    model = Linear()
    train_op = model.minimize()
    with tf.Session() as sess:
        sess.run([variable.initializer for variable in tf.global_variables()])
        assert sess.run(tf.report_uninitialized_variables()).size == 0
        sess.run(train_op, model.feed())
        sess.run(train_op, model.feed())
        assert (sess.run(model.w) != 1).any()


@both
def test_a_new_session_begins_a_new_training_step(init, devices, tmp_path):
    init(devices, pipeline__num_micro_batch=2)
    model = Linear()
    train_op, saver = model.minimize(), tf.train.Saver()
    feeds = [model.feed(seed=seed) for seed in range(2)]
    with started() as sess:
        sess.run(train_op, model.feed(seed=9))
        path = saver.save(sess, str(tmp_path / "model.ckpt"))
    with tf.Session() as sess:
        saver.restore(sess, path)
        for feed in feeds:
            sess.run(train_op, feed)
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)


def test_a_variable_loaded_between_micro_steps_leaves_the_sums_alone(init):
    init(2, pipeline__num_micro_batch=2)
    model = Linear()
    rate = tf.get_variable("rate", [], initializer=tf.zeros_initializer(), trainable=False)
    model.optimizer = tf.train.GradientDescentOptimizer(rate)
    train_op = model.minimize()
    feeds = [model.feed(seed=seed) for seed in range(2)]
    with started() as sess:
        sess.run(train_op, feeds[0])
        rate.load(0.1, sess)
        sess.run(train_op, feeds[1])
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)
        assert replicas_equal(sess, "w")


def test_a_run_that_fails_on_one_replica_begins_the_training_step_anew(init):
    init(2, pipeline__num_micro_batch=STEPS, communication__timeout=5)
    model = Linear()

    def checked(rows):
        if (rows > 100).any():
            time.sleep(0.5)  # meanwhile the other replica ends its micro step
            raise ValueError("too large")
        return rows

    x = tf.reshape(tf.numpy_function(checked, [model.x], tf.float32), [-1, 3])
    model.loss = tf.reduce_mean(tf.square(tf.matmul(x, model.w) - model.y))
    train_op = model.minimize()
    feeds = [model.feed(seed=seed) for seed in range(STEPS)]
    spoilt = model.feed(seed=5)
    spoilt[model.x][-1] = 1000.0  # a row of replica 1
    with started() as sess:
        sess.run(train_op, model.feed(seed=9))
        assert "too large" in error_text(sess.run, train_op, spoilt)
        for feed in feeds:
            sess.run(train_op, feed)
        assert replicas_equal(sess, "w")
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)


def test_a_run_that_fails_half_way_begins_the_training_step_anew(init):
    init(1, pipeline__num_micro_batch=STEPS)
    model = Linear()
    second = tf.get_variable("second", [3, 1], initializer=tf.ones_initializer())

    def checked(rows):
        if (rows > 100).any():
            time.sleep(0.5)  # meanwhile the other gradient is added up
            raise ValueError("too large")
        return rows

    x = tf.reshape(tf.numpy_function(checked, [model.x], tf.float32), [-1, 3])
    loss = tf.reduce_sum(tf.matmul(x, second))
    pairs = model.optimizer.compute_gradients(model.loss, [model.w]) + model.optimizer.compute_gradients(loss, [second])
    train_op = model.optimizer.apply_gradients(pairs)
    feeds = [model.feed(seed=seed) for seed in range(STEPS)]
    spoilt = model.feed(seed=5)
    spoilt[model.x][0] = 1000.0
    with started() as sess:
        sess.run(train_op, model.feed(seed=9))
        assert "too large" in error_text(sess.run, train_op, spoilt)
        for feed in feeds:
            sess.run(train_op, feed)
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)


def test_the_end_of_data_keeps_what_was_added_up(init):
    init(1, pipeline__num_micro_batch=2)
    iterator = tf.data.Dataset.from_tensors(np.ones([3], "f")).make_initializable_iterator()
    weight = tf.get_variable("weight", [3], initializer=tf.zeros_initializer())
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(weight * iterator.get_next()))
    with started() as sess:
        for _ in range(2):
            sess.run(iterator.initializer)
            sess.run(train_op)
            assert "OutOfRangeError" in error_text(sess.run, train_op)
        assert (sess.run(weight) == -1).all()


@both
def test_two_optimizers_of_one_kind_in_one_scope_count_apart(init, devices):
    init(devices, pipeline__num_micro_batch=2)
    first = Linear("first", optimizer=tf.train.AdamOptimizer(0.1))
    second = Linear("second", optimizer=tf.train.AdamOptimizer(0.1))
    one = first.optimizer.minimize(first.loss, var_list=[first.w])
    two = second.optimizer.minimize(second.loss, var_list=[second.w])
    with started() as sess:
        for _ in range(2):
            sess.run(one, first.feed())
        sess.run(two, second.feed())
        assert (sess.run(first.w) != 1).all() and (sess.run(second.w) == 1).all()


def _clipped_together(model):
    second = tf.get_variable("second", [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(model.x, model.w + second) - model.y))
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [model.w, second]), 1.0)
    one = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradients[0], model.w)])
    return one, tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradients[1], second)]), second


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_optimizers_that_share_gradients_must_run_together(init, order):
    init(1, pipeline__num_micro_batch=2)
    model = Linear()
    train_ops = _clipped_together(model)[:2]
    with started() as sess:
        sess.run(train_ops[order[0]], model.feed())
        assert "An optimizer did not run in each micro step" in error_text(sess.run, train_ops[order[1]], model.feed())


@both
def test_optimizers_that_share_gradients_and_run_together(init, devices):
    init(devices, pipeline__num_micro_batch=2)
    model = Linear()
    one, two, second = _clipped_together(model)
    with started() as sess:
        for _ in range(2):
            sess.run([one, two], model.feed())
        weights = sess.run([model.w, second])
        np.testing.assert_array_equal(weights[0], weights[1])
        assert (weights[0] != 1).any()


@both
def test_a_gradient_that_one_optimizer_applies_and_another_changes(init, devices):
    init(devices, pipeline__num_micro_batch=2)
    model = Linear()
    second = tf.get_variable("second", [3, 1], initializer=tf.ones_initializer())
    gradients = tf.gradients(model.loss + tf.reduce_sum(tf.square(second)), [model.w, second])
    one = model.optimizer.apply_gradients([(gradients[0], model.w)])
    clipped, _ = tf.clip_by_global_norm(gradients, 1e6)
    two = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(clipped[1], second)])
    feeds = [model.feed(seed=seed) for seed in range(2)]
    with started() as sess:
        for feed in feeds:
            sess.run([one, two], feed)
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)
        np.testing.assert_allclose(sess.run(second), np.full([3, 1], 0.8), rtol=1e-5)


@both
@pytest.mark.parametrize("resource", [False, True])
def test_gradients_applied_in_a_branch_of_the_user(init, devices, resource):
    init(devices, pipeline__num_micro_batch=2)
    model = Linear(resource=resource)
    pairs = model.optimizer.compute_gradients(model.loss)
    on = tf.placeholder(tf.bool, [])
    train_op = tf.cond(on, lambda: tf.group(model.optimizer.apply_gradients(pairs)), tf.no_op)
    feeds = [model.feed(seed=seed) for seed in range(2)]
    with started() as sess:
        sess.run(train_op, with_value(feeds[0], on, True))
        sess.run(train_op, with_value(model.feed(seed=9), on, False))
        sess.run(train_op, with_value(feeds[1], on, True))
        np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)


@both
def test_with_control_flow_v2_on(init, devices):
    init(devices, pipeline__num_micro_batch=2)
    tf.enable_control_flow_v2()
    try:
        model = Linear(resource=True)
        train_op = model.minimize()
        assert tf.control_flow_v2_enabled()
        feeds = [model.feed(seed=seed) for seed in range(2)]
        with started() as sess:
            for feed in feeds:
                sess.run(train_op, feed)
            np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)
    finally:
        tf.disable_control_flow_v2()


@both
def test_a_monitored_session_stops_at_the_global_step(init, devices, tmp_path):
    init(devices, pipeline__num_micro_batch=STEPS)
    model = Linear()
    step = tf.train.get_or_create_global_step()
    train_op = model.optimizer.minimize(model.loss, step)
    runs = 0
    hooks = [tf.train.StopAtStepHook(last_step=4)]
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, hooks=hooks) as sess:
        while not sess.should_stop():
            sess.run(train_op, model.feed())
            runs += 1
    assert runs == 4 * STEPS
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-4")


@WITH_ESTIMATOR
def test_an_estimator_trains_as_many_global_steps_as_asked(init, tmp_path):
    init(1, pipeline__num_micro_batch=STEPS)
    runs = []

    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(features, 1) - labels))
        train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        count = tf.train.FinalOpsHook(tf.train.get_global_step())
        runs.append(count)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[count])

    def input_fn():
        rows = (np.ones([4, 3], "f"), np.ones([4, 1], "f"))
        return tf.data.Dataset.from_tensors(rows).repeat(2 * STEPS)

    trainer = tf.estimator.Estimator(model_fn, str(tmp_path))
    trainer.train(input_fn, steps=2)
    assert runs[0].final_ops_values == 2


def test_an_exported_graph_can_be_imported_by_plain_tensorflow(init):
    init(2, pipeline__num_micro_batch=2)
    model = Linear()
    train_op = model.minimize()
    with started() as sess:
        sess.run(train_op, model.feed())
        exported = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.train.import_meta_graph(exported)


def test_two_earlier_counts_cannot_be_joined(init):
    init(1, pipeline__num_micro_batch=2)
    model = Linear()
    second = tf.get_variable("second", [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.matmul(model.x, model.w * second))
    gradients = tf.gradients(loss, [model.w, second])
    for gradient, variable in zip(gradients, [model.w, second]):
        model.optimizer.apply_gradients([(2 * gradient, variable)])
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    with pytest.raises(PlanError, match="count their micro steps apart"):
        model.optimizer.apply_gradients(zip(clipped, [model.w, second]))


def test_a_loop_is_refused(init):
    init(1, pipeline__num_micro_batch=2)
    model = Linear(resource=True)

    def body(i):
        with tf.control_dependencies([model.optimizer.apply_gradients([(tf.ones([3, 1]), model.w)])]):
            return i + 1

    with pytest.raises(PlanError, match="inside a tf.while_loop"):
        tf.while_loop(lambda i: i < 2, body, [0])


def test_an_optimizer_added_after_the_first_run_is_refused(init):
    init(1, pipeline__num_micro_batch=2)
    model = Linear()
    gradients = tf.gradients(model.loss, [model.w])
    with started():
        with pytest.raises(PlanError, match="Build the whole training step before the first run"):
            model.optimizer.apply_gradients(zip(gradients, [model.w]))


@both
def test_several_taskgraphs_on_the_same_devices_are_one_stage(init, devices):
    init(devices, annotate=False, pipeline__num_micro_batch=2)
    with epl.Cluster(layout="all"):
        with epl.replicate(1):
            model = Linear()
        with epl.replicate(1):
            model.loss = tf.reduce_mean(tf.square(model.out - model.y))
        train_op = model.minimize()
        feeds = [model.feed(seed=seed) for seed in range(2)]
        with started() as sess:
            for feed in feeds:
                sess.run(train_op, feed)
            np.testing.assert_allclose(sess.run(model.w), expected(model, feeds), rtol=1e-5)


def test_stages_annotated_after_apply_gradients_are_refused(init):
    init(2, annotate=False, pipeline__num_micro_batch=2)
    with epl.replicate(1):
        model = Linear()
        train_op = model.minimize()
    with epl.replicate(1):
        tf.reduce_sum(model.out)
    with tf.Session() as sess:
        with pytest.raises(PlanError, match="Annotate the whole model before"):
            sess.run(train_op, model.feed())


def test_gradients_written_without_an_optimizer_are_refused(init):
    init(2, pipeline__num_micro_batch=2)
    model = Linear()
    (gradient,) = tf.gradients(model.loss, [model.w])
    update = model.w.assign_sub(0.1 * gradient)
    with tf.Session() as sess:
        with pytest.raises(PlanError, match="the gradient of w is written to a variable without an optimizer"):
            sess.run(update, model.feed())


def test_a_model_without_an_optimizer_gets_a_warning(init, caplog):
    init(1, pipeline__num_micro_batch=2)
    model = Linear()
    gradient = tf.gradients(model.loss, [model.w])
    with started() as sess:
        sess.run(gradient, model.feed())
    assert "pipeline.num_micro_batch is 2 and has no effect" in caplog.text


@pytest.mark.parametrize("steps", [1, 2])
def test_a_write_beside_a_branch_that_is_not_taken_is_done(init, steps):
    """The gate, which writes wait for, stands outside of the branch, with and without accumulation."""
    init(2, pipeline__num_micro_batch=steps)
    rows = tf.data.Dataset.from_tensors(np.ones([3], "f")).repeat(4).make_initializable_iterator()
    weight = tf.get_variable("weight", [3], initializer=tf.ones_initializer())
    seen = tf.get_variable("seen", [], initializer=tf.zeros_initializer(), trainable=False)
    row = rows.get_next()
    update = seen.assign_add(tf.reduce_sum(row))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(tf.reduce_sum(weight * row))
    on = tf.placeholder_with_default(False, [])
    train_op = tf.cond(on, lambda: tf.group(optimizer.apply_gradients(pairs)), tf.no_op)
    with started() as sess:
        sess.run(rows.initializer)
        sess.run([update.op, train_op])
        assert sess.run(seen) == 3
