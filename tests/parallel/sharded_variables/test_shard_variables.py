"""A variable that becomes a shard: the user's object, its initial value, and what was built from it before.

One graph per rank. No collective runs here, so that ranks need not run together.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.parallel.sharded_variables import initial_values
from epl.parallel.sharded_variables.variables import shard_variable
from epl.parallel.sharding.placements import shard
from epl.parallel.sharding.resharding import Resharder
from epl.utils.errors import PlanError

EVEN, UNEVEN = shard(1, [4, 4]), shard(1, [5, 3])
KINDS = pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])


@pytest.fixture(scope="module")
def communicator():
    """Two ranks in this process."""
    with Job.start(["localhost:0"], 0) as job:
        yield Communicator("shard_variables", [0, 0], job=job)


@pytest.fixture
def rank(communicator):
    """`rank(r)`: a fresh graph, and the Resharder of a rank in it."""
    graphs = []

    def begin(number):
        graphs.append(tf.Graph().as_default())
        graphs[-1].__enter__()
        tf.set_random_seed(7)
        return Resharder(communicator, number, "test")

    yield begin
    for graph in reversed(graphs):
        graph.__exit__(None, None, None)


def kernel(resource=False, initializer=None, shape=(6, 8), **kwargs):
    """The variable "fc/kernel" [6, 8] of the user."""
    with tf.variable_scope("fc"):
        return tf.get_variable("kernel", shape, initializer=initializer, use_resource=resource, **kwargs)


def initialized(fetch):
    """The value of `fetch` after all variables were initialized."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run(fetch)


def whole(rank, **kwargs):
    """The initial value of the variable without a split."""
    rank(0)
    return initialized(kernel(**kwargs))


def split(rank, placement, **kwargs):
    """The initial values of its shards, put together."""
    parts = []
    for number in range(2):
        resharder = rank(number)
        variable = kernel(**kwargs)
        shard_variable(variable, placement, resharder)
        parts.append(initialized(variable))
    return np.concatenate(parts, axis=placement.dim)


# ---- The user's object.


@KINDS
def test_the_object_keeps_name_and_collections(rank, resource):
    resharder = rank(1)
    variable = kernel(resource)
    same = shard_variable(variable, UNEVEN, resharder).variable
    assert same is variable and variable.name == "fc/kernel:0" and variable.shape.as_list() == [6, 3]
    for key in (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.TRAINABLE_VARIABLES):
        assert [member is variable for member in tf.get_collection(key)] == [True]


@KINDS
def test_reuse_gives_the_shard(rank, resource):
    resharder = rank(0)
    variable = kernel(resource)
    shard_variable(variable, EVEN, resharder)
    with tf.variable_scope("fc", reuse=True):
        assert tf.get_variable("kernel") is variable


@KINDS
def test_reuse_with_the_full_shape_is_refused(rank, resource):
    resharder = rank(0)
    shard_variable(kernel(resource), EVEN, resharder)
    with tf.variable_scope("fc", reuse=True), pytest.raises(ValueError, match="Trying to share variable fc/kernel"):
        tf.get_variable("kernel", [6, 8])


@KINDS
def test_the_object_can_be_trained(rank, resource):
    resharder = rank(0)
    variable = kernel(resource, tf.ones_initializer())
    shard_variable(variable, EVEN, resharder)
    loss = tf.reduce_sum(tf.square(tf.matmul(tf.ones([2, 6]), variable)))
    step = tf.train.GradientDescentOptimizer(0.25 / 12).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(step)
        np.testing.assert_allclose(sess.run(variable), np.full([6, 4], 0.5), rtol=1e-6)


@KINDS
def test_a_full_value_is_cut_when_it_is_assigned(rank, resource):
    resharder = rank(1)
    variable = kernel(resource)
    shard_variable(variable, UNEVEN, resharder)
    full = np.arange(48, dtype="f").reshape(6, 8)
    with tf.Session() as sess:
        sess.run(variable.assign(full))
        sess.run(variable.assign_add(full))
        sess.run(variable.assign_sub(full[:, 5:]))
        np.testing.assert_array_equal(sess.run(variable), full[:, 5:])


@KINDS
def test_an_object_of_an_imported_graph_becomes_the_shard_too(rank, resource):
    resharder = rank(0)
    variable = kernel(resource)
    twin = tf.Variable.from_proto(variable.to_proto())
    tf.add_to_collection("twins", twin)
    shard_variable(variable, EVEN, resharder)
    assert twin.op is variable.op and twin.shape.as_list() == [6, 4]


# ---- The initial value.


