"""Sparse gradients summed by index in a fixed order: every rank gets the same bits.

    rank 0: rows 5 2 5 --> 5 2 --+              +--> 5 2 --> + rows of rank 1 --> 5 2 7
    rank 1: rows 7 5   --> 7 5 --+--> gather ---+
                                                +--> the same on rank 1

TensorFlow's kernels for a GPU add rows with equal indices in any order. Here no kernel adds more than two numbers: rows
of one rank are summed before they travel, once for all ranks, so that a rank has at most one row of an index; then the
rows of one rank after the other are added to the sum.
"""

from typing import Sequence

import tensorflow.compat.v1 as tf

from epl.ops.communicator import GatheredSlices


def of_one_rank(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with at most one row of each index; the order of their sum does not matter yet."""
    indices, positions = tf.unique(slices.indices)
    values = tf.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def of_all_ranks(slices: tf.IndexedSlices, gathered: GatheredSlices) -> tf.IndexedSlices:
    """The sum in the order of ranks, with at most one row of each index.

    Args:
      slices: rows of all ranks; each rank has at most one of an index (`of_one_rank`).
      gathered: the collective that brought them.
    """
    indices, positions = tf.unique(slices.indices)
    parts: Sequence[tf.Tensor] = tf.split(slices.values, gathered.rows, num=gathered.ranks)
    places: Sequence[tf.Tensor] = tf.split(positions, gathered.rows, num=gathered.ranks)
    total = tf.unsorted_segment_sum(parts[0], places[0], tf.size(indices))
    for part, place in zip(parts[1:], places[1:]):
        total = tf.tensor_scatter_nd_add(total, tf.expand_dims(place, 1), part)
    return tf.IndexedSlices(total, indices, slices.dense_shape)
