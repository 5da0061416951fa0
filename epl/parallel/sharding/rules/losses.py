"""Rules of softmax and of other ops on the scores of classes: cross entropy, whether a class is in the top k.

Rows are independent. Where the classes are cut, the ranks exchange maximum and sum of their shards: a few numbers per
row, for any number of classes. As on a GPU, a label that is no class makes its loss NaN.
"""

from typing import Iterator, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import REPLICATED, Placement
from epl.parallel.sharding.rules.common import (
    Labels,
    all_reduced,
    dimensions,
    labelled,
    own_offset,
    shape_without,
    weighted,
    with_element,
    without,
)
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, Inside, OpInfo, rule


def _exchanged(op: OpInfo, forward: Sequence[int], backward: Sequence[int] = ()) -> Tuple[Inside, ...]:
    """All-reduces, each of so many numbers per row."""
    last = len(op.inputs[0].shape or ()) - 1
    return all_reduced(shape_without(op.inputs[0], [last]), 4, forward, backward)


# ---- Softmax


@rule("Softmax", "LogSoftmax")
def _softmax(op: OpInfo) -> Iterator[Choice]:
    data = dimensions(op.inputs[0])
    yield from labelled(op, [without(data, data[-1:])], [without(data, data[-1:])])
    only_last = without(data, data[:-1])
    for choice in labelled(op, [only_last], [only_last]):
        if choice.inputs[0].sizes is not None:
            yield choice._replace(emit=_emit_softmax, inside=_exchanged(op, (1, 1), (1,)))


