"""Training that EPL would have no part in is refused by name, with what to do."""

import importlib

import numpy as np
import pytest
import tensorflow as tf_api
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from tests.parallel.in_process import Linear, error_text
from tests.tensorflows import ONLY_2

X = np.ones([8, 3], "f")
Y = np.ones([8, 1], "f")


def keras(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"there is no {name.split('.')[0]} here")


def keras_3():
    module = keras("keras")
    if module.__version__.startswith("2"):
        pytest.skip("this Keras is Keras 2")
    return module


@ONLY_2
@pytest.mark.parametrize("name", ["tf_keras.optimizers", "keras.optimizers"])
@pytest.mark.parametrize("where", ["graph", "function"])
def test_optimizers_whose_updates_epl_does_not_know_are_refused_by_name(init, name, where):
    optimizers = keras(name)
    init(2)
    model = Linear(resource=True)
    optimizer = optimizers.SGD(0.1)
    if where == "graph":
        gradients = tf.gradients(model.loss, [model.w])
        text = error_text(optimizer.apply_gradients, zip(gradients, [model.w]))
    else:
        text = error_text(tf.function(lambda: optimizer.apply_gradients([(tf.ones([3, 1]), model.w)])))
    assert "PlanError" in text and "optimizers.sgd.SGD is an optimizer of Keras 3" in text
    assert "tf.compat.v1.keras.optimizers.SGD" in text


@ONLY_2
def test_a_keras_model_is_not_compiled_with_one_of_them(init):
    keras("tf_keras")
    init(2)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    text = error_text(model.compile, tf_api.keras.optimizers.Adam(0.1), "mse")
    tf.keras.backend.clear_session()
    assert text.startswith("PlanError") and "optimizers.adam.Adam is an optimizer of Keras 3 or of the newer" in text


@ONLY_2
@pytest.mark.parametrize("call", ["compile", "fit", "train_on_batch"])
def test_a_model_of_keras_3_is_refused_by_name(init, call):
    keras = keras_3()
    init(2, annotate=False)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    arguments = ("sgd", "mse") if call == "compile" else (X, Y)
    if call != "compile":
        model.compile("sgd", "mse")  # before the annotation
    with epl.replicate(1):
        text = error_text(getattr(model, call), *arguments)
    assert "PlanError" in text and "sequential.Sequential is a model of Keras 3" in text
    assert "TF_USE_LEGACY_KERAS=1" in text


@ONLY_2
def test_layers_of_keras_3_train_in_the_graph(init):
    keras = keras_3()
    init(2)
    x = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.square(keras.layers.Dense(1)(x)))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
    assert Graph.get().rewritten.world_size == 2


def test_a_tape_in_a_function_is_refused(init):
    init(2)
    model = Linear(resource=True)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, model.w)))
        return model.w.assign_sub(0.1 * tape.gradient(loss, model.w))

    text = error_text(step, tf.constant(X))
    assert "PlanError" in text and "the variable 'w' inside a tf.function" in text
    assert "minimize of a tf.compat.v1.train optimizer" in text


def of_tape(model):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(model.x, model.w)))
    return tape.gradient(loss, model.w)


def of_function(model):
    return tf.function(lambda x: tf.gradients(tf.reduce_mean(tf.square(tf.matmul(x, model.w))), model.w)[0])(model.x)


@pytest.mark.parametrize("gradient, words", [(of_tape, "tf.GradientTape"), (of_function, "tf.gradients inside a tf.")])
@pytest.mark.parametrize("use", ["by hand", "optimizer", "one device"])
def test_gradients_that_epl_cannot_follow_need_an_optimizer(init, gradient, words, use):
    init(1 if use == "one device" else 2)
    model = Linear(resource=True)
    made = gradient(model)
    if use == "optimizer":
        train_op = model.optimizer.apply_gradients([(made, model.w)])
    else:
        train_op = model.w.assign_sub(0.1 * made)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        text = error_text(sess.run, train_op, model.feed())
        if use == "by hand":
            assert text.startswith(f"PlanError: The gradients of variables are those of {words}")
            text = error_text(sess.make_callable, train_op)
            assert text.startswith(f"PlanError: The gradients of variables are those of {words}")
        else:
            assert not text


@pytest.mark.parametrize("gradient", [of_tape, of_function])
def test_gradients_that_write_no_weights_are_left_alone(init, gradient):
    """Fisher information next to a step by hand; a momentum by hand is training, unless it is written from all rows."""
    init(2)
    model = Linear(resource=True)
    made = gradient(model)
    fisher, momentum = (tf.get_variable(name, initializer=tf.zeros([3, 1]), use_resource=True) for name in "fm")
    noted = [fisher.assign_add(tf.square(made)), tf.norm(made)]
    (followed,) = tf.gradients(model.loss, [model.w])
    by_hand = model.w.assign_sub(0.1 * followed)
    moved = momentum.assign(0.9 * momentum + made)
    trained = model.w.assign_sub(0.1 * momentum)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run([*noted, by_hand], model.feed())
        assert np.all(sess.run(fisher) > 0)
        expected, whole = sess.run(made, model.feed()), sess.run(moved, model.feed())
        weights = sess.run(model.w)
        said = error_text(sess.run, trained)
        if gradient is of_function:
            assert said.startswith("PlanError: The gradients of variables are those of")
        else:
            np.testing.assert_allclose(whole, expected, rtol=1e-6)
            np.testing.assert_allclose(sess.run(model.w), weights - 0.1 * whole, rtol=1e-6)


def test_gradients_by_inputs_are_left_alone(init):
    init(2)
    model = Linear(resource=True)

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = tf.reduce_sum(tf.matmul(x, model.w))
        return tape.gradient(out, x)

    found = tf.function(slope)(model.x), slope(model.x)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for value in sess.run(found, {model.x: X}):
            np.testing.assert_array_equal(value, np.ones([8, 3]))


def mirrored():
    return tf.distribute.MirroredStrategy(["/cpu:0"])


@pytest.mark.parametrize("place", ["in the model", "around epl.init"])
def test_a_distribution_strategy_is_refused(init, place):
    init(2)
    if place == "in the model":
        text = error_text(mirrored().scope)
    else:
        Env.get().reset()
        with mirrored().scope():
            text = error_text(epl.init, epl.Config({"cluster.device_type": "cpu", "cluster.num_virtual_devices": 2}))
    assert text.startswith("PlanError: The scope of tf.distribute.MirroredStrategy") and "epl.replicate(1)" in text


@pytest.mark.parametrize("devices, strategy", [(1, "one"), (2, "one"), (1, "mirrored"), (2, "none")])
def test_a_strategy_that_replicates_nothing_twice_is_left_alone(init, devices, strategy):
    init(devices)
    make = {"one": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"), "mirrored": mirrored}
    used = make.get(strategy, tf.distribute.get_strategy)()
    with used.scope():
        model = Linear()
        if strategy == "mirrored":  # TensorFlow trains its variables there alone
            getattr(used, "run", getattr(used, "experimental_run_v2", None))(model.minimize)
    if strategy != "mirrored":
        model.minimize()
    feed = model.feed()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, feed)
        found = sess.run(model.w)
    x, y = feed[model.x], feed[model.y]
    expected = np.ones([3, 1]) - 0.1 * 2 * np.matmul(x.T, np.matmul(x, np.ones([3, 1])) - y) / len(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
