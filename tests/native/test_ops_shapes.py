"""Static shapes of the collectives, and what is refused while the graph is built."""

import ops_harness
import pytest
import tensorflow.compat.v1 as tf

from epl.ops import collectives
from epl.ops.collectives import CollectiveMember


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(scope="module")
def comm():
    return ops_harness.local_communicator(3)


def placeholder(*shape):
    return tf.placeholder(tf.float32, shape)


def slices():
    return tf.IndexedSlices(placeholder(2), tf.constant([0, 1]))


def test_all_reduce_keeps_each_shape(comm):
    outputs = comm.all_reduce([placeholder(2, None), placeholder(), placeholder(7)], 0, "x")
    assert [output.shape.as_list() for output in outputs] == [[2, None], [], [7]]


def test_broadcast_keeps_an_unknown_rank(comm):
    assert comm.broadcast(tf.placeholder(tf.float32), 0, "x").shape.ndims is None


def test_all_gather_knows_all_but_the_rows(comm):
    output, rows = comm.all_gather_with_rows(placeholder(2, 5), 0, "x")
    assert output.shape.as_list() == [None, 5]
    assert rows.shape.as_list() == [3]


def test_all_gather_of_equal_rows_knows_the_rows(comm):
    assert comm.all_gather(placeholder(2, 5), 0, "x", equal_rows=True).shape.as_list() == [6, 5]
    assert comm.all_gather(placeholder(None, 5), 0, "x", equal_rows=True).shape.as_list() == [None, 5]


def test_all_gather_of_a_scalar_is_a_vector(comm):
    assert comm.all_gather(placeholder(), 0, "x").shape.as_list() == [3]


def test_reduce_scatter_knows_the_rows_of_each_rank(comm):
    parts = [comm.reduce_scatter(placeholder(8, 2), rank, "x") for rank in range(3)]
    assert [part.shape.as_list() for part in parts] == [[3, 2], [3, 2], [2, 2]]
    assert comm.reduce_scatter(placeholder(None, 2), 0, "x").shape.as_list() == [None, 2]


def test_all_to_all_keeps_the_shape(comm):
    assert comm.all_to_all(placeholder(6, 2), 0, "x").shape.as_list() == [6, 2]


def test_all_to_all_with_row_splits_knows_all_but_the_rows(comm):
    output, received = comm.all_to_all(placeholder(6, 2), 0, "x", row_splits=[1, 2, 3])
    assert output.shape.as_list() == [None, 2]
    assert received.shape.as_list() == [3]


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda comm: comm.reduce_scatter(placeholder(), 0, "x"), "a scalar has no rows"),
        (lambda comm: comm.all_to_all(placeholder(7, 2), 0, "x"), "cannot be cut in 3 equal parts"),
        (lambda comm: comm.all_to_all(placeholder(), 0, "x"), "at least rank 1"),
        (lambda comm: comm.all_to_all(placeholder(6), 0, "x", row_splits=[3, 3]), "must be equal|but are 2 and 3"),
        (lambda comm: comm.all_reduce(placeholder(2), 5, "x"), "rank 5 is not one of this process's ranks"),
        (lambda comm: comm.all_reduce(placeholder(2), 0, "x", reduce_op="avg"), 'reduce_op is "avg"'),
        (lambda comm: comm.broadcast(placeholder(2), 0, "x", root=3), "root is 3"),
    ],
)
def test_wrong_use_is_refused_when_built(comm, build, words):
    with pytest.raises(ValueError, match=words):
        build(comm)


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda comm: comm.broadcast(tf.constant("a"), 0, "x"), "string cannot be moved"),
        (lambda comm: comm.all_reduce(tf.constant(True), 0, "x"), "bool cannot be reduced with sum"),
        (lambda comm: comm.all_reduce(tf.constant(1), 0, "x", weight=0.5), "int32 cannot be weighted"),
        (lambda comm: comm.all_reduce(slices(), 0, "x", "max"), "IndexedSlices"),
        (lambda comm: comm.broadcast(slices(), 0, "x"), "IndexedSlices"),
    ],
)
def test_what_cannot_travel_is_refused_when_built(comm, build, words):
    with pytest.raises(TypeError, match=words):
        build(comm)


def test_only_sums_have_gradients(comm):
    x = placeholder(2)
    with pytest.raises(NotImplementedError, match="reduces with max"):
        tf.gradients(comm.all_reduce(x, 0, "x", "max"), x)


def test_gradient_collective_waits_for_the_forward_one_and_has_its_key(comm):
    x = placeholder(2)
    forward = comm.all_reduce(x, 1, "loss")
    grad = tf.gradients(forward, x)[0]
    assert grad.op.type == "EplAllReduce"
    assert grad.op.get_attr("key") == b"loss/grad"
    assert grad.op.get_attr("rank") == 1
    assert forward.op in grad.op.control_inputs


def test_tensors_of_one_dtype_are_one_op_and_ops_of_one_call_are_chained(comm, graph):
    comm.all_reduce([placeholder(2), tf.constant(1), placeholder(3)], 0, "grads")
    ops = [op for op in graph.get_operations() if op.type == "EplAllReduce"]
    assert [(op.get_attr("key"), op.get_attr("N")) for op in ops] == [(b"grads/float32", 2), (b"grads/int32", 1)]
    assert ops[0] in ops[1].control_inputs


def test_ops_are_not_merged_folded_or_dropped(comm, graph):
    comm.all_reduce(tf.constant(1.0), 0, "x")
    ops = [op for op in graph.get_operations() if op.type == "EplAllReduce"]
    assert ops[0].op_def.is_stateful


def test_rank_beyond_the_world_is_refused_by_the_shape_function():
    with pytest.raises(ValueError, match="rank 3 is not one of the 3 ranks"):
        collectives.all_gather(CollectiveMember("c", 3, "x", 3), placeholder(2))
