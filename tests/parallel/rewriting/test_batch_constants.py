"""The batch size of a dataset is found behind what the methods of tf.data build."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.rewriting.batch_constants import batch_sizes_of
from epl.parallel.rewriting.function_bodies import Bodies

Dataset = tf.data.Dataset

FORMS = {
    "map": lambda: Dataset.range(8).batch(4).map(lambda row: row + 1),
    "parallel map": lambda: Dataset.range(8).batch(4).map(lambda row: row + 1, num_parallel_calls=2),
    "filter": lambda: Dataset.range(8).batch(4).filter(lambda row: row[0] < 8),
    "interleave": lambda: Dataset.range(2).interleave(lambda _: Dataset.range(8).batch(4), 2),
    "parallel interleave": lambda: Dataset.range(2).interleave(
        lambda _: Dataset.range(8).batch(4), 2, num_parallel_calls=2
    ),
    "parallel_interleave": lambda: Dataset.range(2).apply(
        tf.data.experimental.parallel_interleave(lambda _: Dataset.range(8).batch(4), 2)
    ),
    "map_and_batch": lambda: Dataset.range(8).apply(tf.data.experimental.map_and_batch(lambda row: row + 1, 4)),
    "shuffle_and_repeat": lambda: (
        Dataset.range(8).batch(4).apply(tf.data.experimental.shuffle_and_repeat(4, 2)).prefetch(1)
    ),
    "options": lambda: Dataset.range(8).shuffle(4).batch(4).with_options(tf.data.Options()),
}


def _sizes_of(build):
    with tf.Graph().as_default() as graph:
        read = build().make_initializable_iterator().get_next()
        return [size.rows for size in batch_sizes_of(Bodies(graph.as_graph_def()), read.op.name)]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form(form):
    assert _sizes_of(FORMS[form]) == [4]


@pytest.mark.tensorflow("2", reason="TensorFlow 1.15 makes batches in one thread")
def test_a_parallel_batch():
    assert _sizes_of(lambda: Dataset.range(8).batch(4, num_parallel_calls=2)) == [4]