def _emit_softmax(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
    shifted, exponentials, total = _sums(emission, inputs[0])
    total = emission.enter(emission.sum_partial(total))
    result = exponentials / total if op.type == "Softmax" else shifted - tf.log(total)
    return [tf.cast(result, inputs[0].dtype)]


class _Sums(NamedTuple):
    """Exponentials of scores whose last dimension is cut, in float32 at least, with that dimension kept.

    Attributes:
      shifted: the scores, less the largest of their row.
      exponentials: of `shifted`.
      total: their sum over this rank's shard, a partial sum.
    """

    shifted: tf.Tensor
    exponentials: tf.Tensor
    total: tf.Tensor


def _sums(emission: Emission, scores: tf.Tensor) -> _Sums:
    if scores.dtype.size < 4:
        scores = tf.cast(scores, tf.float32)
    shifted = scores - tf.stop_gradient(emission.all_max(tf.reduce_max(scores, -1, keepdims=True)))
    exponentials = tf.exp(shifted)
    return _Sums(shifted, exponentials, tf.reduce_sum(exponentials, -1, keepdims=True))


# ---- Cross entropy. Its second output is its gradient, which is not differentiated again.


@rule("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(op: OpInfo) -> Iterator[Choice]:
    yield from labelled(op, [["n", None], ["n"]], [["n"], ["n", None]])
    for choice in labelled(op, [[None, "c"], []], [[], []], summed=["c"]):
        placement = choice.inputs[0]
        if placement.sizes is not None:
            yield Choice(
                (placement, REPLICATED),
                (REPLICATED, placement),
                _emit_sparse_cross_entropy(placement),
                _exchanged(op, (1, 2)),
            )


def _emit_sparse_cross_entropy(placement: Placement) -> Emit:
    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        scores, labels = inputs
        shifted, exponentials, total = _sums(emission, scores)
        own = _OwnClasses(emission, placement, labels)
        target = tf.expand_dims(own.pick(shifted), 1)
        total, target = tf.unstack(emission.sum_partial(tf.stack([total, target])))
        valid = tf.expand_dims((labels >= 0) & (labels < sum(placement.sizes or ())), 1)
        total = tf.where_v2(valid, total, tf.constant(float("nan"), total.dtype))
        gradient = exponentials / total - own.one_hot(total.dtype)
        return _cross_entropy(emission, scores, tf.stop_gradient(tf.log(total) - target), gradient)

    return emit


def _cross_entropy(emission: Emission, scores: tf.Tensor, loss: tf.Tensor, gradient: tf.Tensor) -> List[tf.Tensor]:
    """The outputs of a cross entropy with a given gradient; `loss` has a second dimension of size 1."""
    refused = "The gradient of a softmax cross entropy whose classes are split cannot be differentiated again."
    gradient = tf.raw_ops.PreventGradient(input=tf.cast(gradient, scores.dtype), message=refused)
    return [tf.squeeze(weighted(emission, tf.cast(loss, scores.dtype), scores, gradient), 1), gradient]


class _OwnClasses:
    """The positions of labels in this rank's shard of the classes."""

    def __init__(self, emission: Emission, placement: Placement, labels: tf.Tensor) -> None:
        self._emission, self._placement = emission, placement
        self._size = emission.own(placement.sizes or (), tf.int32)
        self._position = tf.cast(labels - own_offset(emission, placement, labels.dtype), tf.int32)
        self._inside = (self._position >= 0) & (self._position < self._size)

    def pick(self, scores: tf.Tensor) -> tf.Tensor:
        """The score of each row's label; 0 if another rank has the label."""
        column = tf.where_v2(self._inside, self._position, 0)
        scores = with_element(self._emission, scores, self._placement)
        picked = tf.gather_nd(scores, tf.stack([tf.range(tf.shape(column)[0]), column], axis=1))
        return tf.where_v2(self._inside, picked, tf.constant(0, picked.dtype))

    def one_hot(self, dtype: tf.DType) -> tf.Tensor:
        """Rows with 1 at the label; rows of zeros if another rank has it."""
        return tf.one_hot(self._position, self._size, dtype=dtype)


@rule("SoftmaxCrossEntropyWithLogits")
def _cross_entropy_rule(op: OpInfo) -> Iterator[Choice]:
    yield from labelled(op, [["n", None], ["n", None]], [["n"], ["n", None]])
    for choice in labelled(op, [[None, "c"], [None, "c"]], [[], []], summed=["c"]):
        placement = choice.inputs[0]
        if placement.sizes is not None:
            yield Choice((placement, placement), (REPLICATED, placement), _emit_cross_entropy, _exchanged(op, (1, 3)))


def _emit_cross_entropy(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
    """loss = log(total) * sum(labels) - sum(labels * shifted); labels get the gradient of this formula."""
    scores, labels = inputs
    shifted, exponentials, total = _sums(emission, scores)
    targets = tf.cast(labels, total.dtype)
    sums = [
        tf.reduce_sum(partial_sum, 1, keepdims=True) for partial_sum in (targets, targets * tf.stop_gradient(shifted))
    ]
    partial_sums = [tf.stop_gradient(total)] + sums
    total, weight, target = tf.unstack(emission.sum_partial(tf.stack(partial_sums)))
    total = tf.stop_gradient(total)
    gradient = exponentials / total - targets
    return _cross_entropy(emission, scores, tf.log(total) * weight - target, gradient)


# ---- In the top k


@rule("InTopK", "InTopKV2")
def _in_top_k(op: OpInfo) -> Iterator[Choice]:
    more: List[Labels] = [[]] * (len(op.inputs) - 2)
    yield from labelled(op, [["n", None], ["n"], *more], [["n"]])
    for choice in labelled(op, [[None, "c"], [], *more], [[]], summed=["c"]):
        placement = choice.inputs[0]
        if placement.sizes is not None:
            yield Choice(choice.inputs, (REPLICATED,), _emit_in_top_k(placement), _exchanged(op, (1, 2)))


def _emit_in_top_k(placement: Placement) -> Emit:
    """Fewer than k scores are larger than that of the target, and all are finite."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        scores, targets = inputs[:2]
        own = _OwnClasses(emission, placement, targets)
        target = tf.expand_dims(emission.sum_partial(own.pick(scores)), 1)
        larger = tf.reduce_sum(tf.cast(scores > target, tf.int32), 1)
        infinite = tf.reduce_sum(tf.cast(tf.logical_not(tf.is_finite(scores)), tf.int32), 1)
        larger, infinite = tf.unstack(emission.sum_partial(tf.stack([larger, infinite])))
        k = tf.cast(inputs[2], tf.int32) if len(inputs) > 2 else op.attrs["k"]
        valid = (targets >= 0) & (targets < sum(placement.sizes or ()))
        return [(larger < k) & tf.equal(infinite, 0) & valid]

    return emit
