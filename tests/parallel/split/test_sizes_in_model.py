"""Models that have the number of rows of a batch, and numbers of rows, as numbers: right, or told."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.split.sizes_in_model import doubts
from tests.parallel.split.harness import Model, Split, check, communicator, few_choices, rows
from tests.parallel.split.models import FLOAT, weights

ROWS, WORDS = 4, 5


def hidden(x, count):
    return tf.matmul(tf.reshape(x, [count * WORDS, 6]), weights("kernel", 6, 8))


def sentences(x, count):
    return tf.reshape(hidden(x, count), [count, WORDS, 8])


def at_flat_positions(count, x, at):
    return tf.gather(hidden(x, count), tf.reshape(at + tf.reshape(tf.range(count) * WORDS, [-1, 1]), [-1]))


def at_positions(count, x, at):
    return tf.gather_nd(sentences(x, count), tf.stack([tf.range(count), at[:, 0]], 1))


def at_positions_of_an_array(count, x, at):
    numbers = np.stack([np.arange(count), np.zeros(count, int)], 1).astype(np.int32)
    return tf.gather_nd(sentences(x, count), numbers + tf.stack([tf.zeros_like(at[:, 0]), at[:, 0]], 1))


def by_batch_gather(count, x, at):
    return tf.reshape(tf.batch_gather(sentences(x, count), at), [-1, 8])


def at_the_best(count, x, at):
    words = hidden(x, count)
    _, best = tf.nn.top_k(tf.reshape(tf.reduce_sum(words, -1), [count, WORDS]), 1)
    return tf.gather(words, tf.reshape(best + tf.expand_dims(tf.range(count) * WORDS, 1), [-1]))


def scaled_by_numbers(count, x, at):
    return sentences(x, count)[:, 0] * tf.reshape(tf.cast(tf.range(count), FLOAT), [count, 1])


def scaled_by_weights(count, x, at):
    once = np.linspace(0.1, 0.7, ROWS).reshape([ROWS, 1])
    return sentences(x, count)[:, 0] * tf.constant(np.tile(once, [count // ROWS, 1]), FLOAT)


def scaled_by_falling_weights(count, x, at):
    return sentences(x, count)[:, 0] * tf.constant(np.tile([[4.0], [3.0], [2.0], [1.0]], [count // ROWS, 1]), FLOAT)


def with_periods(count, x, at):
    return tf.gather_nd(sentences(x, count), tf.stack([tf.range(count), at[:, 0] * 0 + tf.range(count) % 2], 1))


def with_positions(count, x, at):
    return hidden(x, count) * tf.reshape(tf.cast(tf.tile(tf.range(WORDS), [count]), FLOAT), [-1, 1])


def with_labels(count, x, at):
    classes = tf.constant(np.tile(np.eye(ROWS), [count // ROWS, 2]), FLOAT)
    return classes * tf.nn.log_softmax(sentences(x, count)[:, 0])


def of_each_sentence_twice(count, x, at):
    numbers = np.repeat(np.arange(count) * WORDS, 2).astype(np.int32)
    return tf.gather(hidden(x, count), tf.reshape(at, [-1]) + numbers)


def by_segments(count, x, at):
    sentence = np.repeat(np.arange(count), WORDS).astype(np.int32)
    return tf.math.unsorted_segment_sum(hidden(x, count), sentence, count)


def first_words(count, x, at):
    return tf.gather(hidden(x, count), tf.range(count) * WORDS)


def one_by_one(count, x, at):
    h = sentences(x, count)
    return tf.stack([h[row, 0] for row in range(count)])


def a_sum_over_a_number(count, x, at):
    h = sentences(x, count)
    return h[:, 0] * (tf.reduce_sum(h) / count)


def a_sum_times_a_number(count, x, at):
    h = sentences(x, count)
    return h[:, 0] * (tf.reduce_sum(h) * (1.0 / count))


def model(case, times, of_one=ROWS):
    count = of_one * times
    x, at = tf.placeholder(FLOAT, [count, WORDS, 6], "x"), tf.placeholder(tf.int32, [count, 2], "at")
    y = tf.matmul(case(count, x, at), weights("kernel2", 8, 5))
    return Model(tf.reduce_mean(tf.square(y)), [y])


def test_constants_of_two_rows_may_be_labels():
    def build(times):
        x = tf.placeholder(FLOAT, [2 * times, 6], "x")
        is_real = tf.constant(np.tile([[1.0], [0.0]], [times, 1]), FLOAT)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=is_real, logits=tf.matmul(x, weights("kernel", 6, 1)))
        return Model(
            tf.reduce_mean(losses * tf.cast(tf.constant(np.tile([[True], [False]], [times, 1])), FLOAT)), [losses]
        )

    check(lambda: build(1), rows((2, 2), x=(6,)), of_all=lambda: build(2))


@pytest.mark.parametrize("prepare", [None, few_choices(1)], ids=["any", "few"])
@pytest.mark.parametrize(
    "case",
    [
        at_flat_positions,
        at_positions,
        by_batch_gather,
        at_the_best,
        scaled_by_numbers,
        scaled_by_weights,
        scaled_by_falling_weights,
        with_periods,
        with_positions,
        with_labels,
    ],
    ids=lambda case: case.__name__,
)
def test_numbers_of_rows_are_those_among_the_rows_of_all(case, prepare):
    feeds = rows((ROWS, ROWS), x=(WORDS, 6), at=([2], WORDS))
    splits = check(lambda: model(case, 1), feeds, prepare=prepare, of_all=lambda: model(case, 2))
    assert not doubts(splits[0].program)


def test_the_first_doubts_are_told_and_the_others_counted():
    split = Split(lambda: model(one_by_one, 1), 2, 0, communicator(2))
    assert len(doubts(split.program)) == 4 and doubts(split.program)[-1] == "split: 1 more op(s) of these kinds"


@pytest.mark.parametrize(
    "case, told",
    [
        (at_positions_of_an_array, "has a whole number for each row of one device, and they grow from row to row"),
        (of_each_sentence_twice, "has a whole number for each row of one device, and they grow from row to row"),
        (by_segments, "has a whole number for each row of one device, and they grow from row to row"),
        (first_words, "takes rows of the batch by numbers that the model has"),
        (one_by_one, "takes rows of the batch by numbers that the model has"),
        (a_sum_over_a_number, "scales by 4 what is computed from rows, and the batch of a device has 4 rows"),
        (a_sum_times_a_number, "scales by 0.25 what is computed from rows, and the batch of a device has 4 rows"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_what_only_the_user_knows_is_told(case, told):
    split = Split(lambda: model(case, 1), 2, 0, communicator(2))
    assert any(told in one for one in doubts(split.program)), doubts(split.program)


def test_the_number_of_the_one_row_of_a_device_is_told():
    split = Split(lambda: model(at_flat_positions, 1, of_one=1), 2, 0, communicator(2))
    assert any("the batch of a device has 1 row" in one for one in doubts(split.program)), doubts(split.program)


def test_a_split_tells_what_it_doubts(init, caplog):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    import epl

    x = tf.placeholder(tf.float32, [ROWS, 16])
    with epl.split(2):
        loss = tf.reduce_sum(tf.square(tf.layers.dense(x, 1003))) / ROWS
    with caplog.at_level(logging.WARNING, "epl"):
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    (told,) = [record.getMessage() for record in caplog.records if "scales by 4" in record.getMessage()]
    assert "In the split are the rows of all 2 devices" in told and "test_sizes_in_model.py" in told
