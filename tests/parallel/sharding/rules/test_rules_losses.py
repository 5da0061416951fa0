"""Softmax, cross entropy and top k on parts of the rows and of the classes."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import REPLICATED, balanced_sizes, shard
from epl.parallel.sharding.rules.registry import OpInfo, TensorInfo, choices_of
from tests.parallel.sharding.rules.rule_harness import TWO, Case, check, on_ranks
from tests.parallel.sharding.rules.rule_inputs import constant, floats, integers, positive, tied

raw = tf.raw_ops


def large(*shape):
    """Scores whose exponentials are beyond float32; those of a row are close enough for all to have gradients."""

    def make(random, sizes):
        return (random.choice([-200, 200], sizes[:-1] + (1,)) + random.uniform(-4, 4, sizes)).astype(np.float32)

    return floats(*shape)._replace(make=make)


def softmax_cases():
    for name, function in (("softmax", tf.nn.softmax), ("log_softmax", tf.nn.log_softmax)):
        yield Case(name, function, [floats("B", 7)], "b0>b0 s1>s1")
        yield Case(name + "_3d", function, [large(4, 5, 8)], "s0>s0 s1>s1 s2>s2")
        yield Case(name + "_half", function, [floats(5, 8, dtype=np.float16)], "s0>s0 s1>s1", tolerance=5e-3)


def cross_entropy_cases():
    # The second output is the gradient. It is compared as a value; differentiating it is refused.
    def sparse(scores, labels):
        return raw.SparseSoftmaxCrossEntropyWithLogits(features=scores, labels=labels).loss

    def dense(scores, labels):
        return raw.SoftmaxCrossEntropyWithLogits(features=scores, labels=labels).loss

    yield Case("sparse", sparse, [floats("B", 8), integers("B")], "b0,b0>b0,b0 s1,F>F,s1", undifferentiated=[1],
               batch=[0, 0])  # fmt: skip
    yield Case("sparse_large", sparse, [large(5, 7), integers(5, high=7, dtype=np.int64)],
               "s0,s0>s0,s0 s1,F>F,s1", undifferentiated=[1])  # fmt: skip
    yield Case("sparse_half", sparse, [floats(5, 7, dtype=np.float16), integers(5, high=7)],
               "s0,s0>s0,s0 s1,F>F,s1", undifferentiated=[1], tolerance=5e-3)  # fmt: skip
    yield Case("dense", dense, [floats("B", 8), positive("B", 8)], "b0,b0>b0,b0 s1,s1>F,s1", undifferentiated=[1],
               batch=[0, 0])  # fmt: skip
    yield Case("sigmoid", lambda x: tf.nn.softplus(x), [floats("B", 7)], "b0>b0 s1>s1")


def in_top_k_cases():
    yield Case("in_top_k", lambda x, y: raw.InTopK(predictions=x, targets=y, k=2), [tied("B", 8), integers("B")],
               "b0,b0>b0 s1,F>F")  # fmt: skip
    yield Case("in_top_k_v2", lambda x, y, k: raw.InTopKV2(predictions=x, targets=y, k=k),
               [tied(5, 7), integers(5, high=9), constant(3)], "s0,s0,F>s0 s1,F,F>F")  # fmt: skip
    infinite = floats(5, 7)._replace(
        make=lambda random, sizes: np.where(random.uniform(0, 1, sizes) < 0.1, np.inf, 0.5).astype(np.float32)
    )
    yield Case("in_top_k_infinite", lambda x, y, k: raw.InTopKV2(predictions=x, targets=y, k=k),
               [infinite, integers(5, high=7), constant(3)], "s0,s0,F>s0 s1,F,F>F")  # fmt: skip


@pytest.mark.parametrize("ranks", TWO)
def test_scores_of_classes(ranks):
    check(list(softmax_cases()) + list(cross_entropy_cases()) + list(in_top_k_cases()), ranks)


def sparse_loss(labels, classes=8, ranks=2):
    """The op on 8 classes, its rule's view of it, the placements in which classes are cut, and what the ranks have."""
    scores = np.zeros([len(labels), classes], np.float32)
    op = raw.SparseSoftmaxCrossEntropyWithLogits(features=scores, labels=np.int32(labels)).loss.op
    shape = (len(labels),)
    inputs = (TensorInfo(scores.shape, tf.float32), TensorInfo(shape, tf.int32))
    outputs = (TensorInfo(shape, tf.float32), TensorInfo(scores.shape, tf.float32))
    info = OpInfo(op.type, op.name, {}, inputs, outputs, ranks, {})
    placements = (shard(1, balanced_sizes(classes, ranks)), REPLICATED)
    return op, info, placements, [np.split(scores, ranks, axis=1), [np.int32(labels)] * ranks]


def test_the_loss_of_a_label_that_is_no_class_is_nan():
    with tf.Graph().as_default():
        losses = on_ranks(*sparse_loss([0, 8, 7, -1]), build=lambda outputs, local: outputs[0])
    for loss in losses:
        np.testing.assert_allclose(loss, np.log(8) * np.array([1, np.nan, 1, np.nan]), rtol=1e-6)


def test_a_second_derivative_is_refused():
    def twice(outputs, local):
        grad = tf.gradients(outputs[0], local[0])[0]
        return tf.gradients(grad, local[0])

    with tf.Graph().as_default(), pytest.raises(LookupError, match="classes are split cannot be differentiated again"):
        on_ranks(*sparse_loss([0, 1]), build=twice)


def test_what_is_exchanged_does_not_grow_with_the_classes():
    def moved(classes):
        with tf.Graph().as_default():
            op, info, placements, _ = sparse_loss([0] * 32, classes, 4)
        return [choice.moved(4, True) for choice in choices_of(info) if choice.inputs == placements]

    assert moved(1000) == moved(100000) == [3 * 2 * 3 / 4 * 32 * 4]
