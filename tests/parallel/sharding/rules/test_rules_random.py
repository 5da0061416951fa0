"""Random ops on parts: each rank draws numbers of its own, as many as its part has."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl.parallel.sharding.rules.all  # noqa: F401
from epl.ops.communicator import Communicator
from epl.parallel.sharding.placements import balanced_sizes, shard
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.rules.emission import RankEmission
from epl.parallel.sharding.rules.registry import OpInfo, TensorInfo, choices_of

# Random ops with their mean and standard deviation.
OPS = {
    "uniform": (lambda shape: tf.random_uniform(shape, seed=5), 0.5, 0.289),
    "normal": (lambda shape: tf.random_normal(shape, seed=5), 0, 1),
    "truncated": (lambda shape: tf.truncated_normal(shape, seed=5), 0, 0.88),
    "integers": (lambda shape: tf.random_uniform(shape, 0, 10001, tf.int32, seed=5), 5000, 2887),
    "long_integers": (lambda shape: tf.random_uniform(shape, 0, 10001, tf.int64, seed=5), 5000, 2887),
    "half": (lambda shape: tf.random_uniform(shape, dtype=tf.float16, seed=5), 0.5, 0.289),
    "double": (lambda shape: tf.random_normal(shape, dtype=tf.float64, seed=5), 0, 1),
}
every_op = pytest.mark.parametrize("op, mean, deviation", list(OPS.values()), ids=list(OPS))


class Alone(Resharder):
    """One rank of several that resharder nothing."""

    def __init__(self, rank, ranks):
        super().__init__(Communicator("alone", [0]), 0, "random")
        self.rank, self.ranks = rank, ranks


def draw(tensor, shape, ranks, batch=None, rows=None, dim=0):
    """The choices of the random op after a tensor, and what each rank draws in two steps of a part along `dim`."""
    while not tensor.op.type.startswith(("Random", "Truncated")):
        tensor = tensor.op.inputs[0]
    op = tensor.op
    attrs = {name: op.get_attr(name) for name in op.node_def.attr}
    inputs = tuple(TensorInfo(tuple(taken.shape.as_list()), taken.dtype) for taken in op.inputs)
    info = OpInfo(op.type, op.name, attrs, inputs, (TensorInfo(shape, tensor.dtype, None, batch),), ranks, {})
    choices = choices_of(info)
    choice = next(choice for choice in choices if choice.outputs[0].dim == dim)
    parts = []
    for rank in range(ranks):
        emission = RankEmission(op, Alone(rank, ranks), lambda: tf.constant(rows, tf.int64))
        parts += choice.emit(emission, info, list(op.inputs))
    assert [part.dtype for part in parts] == [op.outputs[0].dtype] * ranks
    with tf.Session() as sess:
        return choices, sess.run(parts), sess.run(parts)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


@pytest.mark.grid
@pytest.mark.parametrize("ranks, sizes", [(2, (2001, 2001)), (3, (1334, 1334, 1334)), (4, (1001, 1001, 1000, 1000))])
@every_op
def test_parts_are_drawn_from_the_same_distribution(op, mean, deviation, ranks, sizes):
    choices, first, second = draw(op([4002, 1]), (4002, 1), ranks)
    assert [choice.outputs[0] for choice in choices] == [shard(0, sizes)]
    assert [part.shape for part in first] == [(size, 1) for size in sizes]
    for whole in (np.concatenate(first), np.concatenate(second)):
        whole = whole.astype(np.float64)
        assert abs(whole.mean() - mean) < 0.1 * deviation
        assert abs(whole.std() / deviation - 1) < 0.05


@pytest.mark.parametrize("ranks", [2, 3, 4])
@every_op
def test_ranks_and_steps_draw_different_numbers(op, mean, deviation, ranks):
    _, first, second = draw(op([5, 401]), (5, 401), ranks, dim=1)
    assert [part.shape[1] for part in first] == list(balanced_sizes(401, ranks))
    count = 5 * (401 // ranks)
    drawn = np.array([part.ravel()[:count] for part in first + second], np.float64)
    likeness = np.corrcoef(drawn) - np.eye(2 * ranks)
    assert abs(likeness).max() < 0.2


def test_the_same_seed_gives_the_same_numbers():
    _, first, _ = draw(tf.random_uniform([40], seed=5), (40,), 3)
    _, again, _ = draw(tf.random_uniform([40], seed=5), (40,), 3)
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(again))


def test_rows_of_a_batch():
    size = tf.placeholder_with_default([20, 3], [2])
    choices, first, _ = draw(tf.random_uniform(size, seed=5), (None, 3), 4, batch=0, rows=[2, 1, 4, 3])
    assert choices[0].outputs[0] == shard(0, None)
    assert [part.shape for part in first] == [(4, 3), (2, 3), (8, 3), (6, 3)]
