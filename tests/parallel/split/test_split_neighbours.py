"""Neighbouring scopes of epl.split: between them goes what would go inside of one, and nothing else."""

import contextlib

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.replica_groups import ReplicaGroups

COLOCATED = {"cluster__colocate_split_and_replicate": True}
RANKS = 4


def nothing():
    """Between two scopes: no scope."""
    return contextlib.ExitStack()


def empty():
    """Between two scopes: replicated code without an op."""
    return epl.replicate(1)


def dense_layers(x, scope):
    """Column, row, column, row."""
    for width in (1024, 256, 1024):
        with scope():
            x = tf.layers.dense(x, width, tf.nn.relu)
    with scope():
        return tf.reduce_mean(tf.square(tf.layers.dense(x, 8)))


def scores(x, scope):
    """What differs moves: from the columns of the head to the rows that running sums need whole."""
    with scope():
        logits = tf.layers.dense(x, 1024)
    with scope():
        found = tf.cumsum(logits, 1)
    with scope():
        return tf.reduce_mean(tf.square(found))


def head(x, scope):
    """The loss and its mean have scopes of their own."""
    with scope():
        logits = tf.layers.dense(x, 1003)
    with scope():
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.zeros([8], tf.int32), logits=logits)
    with scope():
        return tf.reduce_mean(losses)


def moved(init, model, scope, one_around=contextlib.ExitStack):
    """Types and shapes of the collectives of a training step."""
    init(RANKS, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [8, 64], "x")
    with one_around():
        loss = model(x, scope)
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return [
        (op.type, [tensor.shape.as_list() for tensor in op.inputs[COLLECTIVE_OP_TYPES[op.type].first_tensor :]])
        for op in Graph.get().state_of(ReplicaGroups).resharder.collectives
    ]


def of_one_scope(init, model):
    """`moved`, with all layers in one scope."""
    return moved(init, model, contextlib.ExitStack, lambda: epl.split(RANKS))


def apart(between):
    """A scope of its own for each layer, after `between`."""

    def scope():
        with between():
            pass
        return epl.split(RANKS)

    return scope


@pytest.mark.parametrize("between", [nothing, pytest.param(empty, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "model", [dense_layers, pytest.param(scores, marks=pytest.mark.long), pytest.param(head, marks=pytest.mark.long)]
)
def test_scopes_that_follow_each_other_move_what_one_moves(init, model, between):
    assert moved(init, model, apart(between)) == of_one_scope(init, model)


def test_only_what_differs_moves_between_scopes(init):
    """Scores go from columns to rows and their gradients back, and never whole."""
    kinds = [kind for kind, _ in moved(init, scores, apart(nothing))]
    assert kinds == ["EplAllGather", "EplAllToAllV", "EplAllReduce", "EplAllToAllV"]  # the others: features, the mean


@pytest.mark.long
def test_replicated_ops_between_scopes_take_the_rows_of_their_own_batch(init):
    """So the count above is not one that nothing changes."""

    def interrupted(x, scope):
        with scope():
            x = tf.layers.dense(x, 1024)
        with epl.replicate(1):
            x = tf.nn.relu(x)
        with scope():
            return tf.reduce_mean(tf.square(tf.layers.dense(x, 256)))

    def whole(x, scope):
        with scope():
            x = tf.nn.relu(tf.layers.dense(x, 1024))
        with scope():
            return tf.reduce_mean(tf.square(tf.layers.dense(x, 256)))

    assert len(moved(init, interrupted, apart(nothing))) > len(moved(init, whole, apart(nothing)))