@pytest.mark.parametrize("placement", [EVEN, UNEVEN, shard(0, [1, 5])], ids=str)
@KINDS
def test_shards_begin_as_slices_of_the_unsplit_value(rank, placement, resource):
    np.testing.assert_array_equal(split(rank, placement, resource=resource), whole(rank, resource=resource))


def test_an_initializer_of_any_kind_is_cut(rank):
    matrix = tf.orthogonal_initializer()
    np.testing.assert_array_equal(split(rank, EVEN, initializer=matrix), whole(rank, initializer=matrix))


@pytest.mark.parametrize(
    "initializer, spread",
    [
        (tf.glorot_uniform_initializer(), (2 / 500) ** 0.5),
        (tf.glorot_normal_initializer(), (2 / 500) ** 0.5),
        (tf.initializers.he_normal(), (2 / 300) ** 0.5),
        (tf.initializers.variance_scaling(2.0, "fan_out", "untruncated_normal"), (2 / 200) ** 0.5),
        (tf.random_normal_initializer(0.0, 3.0), 3.0),
        (tf.random_uniform_initializer(-1.0, 1.0), 3 ** -0.5),
        (tf.keras.initializers.lecun_normal(), 300 ** -0.5),
    ],
    ids=["glorot_uniform", "glorot_normal", "he_normal", "variance_scaling", "normal", "uniform", "lecun"],
)  # fmt: skip
def test_a_large_initial_value_is_drawn_by_shard_with_the_spread_of_the_whole(rank, monkeypatch, initializer, spread):
    monkeypatch.setattr(initial_values, "LARGEST_CUT", 0)
    value = split(rank, shard(1, [150, 50]), initializer=initializer, shape=(300, 200))
    assert value.shape == (300, 200)
    np.testing.assert_allclose([value[:, :150].std(), value[:, 150:].std()], [spread] * 2, rtol=0.03)
    assert not np.isclose(value[:, :50], value[:, 150:]).any(axis=0).all()


@pytest.mark.parametrize("initializer", [tf.zeros_initializer(), tf.ones_initializer(), tf.constant_initializer(0.5)])
@pytest.mark.parametrize("shape", [(6, 8), (600, 8)], ids=str)
def test_a_large_constant_is_made_by_shard(rank, monkeypatch, initializer, shape):
    monkeypatch.setattr(initial_values, "LARGEST_CUT", 0)
    value = split(rank, UNEVEN, initializer=initializer, shape=shape)
    np.testing.assert_array_equal(value, whole(rank, initializer=initializer, shape=shape))
    assert not [op for op in tf.get_default_graph().get_operations() if op.type == "Slice"]


def test_a_large_initial_value_of_unknown_making_is_cut_and_said(rank, monkeypatch, caplog):
    monkeypatch.setattr(initial_values, "LARGEST_CUT", 0)
    with caplog.at_level("INFO", logger="epl"):
        matrix = tf.orthogonal_initializer()
        np.testing.assert_array_equal(split(rank, EVEN, initializer=matrix), whole(rank, initializer=matrix))
    assert "fc/kernel" in caplog.text


def test_ranks_in_several_processes_draw_alike_without_seeds(rank):
    parts = []
    for number in range(2):
        resharder = rank(number)
        tf.set_random_seed(None)
        variable = kernel(initializer=tf.orthogonal_initializer())
        shard_variable(variable, EVEN, resharder, seed=11)
        parts.append(initialized(variable))
    value = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(value @ value.T, np.eye(6), atol=1e-5)


@KINDS
def test_a_variable_that_begins_from_a_checkpoint_reads_its_part(rank, tmp_path, resource):
    path = str(tmp_path / "model")
    rank(0)
    full = kernel(resource)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        tf.train.Saver().save(sess, path)
        expected = sess.run(full)
    parts = []
    for number in range(2):
        resharder = rank(number)
        variable = kernel(resource)
        tf.train.init_from_checkpoint(path, {"fc/": "fc/"})
        shard_variable(variable, UNEVEN, resharder)
        parts.append(initialized(variable))
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), expected)


# ---- What was built before.


@KINDS
def test_initializers_and_checks_made_before_mean_the_shard(rank, resource):
    resharder = rank(1)
    variable = kernel(resource)
    other = tf.get_variable("other", [], use_resource=resource)
    initialize = tf.global_variables_initializer()
    missing = tf.report_uninitialized_variables()
    check = tf.is_variable_initialized(variable)
    found = shard_variable(variable, EVEN, resharder)
    with tf.Session() as sess:
        assert list(sess.run(missing)) == [b"fc/kernel", b"other"]
        sess.run(initialize)
        assert list(sess.run(missing)) == []
        assert sess.run(found.replaced[check.op].outputs[0])
        assert sess.run(variable).shape == (6, 4)
        sess.run(other)


