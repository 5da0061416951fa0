"""The bytes that a split says it moves are those of the collectives in the graph of a rank."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.replica_groups import ReplicaGroups

ROWS, FEATURES, CLASSES = 8, 16, 1000
COLOCATED = {"cluster__colocate_split_and_replicate": True}

# What a rank of n sends of the bytes that it gives to a collective, by the algorithms with the least.
SENT = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "all_to_all": lambda n: (n - 1) / n,
}


def best(logits, labels):
    return tf.reduce_mean(tf.nn.top_k(logits, 3).values)


def right(logits, labels):
    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.float32))


def right_of_five(logits, labels):
    return tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 5), tf.float32))


def largest(logits, labels):
    return tf.reduce_mean(tf.reduce_max(logits, 1))


def probabilities(logits, labels):
    return tf.reduce_mean(tf.gather(tf.nn.softmax(logits), 7, axis=1))


def distributions(logits, labels):
    wanted = tf.one_hot(labels, CLASSES)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=wanted, logits=logits))


def all_finite(logits, labels):
    return tf.reduce_mean(tf.cast(tf.reduce_all(tf.is_finite(logits), 1), tf.float32))


def length(logits, labels):
    return tf.reduce_mean(tf.raw_ops.EuclideanNorm(input=logits, axis=[1]))


MORE = [best, right, right_of_five, largest, probabilities, distributions, all_finite, length]


def sent(op, sizes):
    """Bytes that a rank sends in a collective, given how many elements each of its inputs has."""
    about = COLLECTIVE_OP_TYPES[op.type]
    moved = slice(about.first_tensor, None if about.fused else about.first_tensor + 1)
    given = sum(size * tensor.dtype.size for size, tensor in zip(sizes[moved], op.inputs[moved]))
    return given * SENT[about.kind](Graph.get().state_of(ReplicaGroups).ranks)


def check(init, ranks, more=None):
    """Builds a head with a loss, and `more` of its scores; compares what is told with what is in the graph."""
    init(ranks, annotate=False, **COLOCATED)
    x, labels = tf.placeholder(tf.float32, [ROWS, FEATURES]), tf.placeholder(tf.int32, [ROWS])
    with epl.replicate(1):
        features = tf.layers.dense(x, FEATURES, tf.nn.tanh)
    with epl.split(ranks):
        logits = tf.layers.dense(features, CLASSES, name="head")
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        if more is not None:
            loss += more(logits, labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    split = Graph.get().state_of(ReplicaGroups)
    assert len(split.shards) == 2  # kernel and bias
    sizes = [[tf.size(tensor) for tensor in op.inputs] for op in split.resharder.collectives]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = {x: np.ones([ranks * ROWS, FEATURES]), labels: np.zeros([ranks * ROWS])}
        found = sess.run([sizes, train_op], feed)[0]
    assert split.moved_bytes == pytest.approx(sum(map(sent, split.resharder.collectives, found)))
    return split.moved_bytes


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_of_a_head_with_its_loss(init, ranks):
    features, labels, numbers = ROWS * FEATURES * 4, ROWS * 4, 3 * ROWS * 4
    # Features and labels go to all ranks, gradients of features back; of the scores maxima and two sums.
    wanted = (ranks - 1) * (2 * features + labels + 2 * numbers)
    assert check(init, ranks) == wanted


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("more", MORE)
def test_of_what_else_is_made_of_scores(init, more, ranks):
    check(init, ranks, more)
