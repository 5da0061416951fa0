"""Checkpoints of shards, by real Savers: what one process with several ranks writes and reads."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.parallel.sharded_variables.savers import complete_savers, slices_of
from epl.parallel.sharded_variables.slots import adopt_slots
from epl.parallel.sharded_variables.variables import shard_variable
from epl.parallel.sharding.placements import shard
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.sharded_variables import ShardInfo
from epl.parallel.sharding.updates import trace_updates
from epl.utils import tf_compat
from tests.parallel.sharded_variables.shard_copies import PREFIX, copy_ranks

KINDS = pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
SHAPE = (6, 8)
TWO, THREE, UNEVEN = shard(1, [4, 4]), shard(0, [2, 2, 2]), shard(1, [5, 3])
ALONE, MIDDLE = shard(1, [8, 0]), shard(0, [4, 0, 2])  # with empty shards
NAMES = ["fc/kernel", "fc/kernel/Adam", "fc/kernel/Adam_1"]


@pytest.fixture(scope="module", autouse=True)
def job():
    """The job of this process."""
    with Job.start(["localhost:0"], 0) as job:
        yield job


@pytest.fixture(autouse=True)
def graph():
    """A fresh graph."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(3)
        yield graph


class Model:
    """One variable [6, 8] and Adam, plain or split over ranks of this process; `build` makes Savers."""

    def __init__(self, placement=None, resource=False, early_saver=None, saver=tf.train.Saver):
        with tf.variable_scope("fc"):
            self.variable = tf.get_variable("kernel", SHAPE, use_resource=resource)
        self.bias = tf.get_variable("bias", [8], use_resource=resource, trainable=False)
        self.saver = early_saver() if early_saver else None
        self.placement, self.ranks = placement, len(placement.sizes) if placement else 1
        self.graph = tf.get_default_graph()
        after = tf_compat.last_op_id(self.graph)
        if placement:
            resharder = Resharder(Communicator(f"savers{self.ranks}", [0] * self.ranks), 0, "test")
            found = shard_variable(self.variable, placement, resharder)
            loss = tf.reduce_sum(tf.square(resharder.hide_size(self.variable.value(), placement)))
        else:
            loss = tf.reduce_sum(tf.square(self.variable))
        optimizer = tf.train.AdamOptimizer(0.1)
        (gradient,) = tf.gradients(loss, [self.variable.op.outputs[0] if not resource else self.variable.handle])
        lowered = tf_compat.last_op_id(self.graph)
        step = optimizer.apply_gradients([(gradient, self.variable)])
        self.variables = [self.variable] + [optimizer.get_slot(self.variable, name) for name in ("m", "v")]
        initialize = tf.global_variables_initializer()
        self.step, self.initialize, self.copies = [step], [initialize], []
        if not placement:
            self.saver = self.saver or saver()
            return
        own = {self.variable.op.name: placement}
        updates = trace_updates(self.graph, {gradient: placement}, own, self.ranks, lowered)
        slots = adopt_slots(updates.variables, resharder, "epl.split")
        shapes, seeds = dict(slots.shapes, **found.shapes), dict(slots.seeds, **found.seeds)
        copy_ranks(after, resharder, shapes, seeds, range(1, self.ranks))
        self.saver = self.saver or saver()
        prefixes = [("", 0)] + [(PREFIX.format(rank), rank) for rank in range(1, self.ranks)]
        before = {found.name: self.variable.op.name}
        complete_savers(self.graph, slices_of(slots.variables, prefixes, before))
        self.step += self._copies_of(step)
        self.initialize += self._copies_of(initialize)
        # What is no shard is copied from rank 0, as EPL does.
        for variable in tf.global_variables():
            if variable.op.name.startswith("beta"):
                self.copies += [assign(op.name, variable) for op in self._copies_of(variable.op)]

    def _copies_of(self, op):
        return [self.graph.get_operation_by_name(PREFIX.format(rank) + op.name) for rank in range(1, self.ranks)]

    def values(self, sess):
        """The full values of the variable and its slots, and the bias."""
        read = []
        for variable in self.variables:
            parts = [sess.run(variable)]
            parts += [value(sess, op.name) for op in self._copies_of(variable.op)]
            read.append(np.concatenate(parts, self.placement.dim) if self.placement else parts[0])
        return read + [sess.run(self.bias)]


def assign(name, source):
    """Assigns the value of a variable to that of the given name."""
    op = tf.get_default_graph().get_operation_by_name(name)
    if op.type != "VarHandleOp":
        return tf.assign(op.outputs[0], source)
    return tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=source.read_value())


def value(sess, name):
    """The value of a variable by the name of its op."""
    op = sess.graph.get_operation_by_name(name)
    if op.type != "VarHandleOp":
        return sess.run(op.outputs[0])
    return sess.run(tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=op.get_attr("dtype")))


def trained_and_saved(path, placement, **options):
    """Trains three steps and saves; the values."""
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        model = Model(placement, **options)
        with tf.Session() as sess:
            sess.run(model.initialize)
            for _ in range(3):
                sess.run(model.step)
            model.saver.save(sess, path)
            return model.values(sess)


def restored(path, placement, **options):
    """The values of a model that reads the checkpoint, and after one step more."""
    with tf.Graph().as_default():
        model = Model(placement, **options)
        with tf.Session() as sess:
            sess.run(model.initialize)
            model.saver.restore(sess, path)
            before = model.values(sess)
            sess.run(model.copies)
            sess.run(model.step)
            return before, model.values(sess)


