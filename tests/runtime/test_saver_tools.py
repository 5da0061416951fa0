"""Writing a checkpoint in pieces, and variables that begin with slices of one: `epl.runtime.saver`."""

import glob
import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.runtime.saver import MemoryEfficientBuilder, ShardingLoader

TABLE = np.arange(24, dtype=np.float32).reshape([6, 4])


def model(resource=False):
    """Variables of 96, 96, 16 and 8 bytes; returns the op of a training step and its placeholder."""
    with tf.variable_scope("", use_resource=resource):
        variables = [tf.get_variable("a", initializer=TABLE), tf.get_variable("b", initializer=2 * TABLE),
                     tf.get_variable("c", initializer=TABLE[0])]  # fmt: skip
    step = tf.train.get_or_create_global_step()
    x = tf.placeholder(tf.float32, [None, 6])
    loss = tf.reduce_mean(tf.square(tf.matmul(x, variables[0] + variables[1]) + variables[2]))
    return tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss, step), x


def values_of(path):
    reader = tf.train.NewCheckpointReader(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.grid
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("devices,config", [(1, {}), (2, {}), (2, {"zero__level": "v1"})], ids=str)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_checkpoint_in_pieces_is_that_of_tensorflow(init, tmp_path, devices, config, resource, sharded):
    init(devices, **config)
    train_op, x = model(resource)
    savers = [tf.train.Saver(builder=MemoryEfficientBuilder(100), sharded=sharded), tf.train.Saver()]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(train_op, {x: np.ones([2, 6])})
        paths = [saver.save(session, str(tmp_path / name)) for saver, name in zip(savers, ("pieces", "whole"))]
        pieces, whole = (values_of(path) for path in paths)
        assert sorted(pieces) == sorted(whole) and len(whole) == 7
        for name, value in whole.items():
            np.testing.assert_array_equal(pieces[name], value, name)
        assert len(glob.glob(str(tmp_path / "pieces.data-*"))) > 3 and not glob.glob(str(tmp_path / "*_temp_*"))
        session.run(train_op, {x: np.ones([2, 6])})
        savers[0].restore(session, paths[1])
        for variable in tf.global_variables():
            np.testing.assert_array_equal(session.run(variable), whole[variable.name[:-2]], variable.name)


def test_a_piece_waits_for_the_one_before(init):
    init(1, annotate=False)
    model()
    tf.train.Saver(builder=MemoryEfficientBuilder(100))
    writes = [op for op in tf.get_default_graph().get_operations() if op.type == "SaveV2"]
    assert len(writes) == 5 and not {op for value in writes[0].inputs[3:] for op in value.op.control_inputs}
    for before, after in zip(writes, writes[1:]):
        assert all(value.op.control_inputs == [before] for value in after.inputs[3:])


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None])
def test_a_size_that_is_none(size):
    with pytest.raises(ValueError, match="expected a positive number of bytes"):
        MemoryEfficientBuilder(size)


@pytest.fixture
def checkpoint(init, tmp_path):
    """A checkpoint of `table`, [6, 4], and `other`, [4]."""
    init(1, annotate=False)
    variables = [tf.Variable(TABLE, name="table"), tf.Variable(TABLE[1], name="other")]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver(variables).save(session, str(tmp_path / "saved"))
    return path


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("devices,config", [(1, {}), (2, {}), (2, {"zero__level": "v0"})], ids=str)
def test_variables_begin_with_what_the_checkpoint_has(init, checkpoint, devices, config, resource):
    init(devices, **config)
    with tf.variable_scope("", use_resource=resource):
        zeros = [tf.get_variable(name, shape, initializer=tf.zeros_initializer())
                 for name, shape in [("first", [6, 4]), ("second", [6, 4]), ("other", [4])]]  # fmt: skip
    initializer = tf.global_variables_initializer()  # made before: it holds the ops that are changed
    ShardingLoader(checkpoint, zeros, {"first": "table", "second": "table"}).restore()
    loss = tf.reduce_sum(zeros[0] * zeros[1] + zeros[2])
    tf.train.AdamOptimizer().minimize(loss)
    with tf.Session() as session:
        session.run([initializer, tf.global_variables_initializer()])
        for value, wanted in zip(session.run(zeros), (TABLE, TABLE, TABLE[1])):
            np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
