"""Conversions between placements: values and gradients by the table, even and uneven, along any dimension."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import PARTIAL, REPLICATED, balanced_sizes, shard
from epl.parallel.sharding.resharding import Resharder
from tests.parallel.split.harness import communicator, part
from tests.parallel.split.harness import moved as sent_by

X = np.random.RandomState(0).randn(6, 7, 9, 3).astype("f")
EVEN, UNEVEN = balanced_sizes(6, 3), (1, 2, 3)
THREES, ONES = (3, 3, 3), (1, 1, 1)


def run(build, ranks=3, fp16_scale=None):
    """What each rank gets; all ranks are in one graph, on devices of their own."""
    wire = communicator(ranks)
    with tf.Graph().as_default():
        fetches, resharders = [], []
        for rank in range(ranks):
            with tf.device(f"/device:CPU:{rank}"):
                resharders.append(Resharder(wire, rank, "test", fp16_scale))
                fetches.append(build(resharders[-1], rank))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": ranks})) as sess:
            return sess.run(fetches)


def with_gradient(result, tensor, weight):
    """The result, and its gradient with respect to the tensor for a loss in which it has a weight."""
    return result, tf.gradients(tf.reduce_sum(result * weight), tensor)[0]


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "placement",
    [
        shard(0, EVEN), shard(2, THREES), shard(3, ONES), shard(0, UNEVEN), shard(1, (3, 2, 2)), shard(2, (5, 1, 3)),
        shard(1, (0, 7, 0)),
    ],
)  # fmt: skip
def test_shard_to_full(placement):
    def build(resharder, rank):
        local = tf.constant(part(X, placement, rank))
        return with_gradient(resharder.gather(local, placement), local, X)

    for rank, (value, grad) in enumerate(run(build)):
        close(value, X)
        close(grad, part(X, placement, rank))


@pytest.mark.parametrize(
    "placement",
    [
        shard(0, EVEN), shard(2, THREES), shard(3, ONES), shard(0, UNEVEN), shard(1, (3, 2, 2)), shard(2, (5, 1, 3)),
        shard(2, (9, 0, 0)),
    ],
)  # fmt: skip
def test_shard_to_full_entered(placement):
    def build(resharder, rank):  # each rank has an addend of the gradient
        local = tf.constant(part(X, placement, rank))
        return with_gradient(resharder.gather_entered(local, placement), local, X * (rank + 1))

    for rank, (value, grad) in enumerate(run(build)):
        close(value, X)
        close(grad, part(6 * X, placement, rank))


@pytest.mark.parametrize("placement", [shard(0, EVEN), shard(1, (3, 2, 2)), shard(2, (1, 1, 7)), shard(0, (0, 4, 2))])
def test_full_to_shard(placement):
    def build(resharder, rank):
        full = tf.constant(X)
        return with_gradient(resharder.cut(full, placement), full, part(X, placement, rank))

    for rank, (value, grad) in enumerate(run(build)):
        close(value, part(X, placement, rank))
        close(grad, X)


@pytest.mark.parametrize(
    "placement",
    [
        shard(0, EVEN), shard(2, THREES), shard(3, ONES), shard(1, (3, 2, 2)), shard(1, (1, 1, 5)), shard(1, (0, 7, 0)),
    ],
)  # fmt: skip
def test_partial_to_shard(placement):
    def build(resharder, rank):
        partial_sum = tf.constant(X * (rank + 1))
        return with_gradient(resharder.reduce_scatter(partial_sum, placement), partial_sum, part(X, placement, rank))

    for rank, (value, grad) in enumerate(run(build)):
        close(value, part(6 * X, placement, rank))
        close(grad, X)


def test_partial_to_full():
    def build(resharder, rank):
        partial_sum = tf.constant(X * (rank + 1))
        return with_gradient(resharder.sum_partial(partial_sum), partial_sum, X)

    for value, grad in run(build):
        close(value, 6 * X)
        close(grad, X)


def test_full_entered():
    def build(resharder, rank):
        full = tf.constant(X)
        return with_gradient(resharder.enter(full), full, X * (rank + 1))

    for value, grad in run(build):
        close(value, X)
        close(grad, 6 * X)


@pytest.mark.parametrize(
    "source, target",
    [
        (shard(0, EVEN), shard(2, THREES)),
        (shard(3, ONES), shard(0, EVEN)),
        (shard(2, THREES), shard(3, ONES)),
        (shard(1, (3, 2, 2)), shard(2, THREES)),
        (shard(0, UNEVEN), shard(3, ONES)),
        (shard(0, EVEN), shard(1, (3, 2, 2))),
        (shard(1, (3, 2, 2)), shard(0, EVEN)),
        (shard(0, UNEVEN), shard(2, (5, 1, 3))),
        (shard(2, (5, 1, 3)), shard(1, (1, 1, 5))),
        (shard(0, EVEN), shard(1, (0, 7, 0))),
        (shard(1, (0, 7, 0)), shard(0, EVEN)),
        (shard(0, UNEVEN), shard(2, (9, 0, 0))),
        (shard(2, (9, 0, 0)), shard(1, (0, 0, 7))),
    ],
)
def test_shard_to_shard(source, target):
    def build(resharder, rank):
        local = tf.constant(part(X, source, rank))
        return with_gradient(resharder.move(local, source, target), local, part(X, target, rank))

    for rank, (value, grad) in enumerate(run(build)):
        close(value, part(X, target, rank))
        close(grad, part(X, source, rank))


SMALL = 1e-6  # as float16 it keeps three bits


def test_all_to_alls_send_float16_if_asked_to():
    source, target = shard(0, EVEN), shard(1, (3, 2, 2))
    sent = []

    def build(resharder, rank):
        local = tf.constant(part(X, source, rank))
        moved = resharder.move(local, source, target)
        full = resharder.gather(local, source)
        results = moved, full, tf.gradients(tf.reduce_sum(moved * SMALL * part(X, target, rank)), local)[0]
        sent.extend((op.type, sent_by(op).dtype) for op in resharder.collectives)
        return results

    for rank, (moved, full, grad) in enumerate(run(build, fp16_scale=1024)):
        np.testing.assert_array_equal(moved, part(X, target, rank).astype(np.float16).astype("f"))
        np.testing.assert_array_equal(full, X)
        np.testing.assert_allclose(grad, SMALL * part(X, source, rank), rtol=2**-10, atol=SMALL * 1e-4)
        assert grad.dtype == np.float32
    scale = ("EplAllReduce", tf.float64)
    ways = [("EplAllToAllV", tf.float16), ("EplAllGather", tf.float32), scale, ("EplAllToAllV", tf.float16)]
    assert sent == 3 * [scale, *ways]


def test_all_to_alls_in_float16_do_not_overflow():
    source, target = shard(0, EVEN), shard(1, (3, 2, 2))
    large = np.float32(1e6) * X

    def build(resharder, rank):
        local = tf.constant(part(large, source, rank))
        return with_gradient(resharder.move(local, source, target), local, part(large, target, rank))

    for rank, (moved, grad) in enumerate(run(build, fp16_scale=1024)):
        np.testing.assert_allclose(moved, part(large, target, rank), rtol=2**-10, atol=1)
        np.testing.assert_allclose(grad, part(large, source, rank), rtol=2**-10, atol=1)


def test_integers_are_sent_as_they_are():
    numbers = np.arange(36).reshape(6, 6) + 2**20

    def build(resharder, rank):
        source = shard(0, EVEN)
        return resharder.move(tf.constant(part(numbers, source, rank)), source, shard(1, EVEN))

    for rank, moved in enumerate(run(build, fp16_scale=128)):
        np.testing.assert_array_equal(moved, part(numbers, shard(1, EVEN), rank))


@pytest.mark.parametrize("columns", [shard(1, (3, 2, 2)), shard(2, THREES), shard(3, ONES)])
def test_rows_of_a_batch(columns):
    batch = shard(0, None)

    def build(resharder, rank):
        local = tf.placeholder_with_default(part(X, shard(0, UNEVEN), rank), [None, 7, 9, 3])
        counts = resharder.row_counts(local, 0)
        moved = resharder.move(local, batch, columns, counts)
        back = resharder.move(moved, columns, batch, counts)
        cut = resharder.cut(resharder.gather(back, batch), batch, counts)
        return moved, cut, tf.gradients(tf.reduce_sum(tf.square(cut)), local)[0], counts

    for rank, (moved, cut, grad, counts) in enumerate(run(build)):
        own = part(X, shard(0, UNEVEN), rank)
        close(moved, part(X, columns, rank))
        close(cut, own)
        close(grad, 2 * own)
        assert list(counts) == list(UNEVEN)


def test_gradients_can_be_differentiated_again():
    placement = shard(1, (3, 2, 2))

    def build(resharder, rank):
        full = tf.constant(X)
        cubes = resharder.sum_partial(tf.reduce_sum(resharder.cut(full, placement) ** 3))
        first = tf.gradients(cubes, full)[0]
        return first, tf.gradients(tf.reduce_sum(tf.square(first)), full)[0]

    for first, second in run(build):
        close(first, 3 * X**2)
        close(second, 36 * X**3)


@pytest.mark.parametrize("rows", [6, 0])
def test_equal_columns_of_unknown_sizes(rows):
    x, columns = X[:rows], shard(2, THREES)

    def build(resharder, rank):
        local = tf.placeholder_with_default(part(x, columns, rank), [None] * 4)
        full = resharder.gather_entered(local, columns)
        moved = resharder.move(local, columns, shard(3, ONES))
        return full, tf.gradients(tf.reduce_sum(full), local)[0], moved

    for rank, (full, grad, moved) in enumerate(run(build)):
        close(full, x)
        close(grad, part(3 * np.ones_like(x), columns, rank))
        close(moved, part(x, shard(3, ONES), rank))


def test_what_differs_between_ranks_is_recorded_and_not_in_static_shapes():
    placement = shard(1, (3, 2, 2))
    with tf.Graph().as_default():
        resharder = Resharder(communicator(3), 1, "test")
        local = resharder.cut(tf.constant(X), placement)
        assert local.shape.as_list() == [6, None, 9, 3]
        assert resharder.gather(local, placement).shape.as_list() == [6, 7, 9, 3]
        assert sorted(owned.values for owned in resharder.owned.values()) == [(0, 3, 5), (3, 2, 2)]


def test_one_rank_does_without_collectives():
    with tf.Graph().as_default(), tf.Session() as sess:
        resharder = Resharder(communicator(1), 0, "test")
        x = tf.constant(X)
        y = resharder.move(resharder.cut(resharder.enter(x), shard(0, (6,))), shard(0, (6,)), shard(1, (7,)))
        close(sess.run(resharder.gather(y, shard(1, (7,)))), X)
        assert resharder.collectives == []


def test_placements_print():
    assert [str(placement) for placement in (REPLICATED, PARTIAL, shard(1, None), shard(0, (3, 2)))] == [
        "full", "partial", "shard(1)", "shard(0: 3+2)"
    ]  # fmt: skip


@pytest.mark.parametrize("dim, before, after", [(0, 1, 1), (2, 2, 1), (2, 0, 3), (2, 1, 0)])
@pytest.mark.parametrize("rows", [6, 0])
def test_halos(rows, dim, before, after):
    """The neighbours' rows, and their gradients; along another dimension than the rows also where there are none."""
    full = X[: rows if dim else 6]
    placement = shard(dim, (full.shape[dim] // 3,) * 3)
    around = [(0, 0)] * dim + [(before, after)] + [(0, 0)] * (3 - dim)
    padded, size = np.pad(full, around, "constant"), full.shape[dim] // 3
    wide = [np.take(padded, range(rank * size, rank * size + before + size + after), dim) for rank in range(3)]

    def build(resharder, rank):
        local = tf.placeholder_with_default(part(full, placement, rank), [None] * 4)
        return with_gradient(resharder.with_halos(local, dim, before, after), local, wide[rank])

    gradient = np.zeros_like(padded)
    for rank, one in enumerate(wide):
        at = (slice(None),) * dim + (slice(rank * size, rank * size + one.shape[dim]),)
        gradient[at] += one
    gradient = np.take(gradient, range(before, before + full.shape[dim]), dim)
    for rank, (value, grad) in enumerate(run(build)):
        close(value, wide[rank])
        close(grad, part(gradient, placement, rank))