def same(one, other):
    """Compares lists of values bit for bit."""
    for a, b in zip(one, other):
        np.testing.assert_array_equal(a, b)


def close(one, other):
    """Compares lists of values; a fused update rounds by where an element lies in its buffer."""
    for a, b in zip(one, other):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@KINDS
def test_a_split_model_trains_and_saves_as_the_plain_one(tmp_path, resource):
    plain = trained_and_saved(str(tmp_path / "plain"), None, resource=resource)
    for name, placement in (("two", TWO), ("three", THREE), ("uneven", UNEVEN), ("alone", ALONE)):
        path = str(tmp_path / name)
        split = trained_and_saved(path, placement, resource=resource)
        close(split, plain)
        same([tf.train.load_variable(path, name) for name in NAMES], split)
        assert sorted(tf.train.list_variables(path)) == sorted(tf.train.list_variables(str(tmp_path / "plain")))


@pytest.mark.grid
@pytest.mark.parametrize(
    "source, target",
    [(None, TWO), (TWO, None), (TWO, THREE), (UNEVEN, TWO), (THREE, UNEVEN), (ALONE, MIDDLE), (MIDDLE, ALONE)],
)
@KINDS
def test_a_checkpoint_restores_into_another_split(tmp_path, source, target, resource):
    path = str(tmp_path / "model")
    saved = trained_and_saved(path, source, resource=resource)
    before, after = restored(path, target, resource=resource)
    same(before, saved)
    close(after, restored(path, None, resource=resource)[1])


@pytest.mark.grid
@pytest.mark.parametrize(
    "options",
    [
        {"early_saver": tf.train.Saver},
        {"early_saver": lambda: tf.train.Saver(reshape=True)},
        {"saver": lambda: tf.train.Saver(sharded=True)},
        {"saver": lambda: tf.train.Saver(restore_sequentially=True)},
        {"saver": lambda: tf.train.Saver(reshape=True)},
    ],
    ids=["before_the_split", "before_reshape", "sharded", "sequential", "reshape"],
)
@KINDS
def test_savers_of_every_kind_are_completed(tmp_path, options, resource):
    path = str(tmp_path / "model")
    saved = trained_and_saved(path, UNEVEN, resource=resource, **options)
    np.testing.assert_array_equal(tf.train.load_variable(path, "fc/kernel"), saved[0])
    before, _ = restored(path, UNEVEN, resource=resource, **options)
    same(before[:1], saved[:1])


@KINDS
def test_a_saver_with_keys_of_its_own_keeps_them(tmp_path, resource):
    path = str(tmp_path / "model")

    def saver():
        with tf.variable_scope("fc", reuse=True):
            return tf.train.Saver({"renamed": tf.get_variable("kernel")})

    saved = trained_and_saved(path, TWO, resource=resource, saver=saver)
    assert tf.train.list_variables(path) == [("renamed", list(SHAPE))]
    np.testing.assert_array_equal(tf.train.load_variable(path, "renamed"), saved[0])
    with tf.Graph().as_default():
        model = Model(TWO, resource=resource, saver=saver)
        with tf.Session() as sess:
            sess.run(model.initialize)
            model.saver.restore(sess, path)
            same(model.values(sess)[:1], saved[:1])


@KINDS
def test_moving_averages_are_found_under_the_names_of_the_single_device_program(tmp_path, resource):
    path = str(tmp_path / "model")

    def model(placement):
        made = Model(placement, resource, saver=lambda: None)
        average = tf.train.ExponentialMovingAverage(0.9)
        average.apply([made.variable])
        named = average.variables_to_restore()
        saver = tf.train.Saver({name: variable for name, variable in named.items() if variable is made.variable})
        return made.variable, saver, tf.train.Saver({"fc/kernel/ExponentialMovingAverage": made.variable})

    with tf.Graph().as_default(), tf.Session() as sess:
        variable, _, saver = model(None)
        sess.run(tf.global_variables_initializer())
        saver.save(sess, path)
        expected = sess.run(variable)
    with tf.Graph().as_default() as graph:
        variable, saver, _ = model(TWO)
        held = {variable.op.name: ShardInfo("fc/kernel", SHAPE, TWO, "epl.split")}
        complete_savers(graph, slices_of(held, [("", 0)], {}))
        with tf.Session() as sess:
            saver.restore(sess, path)
            np.testing.assert_array_equal(sess.run(variable), expected[:, :4])


def test_a_checkpoint_that_a_shard_shall_begin_from_must_be_named_before_the_split(tmp_path):
    path = str(tmp_path / "model")
    trained_and_saved(path, None)
    Model(TWO)
    with pytest.raises(ValueError, match="Shape of variable fc/kernel:0"):
        tf.train.init_from_checkpoint(path, {"fc/kernel": "fc/kernel"})


def test_a_second_call_leaves_savers_of_before_alone(graph):
    model = Model(TWO)
    number = tf_compat.last_op_id(graph)
    slices = slices_of({model.variable.op.name: ShardInfo("fc/kernel", SHAPE, TWO, "epl.split")}, [("", 0)], {})
    assert complete_savers(graph, slices, number) == {} and tf_compat.last_op_id(graph) == number


@KINDS
def test_slots_have_the_names_of_the_single_device_program(resource):
    model = Model(UNEVEN, resource)
    assert [variable.name for variable in model.variables] == [name + ":0" for name in NAMES]
    assert [variable.shape.as_list() for variable in model.variables] == [[6, 5]] * 3