def test_parts_begin_with_what_tensorflow_reads_from_the_checkpoint(init, checkpoint, level):
    init(2, zero__level=level)
    variables = [tf.get_variable(name, shape) for name, shape in [("table", [6, 4]), ("other", [4])]]
    tf.train.init_from_checkpoint(checkpoint, {"/": "/"})
    tf.train.AdamOptimizer().minimize(tf.reduce_sum(variables[0] + variables[1]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value, wanted in zip(session.run(variables), (TABLE, TABLE[1])):
            np.testing.assert_array_equal(value, wanted)


def load_with_tensorflow(path, variables):
    tf.train.init_from_checkpoint(path, {"/": "/"})


def load_by_object(path, variables):
    tf.train.init_from_checkpoint(path, {variable.op.name: variable for variable in variables})


def load_with_loader(path, variables):
    ShardingLoader(path, variables).restore()


def load_all_with_loader(path, variables):
    ShardingLoader(path).restore()


@pytest.mark.grid
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("config", [{}, {"zero__level": "v0"}, {"zero__level": "v1"}, {"zero__level": "v2"}], ids=str)
@pytest.mark.parametrize("load", [load_with_tensorflow, load_by_object, load_with_loader, load_all_with_loader])
@pytest.mark.parametrize("rows", [pytest.param(6, marks=pytest.mark.long), 7])
def test_variables_begin_with_a_checkpoint_that_is_read_behind_minimize(init, tmp_path, load, config, resource, rows):
    """Slots, too, where everything is loaded."""

    def trained(devices, config):
        init(devices, **config)
        with tf.variable_scope("", use_resource=resource):
            variables = [tf.get_variable(name, [rows, 4]) for name in "ab"]
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        train_op = optimizer.minimize(tf.reduce_sum(tf.square(variables[0] + variables[1])))
        return variables, optimizer, train_op

    variables, _, train_op = trained(1, {"annotate": False})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        path = tf.train.Saver().save(session, str(tmp_path / "saved"))
        saved = values_of(path)
    variables, optimizer, train_op = trained(2, config)
    load(path, variables)
    if load in (load_with_tensorflow, load_all_with_loader):
        variables += [optimizer.get_slot(variable, "momentum") for variable in variables]
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        for _ in range(2):  # the op is built after the first run, and initializes once more
            session.run(tf.global_variables_initializer())
            for variable, name in zip(variables, ["a", "b", "a/Momentum", "b/Momentum"]):
                np.testing.assert_array_equal(session.run(variable), saved[name], name)
            session.run(train_op)


def test_a_part_of_a_value(init, checkpoint):
    init(1, annotate=False)
    part = tf.get_variable("table", [2, 3])
    ShardingLoader(checkpoint, sharding_info={"table": ([1, 1], [2, -1])}).restore()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(part), TABLE[1:3, 1:])


def test_no_checkpoint_changes_nothing(init, caplog):
    init(1, annotate=False)
    variable = tf.get_variable("w", initializer=TABLE)
    with caplog.at_level(logging.WARNING, logger="epl"):
        ShardingLoader(None).restore()
    assert "has no checkpoint" in caplog.text
    with tf.Session() as session:
        session.run(variable.initializer)
        np.testing.assert_array_equal(session.run(variable), TABLE)


@pytest.mark.parametrize("name,shape,kind,arguments,words", [
    ("lost", [6, 4], tf.float32, {}, "there is no value 'lost'; it has other, table"),
    ("table", [6, 3], tf.float32, {}, r"expected float32 \[6, 3\], found float32 \[6, 4\] in 'table'"),
    ("table", [6, 4], tf.float64, {}, r"expected float64 \[6, 4\], found float32"),
    ("table", [2, 4], tf.float32, {"sharding_info": {"table": ([5, 0], [2, 4])}}, "is not within 'table'"),
    ("table", [2, 4], tf.float32, {"sharding_info": {"table": ([0], [2])}}, r"expected \(begin, size\) with 2 number"),
    ("table", [3, 4], tf.float32, {"sharding_info": {"table": ([0, 0], [2, 4])}}, r"\(a part of \[6, 4\]\)"),
], ids=str)  # fmt: skip
def test_what_does_not_fit_is_refused(init, checkpoint, name, shape, kind, arguments, words):
    init(1, annotate=False)
    variable = tf.get_variable(name, shape, kind)
    before = variable.initializer.inputs[1]
    with pytest.raises(ValueError, match=words):
        ShardingLoader(checkpoint, **arguments).restore()
    assert variable.initializer.inputs[1] is before


def test_a_checkpoint_that_is_none(init, tmp_path):
    init(1, annotate=False)
    with pytest.raises(ValueError, match="there is no checkpoint .*missing: expected the files"):
        ShardingLoader(str(tmp_path / "missing")).restore()
