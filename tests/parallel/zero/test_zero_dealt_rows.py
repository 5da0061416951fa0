"""Variables with fewer rows than devices (ZeRO): their rows are dealt out, and some devices have none."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph

DEVICES = 4
SHAPES = {"a": [2, 3, 3], "b": [3, 1], "c": [2]}  # device 0 has rows of the first alone
LEVELS = pytest.mark.parametrize("level", ["v0", "v1", "v2"])
KINDS = pytest.mark.parametrize("resource", [False, True])
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1, initial_accumulator_value=0.3),
    "adagrad_da": lambda: tf.train.AdagradDAOptimizer(
        0.1, tf.train.get_or_create_global_step(), initial_gradient_squared_accumulator_value=0.3
    ),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(1.0),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1, initial_accumulator_value=0.3),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
    "proximal": lambda: tf.train.ProximalGradientDescentOptimizer(0.1, 0.01),
    "proximal_adagrad": lambda: tf.train.ProximalAdagradOptimizer(0.1, initial_accumulator_value=0.3),
}


class Model:
    """Of three small variables, one of which is looked up in."""

    def __init__(self, resource=False, optimizer="adam"):
        draw = np.random.RandomState(0)
        self.x = tf.placeholder(tf.float32, [None, 3])
        self.variables = [
            tf.get_variable(name, initializer=draw.rand(*shape).astype(np.float32), use_resource=resource)
            for name, shape in SHAPES.items()
        ]
        a, b, c = self.variables
        row = tf.nn.embedding_lookup(b, tf.cast(self.x[:, 0] > 0.5, tf.int32))
        output = tf.matmul(tf.matmul(self.x, a[0] + a[1]), b) * c[0] + c[1] + row
        self.loss = tf.reduce_mean(tf.square(output - 1.0))
        self.train_op = OPTIMIZERS[optimizer]().minimize(self.loss)
        self.trained = [v for v in tf.global_variables() if v.op.name != "global_step"]

    def step(self, sess, number):
        x = np.random.RandomState(number).rand(8, 3).astype(np.float32)
        return sess.run([self.loss, self.train_op], {self.x: x})[0]


def trained(**model):
    """Losses, and all variables by name, of some steps in a fresh session."""
    made = Model(**model)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [made.step(sess, number) for number in range(4)]
        values = sess.run(made.trained)
    return losses, {variable.op.name: value for variable, value in zip(made.trained, values)}


def compare(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert set(found[1]) == set(expected[1])
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def shapes_of(name):
    """By device, the shape of its part of a variable."""
    graph = tf.get_default_graph()
    plan = Graph.of(graph).plan
    ops = [graph.get_operation_by_name(plan.prefix(copy) + name) for copy in range(DEVICES)]
    return [tuple(dim.size for dim in op.get_attr("shape").dim) for op in ops]


@LEVELS
@KINDS
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_training_is_that_of_data_parallelism(init, level, resource, optimizer):
    init(DEVICES)
    expected = trained(resource=resource, optimizer=optimizer)
    init(DEVICES, zero__level=level)
    compare(trained(resource=resource, optimizer=optimizer), expected)


@KINDS
@pytest.mark.parametrize("optimizer", sorted(set(OPTIMIZERS) - {"adam", "momentum"}))
def test_of_every_optimizer_of_tensorflow(init, resource, optimizer):
    init(DEVICES)
    expected = trained(resource=resource, optimizer=optimizer)
    init(DEVICES, zero__level="v1")
    compare(trained(resource=resource, optimizer=optimizer), expected)


def test_the_rows_are_dealt_out_and_so_are_those_of_slots(init):
    init(DEVICES, zero__level="v1")
    trained()

    def held(name, slot):
        return name + slot if slot else "EPL_SPLIT/" + name

    for slot in ("", "/Adam", "/Adam_1"):
        assert shapes_of(held("a", slot)) == [(2, 1, 3), (2, 1, 3), (2, 1, 3), (2, 0, 3)]
        assert shapes_of(held("b", slot)) == [(0, 1), (0, 1), (0, 1), (3, 1)]
        assert shapes_of(held("c", slot)) == [(0,), (0,), (0,), (2,)]


@KINDS
def test_what_has_no_value_yet_is_known_where_there_are_no_rows(init, resource):
    """A variable of no elements always has a value for TensorFlow, if it is of the older kind."""
    init(DEVICES, zero__level="v1")
    model = Model(resource)
    averages = tf.train.ExponentialMovingAverage(0.5)
    with tf.control_dependencies([model.train_op]):
        model.train_op = averages.apply(model.variables)
    shadows = [averages.average(variable) for variable in model.variables]
    with tf.Session() as sess:
        with pytest.raises(tf.errors.FailedPreconditionError):
            sess.run(model.variables)
        sess.run(tf.global_variables_initializer())
        first = sess.run(model.variables)
        for shadow, value in zip(sess.run(shadows), first):
            np.testing.assert_array_equal(shadow, value)
        model.step(sess, 0)
        values = sess.run(model.variables)
        sess.run(tf.variables_initializer(shadows))  # with the values of now
        for shadow, value, before in zip(sess.run(shadows), values, first):
            np.testing.assert_array_equal(shadow, value)
            assert not np.array_equal(value, before)


@LEVELS
@KINDS
@pytest.mark.parametrize("late", [False, True])
def test_checkpoints_are_whole(init, tmp_path, level, resource, late):
    init(DEVICES, zero__level=level)
    model = Model(resource)
    saver = None if late else tf.train.Saver()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        model.step(sess, 0)
        saver = saver or tf.train.Saver()
        path = saver.save(sess, str(tmp_path / "saved"))
        values = sess.run(model.trained)
        following = [model.step(sess, number) for number in (1, 2)]
        saver.restore(sess, path)
        for value, again in zip(values, sess.run(model.trained)):
            np.testing.assert_array_equal(again, value)
        np.testing.assert_allclose([model.step(sess, number) for number in (1, 2)], following, rtol=1e-6)
    saved = dict(tf.train.list_variables(path))
    assert saved == {variable.op.name: list(value.shape) for variable, value in zip(model.trained, values)}
    init(2, zero__level="v1")
    model = Model(resource)
    with tf.Session() as sess:
        tf.train.Saver().restore(sess, path)
        for value, again in zip(values, sess.run(model.trained)):
            np.testing.assert_array_equal(again, value)


@KINDS
@pytest.mark.parametrize("behind", [False, True])
def test_initial_values_from_a_checkpoint(init, tmp_path, resource, behind):
    init(DEVICES)
    model = Model(resource)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        model.step(sess, 0)
        expected = sess.run(model.trained)
        path = tf.train.Saver().save(sess, str(tmp_path / "saved"))
    init(DEVICES, zero__level="v1")
    if behind:
        model = Model(resource)
        tf.train.init_from_checkpoint(path, {variable.op.name: variable for variable in model.variables})
    else:
        with tf.variable_scope("", use_resource=resource):
            model = Model(resource)
        tf.train.init_from_checkpoint(path, {name: name for name in SHAPES})
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for value, again in zip(expected, sess.run(model.variables)):
            np.testing.assert_array_equal(again, value)


@KINDS
def test_an_assigned_value_is_cut(init, resource):
    init(DEVICES, zero__level="v2")
    model = Model(resource)
    given = [variable.assign(variable * 2.0) for variable in model.variables]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = sess.run(model.variables)
        for whole, value in zip(sess.run(given), before):
            np.testing.assert_array_equal(whole, 2.0 * value)
        for whole, value in zip(sess.run(model.variables), before):
            np.testing.assert_array_equal(whole, 2.0 * value)
