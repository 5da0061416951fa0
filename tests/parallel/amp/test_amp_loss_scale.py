"""Mixed precision: the loss scale, fixed and dynamic, and steps that are skipped."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import AmpSection
from tests.parallel.in_process import error_text, value
from tests.parallel.mixed import batch, run, weights


def scalar_model(power: float = 1.0) -> Any:
    """A training step whose gradient is the one row of the placeholder x; and its variable."""
    x = tf.placeholder(tf.float32, [None, 1], "x")
    kernel = tf.get_variable("w", [1, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.matmul(x, kernel))
    step = tf.train.get_or_create_global_step()
    return tf.train.GradientDescentOptimizer(0.5).minimize(loss, step), kernel


@pytest.mark.parametrize("scale", [1.0, 256.0, "dynamic"])
def test_gradients_are_true_whatever_the_scale(mixed: Any, scale: Any) -> None:
    mixed(amp__loss_scale=scale)
    train_op, kernel = scalar_model()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {"x:0": [[0.25]]})
        np.testing.assert_array_equal(sess.run(kernel), [[1.0 - 0.5 * 0.25]])


def test_small_gradients_do_not_vanish(mixed: Any) -> None:
    mixed(amp__loss_scale=2.0**15)
    x = batch(1)
    hidden = tf.matmul(tf.matmul(x, weights("w", 1, 1)), weights("v", 1, 1)) * 2.0**-26
    (gradient, _) = tf.gradients(tf.reduce_sum(hidden), tf.trainable_variables())
    assert np.all(run(gradient, {"x:0": [[1.0]]})[0] != 0)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_that_overflows_changes_nothing_but_the_scale(mixed: Any, devices: int) -> None:
    mixed(devices)
    train_op, kernel = scalar_model()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for last in (1.0, np.inf, np.nan, 1.0):
            sess.run(train_op, {"x:0": [[1.0]] * (devices - 1) + [[last]]})
        for prefix in ["", "EPL_REPLICA_1/"][:devices]:
            assert value(sess, prefix + "current_loss_scale") == 2.0**13
            assert value(sess, prefix + "good_steps") == 1
            np.testing.assert_array_equal(value(sess, prefix + "w"), [[0.0]])
        assert sess.run(tf.train.get_global_step()) == 2


@pytest.mark.grid
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_clip_by_value_hides_no_overflow(mixed: Any, devices: int, steps: int, sparse: bool) -> None:
    mixed(devices, pipeline__num_micro_batch=steps)
    x = batch(1)
    kernel = tf.get_variable("w", [2, 1], initializer=tf.ones_initializer())
    row = tf.gather(kernel, [1]) if sparse else kernel[1:]
    (gradient,) = tf.gradients(tf.reduce_mean(tf.matmul(x, row)), [kernel])
    if sparse:
        values = tf.clip_by_value(gradient.values, -1.0, 1.0)
        gradient = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    else:
        gradient = tf.clip_by_value(gradient, -1.0, 1.0)
    train_op = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(gradient, kernel)])
    run_all = [{"x:0": [[1.0]] * (devices - 1) + [[np.inf if step == 0 else 1.0]]} for step in range(steps)]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for feed in run_all:
            sess.run(train_op, feed)
        for prefix in ["", "EPL_REPLICA_1/"][:devices]:
            np.testing.assert_array_equal(value(sess, prefix + "w"), [[1.0], [1.0]])
            assert value(sess, prefix + "current_loss_scale") == 2.0**14


def test_the_scale_grows_after_2000_good_steps_and_is_at_least_1(mixed: Any) -> None:
    mixed()
    train_op, _ = scalar_model()
    scale, good = (
        next(v for v in tf.global_variables() if v.op.name == name) for name in ("current_loss_scale", "good_steps")
    )
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert sess.run([scale, good]) == [2.0**15, 0]
        good.load(1998.0, sess)
        seen = []
        for _ in range(3):
            sess.run(train_op, {"x:0": [[0.01]] * 4})
            seen.append(sess.run([scale, good]))
        assert seen == [[2.0**15, 1999], [2.0**16, 0], [2.0**16, 1]]
        scale.load(1.0, sess)
        sess.run(train_op, {"x:0": [[np.inf]]})
        assert sess.run([scale, good]) == [1.0, 0]


def test_the_fixed_scale_has_no_variables_and_skips_nothing(mixed: Any) -> None:
    mixed(amp__loss_scale=128)
    train_op, kernel = scalar_model()
    assert [v.op.name for v in tf.global_variables()] == ["w", "global_step"]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {"x:0": [[np.inf]]})
        assert not np.isfinite(sess.run(kernel)).all()


@pytest.mark.grid
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("together", [True, False])
def test_two_optimizers_adapt_one_scale_in_their_order(mixed: Any, devices: int, steps: int, together: bool) -> None:
    mixed(devices, pipeline__num_micro_batch=steps)
    x = batch(1)
    product = tf.matmul(x, weights("w", 1, 1))
    losses = [tf.reduce_mean(product), tf.reduce_mean(tf.matmul(product * 0.5, weights("v", 1, 1)))]
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    first, second = [
        optimizer.minimize(loss, var_list=[v]) for loss, v in zip(losses, tf.trainable_variables())
    ]  # fmt: skip
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(5):
            for _ in range(steps):
                feed = {"x:0": [[np.inf if number == 3 else 1.0]] * devices}
                for fetch in [[first, second]] if together else [first, second]:
                    sess.run(fetch, feed)
        assert len(Graph.get().rewritten.orders) == 1
        for prefix in ["", "EPL_REPLICA_1/"][:devices]:
            assert value(sess, prefix + "current_loss_scale") == 2.0**13
            assert value(sess, prefix + "good_steps") == 2


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_first_gradient_that_is_not_finite_is_named(mixed: Any, capfd: Any, devices: int, steps: int) -> None:
    mixed(devices, amp__debug_log=True, pipeline__num_micro_batch=steps)
    x = batch(2)
    first = tf.matmul(x, weights("inner", 2, 2))
    loss = tf.reduce_mean(tf.square(tf.matmul(first, weights("outer", 2, 2))))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    run(train_op, {"x:0": np.full([2, 2], 1e3, "f")}, steps=steps)
    lines = [line for line in capfd.readouterr().err.splitlines() if "Skipped a training step" in line]
    assert lines == ["Skipped a training step: the gradient of outer is not finite; the loss scale was 32768"]


STUCK = "WARNING: 20 training steps in a row were skipped: the gradient of "


def stuck(capfd: Any) -> Any:
    return [line for line in capfd.readouterr().err.splitlines() if STUCK in line]


@pytest.mark.grid
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("clipped", [False, True])
def test_a_training_that_skips_every_step_says_so_once(
    mixed: Any, capfd: Any, devices: int, steps: int, clipped: bool
) -> None:
    mixed(devices, pipeline__num_micro_batch=steps)
    x = batch(2)
    loss = tf.reduce_mean(tf.matmul(tf.matmul(x, weights("inner", 2, 2)), weights("outer", 2, 2)))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    if clipped:
        pairs = [(tf.clip_by_value(gradient, -1.0, 1.0), variable) for gradient, variable in pairs]
    train_op = optimizer.apply_gradients(pairs)
    bad, good = [{"x:0": np.full([2, 2], value, "f")} for value in (np.inf, 1.0)]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for feed, count, told in [(bad, 19, 0), (good, 1, 0), (bad, 19, 0), (bad, 1, 1), (bad, 30, 0), (good, 1, 0)]:
            for _ in range(count * steps):
                sess.run(train_op, feed)
            lines = stuck(capfd)
            assert len(lines) == told
            if told:
                assert lines[0].startswith(STUCK + "outer is not finite, and the loss scale is 1,")
        for _ in range(30 * steps):
            sess.run(train_op, bad)
        assert stuck(capfd) == []  # it was said


def test_an_optimizer_that_skips_every_step_next_to_one_that_does_not_says_so(mixed: Any, capfd: Any) -> None:
    mixed(2)
    x = batch(1)
    bad = tf.reduce_mean(tf.matmul(x, weights("bad", 1, 1))) * np.inf
    good = tf.reduce_mean(tf.matmul(x, weights("good", 1, 1)))
    trained = {variable.op.name: variable for variable in tf.trainable_variables()}
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    steps = [optimizer.minimize(loss, var_list=[trained[name]]) for loss, name in ((bad, "bad"), (good, "good"))]
    run(steps, {"x:0": [[1.0]] * 2}, steps=25)
    assert [line[len(STUCK) :][:3] for line in stuck(capfd)] == ["bad"]


def test_the_count_of_skips_is_in_no_collection_and_no_checkpoint(mixed: Any) -> None:
    mixed()
    scalar_model()
    names = {variable.op.name for variable in tf.global_variables() + tf.local_variables()}
    assert names == {"w", "global_step", "current_loss_scale", "good_steps"}


def test_the_training_op_stands_once_in_its_collection(mixed: Any) -> None:
    mixed()
    train_op, _ = scalar_model()
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [train_op]


def test_an_optimizer_of_keras_skips_steps(mixed: Any) -> None:
    mixed(2)
    kernel = tf.get_variable("w", [1, 1], initializer=tf.ones_initializer(), use_resource=True)
    gradients = tf.gradients(tf.reduce_mean(tf.matmul(batch(1), kernel)), [kernel])
    train_op = tf.keras.optimizers.SGD(0.5).apply_gradients(zip(gradients, [kernel]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for last in (1.0, np.inf):
            sess.run(train_op, {"x:0": [[1.0], [last]]})
        np.testing.assert_array_equal(sess.run(kernel), [[0.5]])


def test_the_scale_is_saved_and_restored(mixed: Any, tmpdir: Any) -> None:
    mixed(2)
    train_op, _ = scalar_model()
    seen = []
    for _ in range(2):
        with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmpdir), save_checkpoint_steps=1) as sess:
            sess.run(train_op, {"x:0": [[1.0], [np.inf]]})
            sess.run(train_op, {"x:0": [[1.0], [1.0]]})
            seen.append(sess.run(["current_loss_scale/Read/ReadVariableOp:0", "good_steps/Read/ReadVariableOp:0"]))
    assert seen == [[2.0**14, 1], [2.0**13, 1]]


def test_slots_have_their_usual_names(mixed: Any) -> None:
    mixed()
    loss = tf.reduce_mean(tf.matmul(batch(4), weights("w", 4, 4)))
    tf.train.AdamOptimizer().minimize(loss)
    names = {v.op.name for v in tf.global_variables()}
    assert names == {"w", "w/Adam", "w/Adam_1", "beta1_power", "beta2_power", "current_loss_scale", "good_steps"}


def test_apply_gradients_after_the_first_run_is_refused(mixed: Any) -> None:
    mixed()
    train_op, kernel = scalar_model()
    run(train_op, {"x:0": [[1.0]]})
    gradients = tf.gradients(tf.reduce_sum(kernel), [kernel])
    text = error_text(tf.train.GradientDescentOptimizer(0.1).apply_gradients, [(gradients[0], kernel)])
    assert text.startswith("PlanError")


def test_processes_compare_the_precision(mixed: Any) -> None:
    mixed(2, amp__loss_scale=4)
    train_op, _ = scalar_model()
    run(train_op, {"x:0": [[1.0], [1.0]]})
    amp = section(Graph.get().rewritten.plan, AmpSection)
    assert (amp.dtype, amp.loss_scale) == ("float16", "4.0") and amp.ops and amp.digest


# ---- Updates without apply_gradients


def by_hand(to: Any) -> tf.Operation:
    """A gradient that is written by an op of the script; `to` takes it and its variable."""
    x = tf.placeholder(tf.float32, [None, 1], "x")
    kernel = tf.get_variable("w", [1, 1], initializer=tf.ones_initializer())
    (gradient,) = tf.gradients(tf.reduce_mean(tf.matmul(x, kernel)), [kernel])
    return to(gradient, kernel)


def test_an_update_that_could_not_be_skipped_is_refused(mixed: Any) -> None:
    mixed(amp__loss_scale="dynamic")
    update = by_hand(lambda gradient, kernel: kernel.assign_sub(0.5 * gradient))
    text = error_text(run, update.op, {"x:0": [[1.0]]})
    assert "amp.loss_scale is 'dynamic', and the gradient of w is written into a variable without apply_grad" in text


@pytest.mark.parametrize("scale, trains", [("dynamic", False), (128.0, True)])
def test_a_norm_that_is_kept_and_a_fixed_scale_are_not_refused(mixed: Any, scale: Any, trains: bool) -> None:
    mixed(amp__loss_scale=scale)
    norm = tf.Variable(0.0, trainable=False)
    update = by_hand(lambda gradient, kernel: kernel.assign_sub(gradient) if trains else norm.assign(tf.norm(gradient)))
    run(update.op, {"x:0": [[1.0]]})


def accumulating(gradients: Any, variables: Any, optimizer: Any) -> Any:
    sums = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables]
    with tf.control_dependencies([one.assign_add(gradient) for one, gradient in zip(sums, gradients)]):
        return optimizer(0.5).apply_gradients([(one.read_value(), v) for one, v in zip(sums, variables)])


def looking(gradients: Any, variables: Any, optimizer: Any) -> Any:
    with tf.control_dependencies([tf.print(tf.global_norm(gradients))]):
        return optimizer(0.5).minimize(tf.get_collection("loss")[0])


def by_norm(gradients: Any, variables: Any, optimizer: Any) -> Any:
    return optimizer(0.5 / (1 + tf.global_norm(gradients))).minimize(tf.get_collection("loss")[0])


def perturbing(gradients: Any, variables: Any, optimizer: Any) -> Any:
    kept = [variable.read_value() for variable in variables]
    with tf.control_dependencies(kept):
        moved = [variable.assign_add(0.0 * gradient) for variable, gradient in zip(variables, gradients)]
    with tf.control_dependencies(moved):
        train_op = optimizer(0.5).minimize(tf.get_collection("loss")[0])
    with tf.control_dependencies([train_op]):
        return tf.no_op()


@pytest.mark.parametrize("train", [accumulating, looking, by_norm, perturbing])
def test_what_goes_through_an_optimizer_is_not_refused(mixed: Any, train: Any) -> None:
    mixed(amp__loss_scale="dynamic")
    x = tf.placeholder(tf.float32, [None, 1], "x")
    kernel = tf.get_variable("w", [1, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.matmul(x, kernel))
    tf.add_to_collection("loss", loss)
    train_op = train(tf.gradients(loss, [kernel]), [kernel], tf.train.GradientDescentOptimizer)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {"x:0": [[1.0]]})
        assert sess.run(kernel) < 1.0