@KINDS
def test_a_variable_that_begins_as_the_full_one_does_so_each_time(rank, resource):
    resharder = rank(1)
    variable = kernel(resource, tf.ones_initializer())
    # What `initialized_value` is, which resource variables of TensorFlow 2 lack.
    begin = tf.cond(tf.is_variable_initialized(variable), variable.read_value, lambda: variable.initial_value)
    average = tf.Variable(begin * 2.0, use_resource=resource)
    shard_variable(variable, EVEN, resharder)
    with tf.Session() as sess:
        for _ in range(3):
            sess.run(tf.global_variables_initializer())
            np.testing.assert_array_equal(sess.run(average), np.full([6, 8], 2.0))


@KINDS
def test_reads_made_before_are_listed_with_the_value_of_the_shard(rank, resource):
    resharder = rank(0)
    variable = kernel(resource)
    value, later = variable.value(), variable.read_value()
    later = later.op.inputs[0] if resource else later
    found = shard_variable(variable, EVEN, resharder)
    pairs = {old.name: new for old, new in found.reads}
    assert {value.name, later.name} <= set(pairs)
    assert all(new.shape.as_list() == [6, 4] for new in pairs.values())
    assert all(old.shape.as_list() == [6, 8] for old, _ in found.reads)


@KINDS
def test_an_assignment_made_before_is_cut(rank, resource):
    resharder = rank(1)
    variable = kernel(resource)
    full = np.arange(48, dtype="f").reshape(6, 8)
    grouped = tf.group(variable.assign(full))
    (assign,) = grouped.control_inputs
    found = shard_variable(variable, UNEVEN, resharder)
    with tf.Session() as sess:
        sess.run(grouped)
        np.testing.assert_array_equal(sess.run(variable), full[:, 5:])
    assert grouped.control_inputs == [found.replaced[assign]]


def test_a_scatter_made_before_is_refused(rank):
    resharder = rank(0)
    variable = kernel()
    tf.scatter_update(variable, [0], np.zeros([1, 8], "f"))
    with pytest.raises(PlanError, match=r"\(ScatterUpdate\) was built before tf.gradients"):
        shard_variable(variable, EVEN, resharder)


def test_a_lookup_in_a_resource_variable_is_left_to_the_lowering(rank):
    resharder = rank(0)
    variable = kernel(resource=True)
    rows = tf.gather(variable, [1, 2])
    assert [op.type for op in shard_variable(variable, EVEN, resharder).users] == ["ResourceGather"]
    assert rows.shape.as_list() == [2, 8]


# ---- Refusals.


@pytest.mark.parametrize(
    "options, words",
    [
        ({"constraint": tf.identity}, "has a constraint"),
        ({"partitioner": tf.fixed_size_partitioner(1)}, "which EPL cannot split"),
    ],
)
def test_what_cannot_be_split_is_refused(rank, options, words):
    resharder = rank(0)
    variable = kernel(**options)
    with pytest.raises(PlanError, match=words):
        shard_variable(variable, EVEN, resharder)


def test_a_part_of_a_partitioned_variable_is_refused(rank):
    resharder = rank(0)
    part = list(kernel(partitioner=tf.fixed_size_partitioner(2, axis=1)))[0]
    with pytest.raises(PlanError, match="that a partitioner has cut"):
        shard_variable(part, shard(1, [2, 2]), resharder)


@pytest.mark.parametrize(
    "use, words",
    [
        (lambda variable, resharder: shard_variable(variable, shard(1, [2, 2]), resharder), "is split already"),
    ],
    ids=["split"],
)
def test_what_a_shard_cannot_do_is_refused(rank, use, words):
    resharder = rank(0)
    variable = shard_variable(kernel(), EVEN, resharder).variable
    with pytest.raises(PlanError, match=words):
        use(variable, resharder)


# ---- The record for the other ranks of a process.


@KINDS
def test_all_that_differs_between_ranks_is_recorded(rank, monkeypatch, resource):
    monkeypatch.setattr(initial_values, "LARGEST_CUT", 0)
    nodes = []
    for number in range(2):
        resharder = rank(number)
        variable = kernel(resource)
        found = shard_variable(variable, UNEVEN, resharder)
        names = set(resharder.owned) | set(found.shapes) | set(found.seeds)
        graph_def = tf.get_default_graph().as_graph_def()
        nodes.append({node.name: node for node in graph_def.node})
    differ = {name for name in nodes[0] if nodes[0][name] != nodes[1][name]}
    assert set(nodes[0]) == set(nodes[1]) and differ == names
    assert found.shapes == {"EPL_SPLIT/fc/kernel": ((6, 5), (6, 3))}
