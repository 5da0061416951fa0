"""Each kind of summary of a merged tensor is what one device writes that takes all rows."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import plain_graph
from tests.parallel.pipelines import begin, dense, no_stage, stage

KEYS = epl.GraphKeys
KINDS = ["scalar", "histogram", "image", "audio", "text", "tensor_summary"]
ROWS = np.random.RandomState(0).randint(-99, 99, [16, 3]).astype("f") / 128  # whose sums are exact


def plain_only(tensor, key):
    """What stands for `epl.add_to_collection` in plain TensorFlow."""


def written(stage, collect, kind):
    """The summaries of that kind that a training step writes, by tag, of tensors that are put in collections."""
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        hidden = dense(x, 3, 0)
        pixels = tf.reshape(tf.cast(x * 127 + 128, tf.uint8), [-1, 1, 1, 3])
        sound = tf.identity(x)
    with stage():
        total, count = tf.reduce_sum(x), tf.shape(x)[0]
        words = tf.as_string(tf.reduce_sum(x, axis=1), precision=6)
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1)))
    rows = tf.identity(x)
    if kind == "scalar":
        collect([total, count], KEYS.GLOBAL_SUM_OBJECTS)
        tf.summary.scalar("total", total)
        tf.summary.scalar("count", count)
    elif kind == "histogram":
        collect(rows, KEYS.GLOBAL_CONCAT_OBJECTS)
        tf.summary.histogram("rows", rows)
    elif kind == "image":
        collect(pixels, KEYS.LOCAL_CONCAT_OBJECTS)
        tf.summary.image("pixels", pixels, max_outputs=16)
    elif kind == "audio":
        collect(sound, KEYS.GLOBAL_CONCAT_OBJECTS)
        tf.summary.audio("sound", sound, sample_rate=8000, max_outputs=16)
    elif kind == "text":
        collect(words, KEYS.LOCAL_CONCAT_OBJECTS)
        tf.summary.text("words", words)
    else:
        collect(rows, KEYS.GLOBAL_CONCAT_OBJECTS)
        tf.summary.tensor_summary("rows", rows, summary_description="all rows", display_name="of the step")
    shown = tf.summary.merge_all()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        summary = tf.Summary.FromString(sess.run([shown, train_op], {x: ROWS})[0])
    return {value.tag: value for value in summary.value}


@pytest.mark.grid
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_summary_of_a_merged_tensor_equals_that_of_one_device(init, kind, micro_batches):
    if micro_batches == 1:
        begin(init, 1, 2)
        replicate = epl.replicate(1)
        found = written(lambda: replicate, epl.add_to_collection, kind)
    else:
        begin(init, micro_batches, 4)
        found = written(stage, epl.add_to_collection, kind)
    with plain_graph():
        expected = written(no_stage, plain_only, kind)
    assert expected and found == expected
