"""Sessions: variables of the replicas are equal before a step, whatever wrote them; and who may run when."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.runtime.session import GraphRunner
from epl.utils import tf_compat
from tests.parallel.in_process import Linear, error_text, replicas_equal, value


def trained(steps=2, **options):
    model = Linear(optimizer=tf.train.MomentumOptimizer(0.1, 0.9), **options)
    model.minimize()
    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    for _ in range(steps):
        sess.run(model.train_op, model.feed())
    return model, sess


@pytest.mark.parametrize("resource", [False, True])
def test_replicas_begin_equal_and_stay_equal(init, resource):
    init(3)
    _, sess = trained(resource=resource)
    assert replicas_equal(sess, "w", "w/Momentum")
    assert np.array_equal(value(sess, "EPL_REPLICA_2/w"), value(sess, "w"))


def test_random_initial_values_are_those_of_replica_0(init):
    init()
    hidden = tf.layers.dense(tf.placeholder(tf.float32, [None, 3], "x"), 2, name="dense")
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(hidden))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = value(sess, "dense/kernel")
        sess.run(train_op, {"x:0": np.ones([2, 3])})
        assert replicas_equal(sess, "dense/kernel") and np.array_equal(before, value(sess, "dense/kernel"))


@pytest.mark.parametrize("write", ["load", "restore", "initializer"])
def test_what_writes_replica_0_reaches_the_others_before_the_next_step(init, write, tmp_path):
    init()
    model, sess = trained(0)
    saver = tf.train.Saver()
    path = saver.save(sess, str(tmp_path / "model"))
    sess.run(model.train_op, model.feed())
    if write == "load":
        model.w.load(np.full([3, 1], 7, "f"), sess)
    elif write == "restore":
        saver.restore(sess, path)
    else:
        sess.run(tf.global_variables_initializer())
    before = value(sess, "w")
    sess.run(model.train_op, model.feed())
    assert replicas_equal(sess, "w", "w/Momentum") and not np.array_equal(before, value(sess, "w"))


def test_a_staged_initialisation(init):
    init()
    model = Linear()
    model.minimize()
    extra = tf.get_variable("extra", [], trainable=False)
    add = extra.assign_add(1.0)
    with tf.Session() as sess:
        sess.run(model.w.initializer)
        sess.run(model.train_op, model.feed())
        sess.run(extra.initializer)
        sess.run([model.train_op, add], model.feed())
        assert replicas_equal(sess, "w", "extra")


def test_two_sessions_keep_their_own_state(init):
    init()
    model, first = trained(2)
    with tf.Session() as second:
        second.run(tf.global_variables_initializer())
        second.run(model.train_op, model.feed())
        assert replicas_equal(second, "w") and replicas_equal(first, "w")
        assert not np.array_equal(value(first, "w"), value(second, "w"))


def test_a_variable_without_a_value_is_an_error_of_tensorflow(init):
    init()
    model = Linear()
    model.minimize()
    with tf.Session() as sess:
        assert "uninitialized" in error_text(sess.run, model.train_op, model.feed())


def test_a_session_without_the_devices_of_the_plan_is_refused(init):
    init()
    model = Linear()
    model.minimize()
    sess = tf.Session()
    sess.list_devices = lambda: []
    assert "/device:CPU:0, and the session has" in error_text(sess.run, model.train_op, model.feed())


def test_gradients_built_after_the_session_ran_the_old_ones_are_refused(init):
    init()
    sess = tf.Session()
    v = tf.get_variable("v", [2])
    Env.get().is_ready = True
    gradient = tf.gradients(tf.reduce_sum(v), v)
    plan = tf_compat.last_op_id(tf.get_default_graph())
    sess._epl_shipped = plan
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradient, [v]))
    assert "open a new session" in error_text(sess.run, train_op)


def test_partial_run_is_refused(init):
    init()
    model, sess = trained(0)
    assert "partial_run" in error_text(sess.partial_run_setup, [model.loss], [model.x, model.y])


def test_make_callable(init):
    init()
    model, sess = trained(0)
    call = sess.make_callable([model.loss, model.train_op], [model.x, model.y])
    feed = model.feed()
    losses = [call(feed[model.x], feed[model.y])[0] for _ in range(3)]
    assert losses[2] < losses[0] and replicas_equal(sess, "w")
    assert "TypeError: Expected 2 values" in error_text(call, feed[model.x])


def test_initializing_a_variable_of_no_collection_first(init):
    init()
    hidden = tf.Variable(tf.zeros([]), collections=[], trainable=False, name="hidden")
    model = Linear()
    with tf.control_dependencies([hidden.assign_add(1.0)]):
        model.minimize()
    with tf.Session() as sess:
        sess.run([hidden.initializer, tf.global_variables_initializer()])
        sess.run(model.train_op, model.feed())
        assert replicas_equal(sess, "w", "hidden")


def test_a_second_training_op_after_the_first_step(init):
    init()
    model, sess = trained(1)
    text = error_text(lambda: tf.train.GradientDescentOptimizer(0.1).minimize(model.loss).run(model.feed(), sess))
    assert text or replicas_equal(sess, "w")


def test_gradients_of_a_tape_get_a_warning(init, caplog):
    init()
    x = tf.placeholder(tf.float32, [None, 3], "x")
    w = tf.get_variable("w", [3, 1], use_resource=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(x, w))
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(tape.gradient(loss, [w]), [w]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([4, 3])})
        assert any("EPL_REPLICA_1" in name for name in tf_compat.op_names(tf.get_default_graph()))
    assert "tf.GradientTape differentiates the model" in caplog.text


def test_per_example_gradients_in_a_loop(init):
    init()
    x = tf.placeholder(tf.float32, [None, 3], "x")
    w = tf.get_variable("w", [3], use_resource=True)
    each = tf.map_fn(lambda row: tf.gradients(tf.reduce_sum(row * w), w)[0], x)
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(tf.reduce_mean(each, 0), w)])
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([4, 3])})
        assert replicas_equal(sess, "w")


def test_a_tape_of_py_function_is_shared_by_the_replicas(init):
    init()
    model = Linear()
    doubled = tf.py_function(lambda t: t * 2, [model.out], tf.float32)
    with tf.control_dependencies([tf.py_func(lambda: np.float32(0), [], tf.float32)]):
        loss = tf.reduce_mean(tf.identity(doubled))
    train_op = model.optimizer.minimize(loss)
    with tf.Session() as sess:
        text = error_text(sess.run, tf.global_variables_initializer())
    assert "py_function" in text and train_op is not None


def test_two_threads_that_train(init):
    init()
    model, sess = trained(1)
    errors = []

    def work():
        for _ in range(50):
            text = error_text(sess.run, model.train_op, model.feed())
            if text:
                errors.append(text)
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and replicas_equal(sess, "w")


def test_sessions_of_several_threads_that_run_first(init):
    init()
    model = Linear()
    model.minimize()
    initializer, graph, errors = tf.global_variables_initializer(), tf.get_default_graph(), []
    barrier = threading.Barrier(4)

    def work():
        with tf.Session(graph=graph) as sess:
            barrier.wait()
            errors.append(error_text(sess.run, initializer))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [""] * 4


def test_a_local_variable_that_is_never_initialized_costs_no_check_per_step(init, monkeypatch):
    init()
    model = Linear()
    model.minimize()
    tf.metrics.mean(model.loss)
    checks = []
    original = GraphRunner._uninitialized
    monkeypatch.setattr(GraphRunner, "_uninitialized", lambda *args: checks.append(1) or original(*args))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(5):
            sess.run(model.train_op, model.feed())
    assert len(checks) <= 2


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("key", ["LOCAL_VARIABLES", "GLOBAL_VARIABLES"])
def test_each_replica_keeps_the_batch_that_it_has_read_into_a_variable(init, key, resource):
    init()
    data = tf.data.Dataset.range(1, 9).map(lambda number: tf.cast(number, tf.float32)).batch(1)
    x = tf.reshape(data.make_one_shot_iterator().get_next(), [1])
    keys = [getattr(tf.GraphKeys, key)]
    batch = tf.get_variable(
        "batch", [1], initializer=tf.zeros_initializer(), trainable=False, collections=keys, use_resource=resource
    )
    read = batch.assign(x).op
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(w * batch))
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run(read)  # takes no value of a variable, and comes before the first step
        assert sorted([list(value(sess, name)) for name in ("batch", "EPL_REPLICA_1/batch")]) == [[1], [2]]
        sess.run(train_op)
        assert sess.run(w) == -1.5


def raw_runs(monkeypatch):
    """What GraphRunner gives to TensorFlow from now on: the number of fetches and of targets of each run."""
    runs = []
    original = GraphRunner.__init__

    def begin(runner, rewrite, raw):
        def run(session, handle, targets, fetches, *args):
            runs.append((len(fetches), len(targets)))
            return raw(session, handle, targets, fetches, *args)

        original(runner, rewrite, run)

    monkeypatch.setattr(GraphRunner, "__init__", begin)
    return runs


def test_tensorflow_is_not_asked_whether_variables_have_a_value_that_were_just_initialized(init, monkeypatch):
    init()
    runs = raw_runs(monkeypatch)
    trained(1)  # a variable and its momentum
    assert len(runs) == 3 and runs[1] == (0, 2)  # initializer, copies, step


def test_replicas_that_give_their_shards_initial_values_need_none_of_replica_0(init, monkeypatch):
    init(zero__level="v1")
    tf.get_variable("other", [3], trainable=False)
    runs = raw_runs(monkeypatch)
    trained(1)
    assert [fetches for fetches, _ in runs] == [0] * len(runs) and len(runs) <= 3


def test_it_is_asked_about_those_that_were_not(init, monkeypatch):
    init()
    model = Linear()
    model.minimize()
    idle = tf.get_variable("idle", [2], trainable=False)
    runs = raw_runs(monkeypatch)
    with tf.Session() as sess:
        sess.run([model.w.initializer])
        sess.run(model.train_op, model.feed())
        assert runs[1] == (1, 0)
        del runs[:]
        sess.run([idle.initializer, model.w.initializer])
        sess.run(model.train_op, model.feed())
        assert runs == [(0, 2), (0, 1), (0, 2)]  # no question: initializers, a copy, a step
        assert replicas_equal(sess, "w")


def test_a_value_that_is_fed_in_place_of_an_assignment_initializes_nothing(init, monkeypatch):
    init()
    model = Linear()
    model.minimize()
    assign = model.w.initializer
    runs = raw_runs(monkeypatch)
    with tf.Session() as sess:
        if assign.outputs:
            sess.run(tf.identity(assign.outputs[0]), {assign.outputs[0]: np.zeros([3, 1])})
        assert "uninitialized" in error_text(sess.run, model.train_op, model.feed())
    assert (1, 0) in runs  # asked


def test_sum_of_accumulated_gradients(init):
    results = []
    for devices in (1, 2):
        init(devices, communication__gradients_reduce_method="sum")
        model = Linear()
        total = tf.get_variable("total", [3, 1], initializer=tf.zeros_initializer(), trainable=False)
        ((gradient, _),) = model.optimizer.compute_gradients(model.loss, [model.w])
        add = total.assign_add(gradient)
        apply_op = model.optimizer.apply_gradients([(total, model.w)])
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for op in (add, add, apply_op):
                sess.run(op, model.feed())
            results.append(1 - sess.run(model.w))
    np.testing.assert_allclose(results[1], 2 * results[0], rtol=1e-4)  # the sum over two replicas, once


def test_a_metric_of_the_training_graph_counts_all_that_is_fed(init):
    init()
    model = Linear()
    model.minimize()
    mean, update = tf.metrics.mean(model.x)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        feed = model.feed()
        sess.run(model.train_op, feed)
        sess.run(update, feed)
        np.testing.assert_allclose(sess.run(mean), np.mean(feed[model.x]), rtol=1e-5)
