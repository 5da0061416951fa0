"""Whole values that are written into sharded variables, before and after the first run: those of one device."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import error_text

ROWS, COLUMNS = 8, 1024
FULL = np.arange(ROWS * COLUMNS, dtype="f").reshape(ROWS, COLUMNS) / (ROWS * COLUMNS)
FEED = {"x:0": np.linspace(-1.0, 1.0, 4 * ROWS, dtype="f").reshape(4, ROWS)}
PLANS = ["v0", "v1", "v2", "split"]


class Model:
    """One product, trained with momentum."""

    def __init__(self, plan: str, resource: bool) -> None:
        x = tf.placeholder(tf.float32, [None, ROWS], "x")
        with epl.split(2) if plan == "split" else epl.replicate(1):
            self.kernel = tf.get_variable(
                "kernel", [ROWS, COLUMNS], initializer=tf.ones_initializer(), use_resource=resource
            )
            self.loss = 4.096 * tf.reduce_mean(tf.square(tf.matmul(x, self.kernel)))
        optimizer = tf.train.MomentumOptimizer(0.01, 0.9)
        self.train_op = optimizer.minimize(self.loss)
        self.slot = optimizer.get_slot(self.kernel, "momentum")


@pytest.fixture
def model(init: Any) -> Any:
    def call(plan: str, resource: bool) -> Model:
        init(2, annotate=False, **({} if plan == "split" else {"zero__level": plan}))
        return Model(plan, resource)

    return call


def trained(value: np.ndarray, steps: int) -> np.ndarray:
    """What momentum makes of weights, by numpy."""
    x, slot = FEED["x:0"].astype("d"), 0.0
    for _ in range(steps):
        slot = 0.9 * slot + 2.0 * x.T @ (x @ value) / 1000.0
        value = value - 0.01 * slot
    return value


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_a_value_that_is_assigned_after_the_first_run_is_that_of_one_device(
    model: Any, plan: str, resource: bool
) -> None:
    one = model(plan, resource)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(one.train_op, FEED)
        fed = tf.placeholder(tf.float32, [ROWS, COLUMNS])
        assigned = one.kernel.assign(fed)
        np.testing.assert_array_equal(sess.run(assigned, {fed: FULL + 1}), FULL + 1)
        np.testing.assert_array_equal(sess.run(one.kernel), FULL + 1)
        np.testing.assert_array_equal(sess.run(tf.assign(one.kernel, FULL + 2)), FULL + 2)
        sess.run([assigned.op, one.slot.assign(tf.zeros([ROWS, COLUMNS]))], {fed: FULL})
        np.testing.assert_array_equal(sess.run(one.slot), np.zeros([ROWS, COLUMNS]))
        for _ in range(2):
            sess.run(one.train_op, FEED)
        np.testing.assert_allclose(sess.run(one.kernel), trained(FULL, 2), rtol=1e-5, atol=1e-6)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy that lies where TensorFlow takes an array as it is, without a copy."""
    memory = np.empty(array.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    value = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    value[:] = array
    return value


@pytest.mark.parametrize("way", ["initializer", "before gradients", "after gradients"])
def test_an_array_that_is_fed_to_a_write_before_the_first_run_is_not_trained(init: Any, way: str) -> None:
    init(2, zero__level="v1")
    value = aligned_copy(FULL)
    x, fed = tf.placeholder(tf.float32, [None, ROWS], "x"), tf.placeholder(tf.float32, [ROWS, COLUMNS])
    initial = fed if way == "initializer" else tf.ones([ROWS, COLUMNS])
    kernel = tf.get_variable("kernel", initializer=initial, use_resource=True)
    write = kernel.assign(fed).op if way == "before gradients" else tf.no_op()
    train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(tf.reduce_mean(tf.square(tf.matmul(x, kernel))))
    if way == "after gradients":
        write = kernel.assign(fed).op
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer(), {fed: value})
        sess.run(write, {fed: value})
        np.testing.assert_array_equal(sess.run(kernel), FULL)
        sess.run(train_op, FEED)
        np.testing.assert_array_equal(value, FULL)


