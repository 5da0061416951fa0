"""Random ops on parts: each rank draws numbers of its own, as many as its part has."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl.parallel.split.all_rules  # noqa: F401
from epl.ops.communicator import Communicator
from epl.parallel.split.conversions import Exchange
from epl.parallel.split.emission import RankEmission
from epl.parallel.split.layouts import shard
from epl.parallel.split.rules import OpInfo, TensorInfo, choices_of

RANKS = 4


class Alone(Exchange):
    """One rank of several that exchange nothing."""

    def __init__(self, rank):
        super().__init__(Communicator("alone", [0]), 0, "random")
        self.rank, self.ranks = rank, RANKS


def draw(tensor, shape, batch=None, rows=None):
    """The choices of the random op behind a tensor, and what each rank draws in two steps by the first of them."""
    while not tensor.op.type.startswith(("Random", "Truncated")):
        tensor = tensor.op.inputs[0]
    op = tensor.op
    attrs = {name: op.get_attr(name) for name in op.node_def.attr}
    inputs = tuple(TensorInfo(tuple(taken.shape.as_list()), taken.dtype) for taken in op.inputs)
    info = OpInfo(op.type, op.name, attrs, inputs, (TensorInfo(shape, tensor.dtype, None, batch),), RANKS, {})
    choices = choices_of(info)
    parts = []
    for rank in range(RANKS):
        emission = RankEmission(op, Alone(rank), lambda: tf.constant(rows, tf.int64))
        parts += choices[0].emit(emission, info, list(op.inputs))
    with tf.Session() as sess:
        return choices, sess.run(parts), sess.run(parts)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


@pytest.mark.parametrize(
    "op, mean, deviation",
    [
        (lambda shape: tf.random_uniform(shape, seed=5), 0.5, 0.289),
        (lambda shape: tf.random_normal(shape, seed=5), 0, 1),
        (lambda shape: tf.truncated_normal(shape, seed=5), 0, 0.88),
        (lambda shape: tf.random_uniform(shape, 0, 11, tf.int32, seed=5), 5, 3.16),
    ],
)
def test_parts_are_drawn_from_the_same_distribution(op, mean, deviation):
    choices, first, _ = draw(op([4002, 3]), (4002, 3))
    assert [choice.outputs[0] for choice in choices] == [shard(0, (1001, 1001, 1000, 1000))]
    assert [part.shape for part in first] == [(1001, 3), (1001, 3), (1000, 3), (1000, 3)]
    whole = np.concatenate(first)
    assert abs(whole.mean() - mean) < 0.1 * deviation
    assert abs(whole.std() / deviation - 1) < 0.05


def test_ranks_and_steps_draw_different_numbers():
    _, first, second = draw(tf.random_uniform([40], seed=5), (40,))
    drawn = [tuple(part) for part in first + second]
    assert len(set(drawn)) == 2 * RANKS


def test_the_same_seed_gives_the_same_numbers():
    _, first, _ = draw(tf.random_uniform([40], seed=5), (40,))
    _, again, _ = draw(tf.random_uniform([40], seed=5), (40,))
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(again))


def test_rows_of_a_batch():
    size = tf.placeholder_with_default([20, 3], [2])
    choices, first, _ = draw(tf.random_uniform(size, seed=5), (None, 3), batch=0, rows=[2, 1, 4, 3])
    assert choices[0].outputs[0] == shard(0, None)
    assert [part.shape for part in first] == [(4, 3), (2, 3), (8, 3), (6, 3)]