@pytest.mark.parametrize("plan", PLANS)
def test_an_array_that_was_assigned_is_not_trained(model: Any, plan: str) -> None:
    one = model(plan, True)
    value = aligned_copy(FULL)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        fed = tf.placeholder(tf.float32, [ROWS, COLUMNS])
        sess.run(one.train_op, FEED)
        sess.run(one.kernel.assign(fed).op, {fed: value})
        sess.run(one.train_op, FEED)
        np.testing.assert_array_equal(value, FULL)
        one.kernel.load(value, sess)
        sess.run(one.train_op, FEED)
        np.testing.assert_array_equal(value, FULL)


@pytest.mark.grid
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_load_writes_all_shards_and_adds_its_ops_once(model: Any, plan: str, resource: bool) -> None:
    one = model(plan, resource)
    with tf.Session() as sess:
        one.kernel.load(FULL, sess)  # the first run of all
        np.testing.assert_array_equal(sess.run(one.kernel), FULL)
        sess.run(tf.global_variables_initializer())
        sess.run(one.train_op, FEED)
        one.slot.load(np.zeros([ROWS, COLUMNS]), sess)
        tf.get_default_graph().finalize()
        for number in range(3):
            one.kernel.load(FULL + number, sess)
            np.testing.assert_array_equal(sess.run(one.kernel), FULL + number)
            if number == 1:
                ops = len(sess.graph.get_operations())
        assert len(sess.graph.get_operations()) == ops
        one.kernel.load(FULL, sess)
        sess.run(one.train_op, FEED)
        np.testing.assert_allclose(sess.run(one.kernel), trained(FULL, 1), rtol=1e-5, atol=1e-6)
    assert error_text(one.kernel.load, FULL).startswith("ValueError: 'kernel:0'.load needs a session")


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("plan", ["v1", "split"])
def test_what_an_assignment_gives_is_its_value(model: Any, plan: str, resource: bool) -> None:
    """Built before the first run: a fetch of it runs it."""
    one = model(plan, resource)
    fed = tf.placeholder(tf.float32, [ROWS, COLUMNS])
    assigned, added = one.kernel.assign(fed), one.kernel.assign_add(fed)
    with tf.control_dependencies([one.train_op]):
        after = one.kernel.read_value()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(sess.run(assigned, {fed: FULL}), FULL)
        np.testing.assert_array_equal(sess.run(one.kernel), FULL)
        np.testing.assert_allclose(sess.run(added, {fed: -2 * FULL}), -FULL)
        np.testing.assert_array_equal(sess.run(one.kernel), -FULL)
        sess.run(assigned, {fed: FULL})
        np.testing.assert_allclose(sess.run(after, FEED), trained(FULL, 1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sess.run(one.kernel), trained(FULL, 1), rtol=1e-5, atol=1e-6)


def whole_sum(one: Model) -> Any:
    return tf.reduce_sum(one.kernel)


def added(one: Model) -> Any:
    return one.kernel.assign_add(FULL)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("use", [whole_sum, added])
@pytest.mark.parametrize("plan", ["v1", "split"])
def test_other_uses_after_the_first_run_are_refused(model: Any, plan: str, use: Any, resource: bool) -> None:
    one = model(plan, resource)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        text = error_text(lambda: sess.run(use(one)))
        setting = "epl.split" if plan == "split" else "zero.level"
        assert "takes 'kernel' and was built after the first Session.run. With {}".format(setting) in text


@pytest.mark.parametrize("plan", ["v1", "split"])
def test_a_value_of_another_shape_is_refused(model: Any, plan: str) -> None:
    one = model(plan, True)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        text = error_text(lambda: sess.run(one.kernel.assign(FULL[:, : COLUMNS // 2])))
        assert "8, 512" in text or "(8, 512)" in text


@pytest.mark.parametrize("plan", ["v1", "split"])
def test_reads_states_and_savers_that_are_built_late_are_not_refused(model: Any, plan: str, tmpdir: Any) -> None:
    one = model(plan, True)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(one.train_op, FEED)
        value = sess.run(one.kernel.value())
        assert sess.run(tf.report_uninitialized_variables()).size == 0
        assert sess.run(tf.is_variable_initialized(one.kernel))
        saver = tf.train.Saver()
        path = saver.save(sess, str(tmpdir.join("late")))
        one.kernel.load(FULL, sess)
        saver.restore(sess, path)
        np.testing.assert_array_equal(sess.run(one.kernel), value)
