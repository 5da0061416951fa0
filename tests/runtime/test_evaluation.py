"""Runs that train nothing, on a graph that was rewritten for training."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import FeedError
from tests.parallel.in_process import Linear, rewritten
from tests.parallel.pipelines import Chain, begin


def summary_value(serialized):
    summary = tf.Summary()
    summary.ParseFromString(serialized)
    return summary.value[0].simple_value


@pytest.mark.parametrize("key", [None, epl.GraphKeys.GLOBAL_MEAN_OBJECTS, epl.GraphKeys.LOCAL_MEAN_OBJECTS])
def test_a_summary_of_a_merged_tensor_can_be_fetched_alone(init, key):
    init()
    model = Linear()
    if key:
        epl.add_to_collection(model.loss, key)
    model.minimize()
    summary = tf.summary.merge([tf.summary.scalar("loss", model.loss)])
    rewritten()
    feed = model.feed()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        expected = np.mean(np.square(feed[model.x].sum(axis=1, keepdims=True) - feed[model.y]))
        assert summary_value(sess.run(summary, feed)) == pytest.approx(expected)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("build", ["data parallel", "pipeline"])
def test_a_fed_evaluation_with_a_summary_of_the_loss_takes_any_number_of_rows(init, build, rows):
    if build == "pipeline":
        begin(init, 4, 4)
    else:
        init(3)
    model = Chain() if build == "pipeline" else Linear()
    summaries = [tf.summary.scalar("loss", model.loss), tf.summary.histogram("out", model.out)]
    own, both = summaries[0], tf.summary.merge(summaries)
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        expected, parts = sess.run([model.loss, both], model.feed(rows))
        assert summary_value(parts) == summary_value(sess.run(own, model.feed(rows))) == pytest.approx(expected)
        late = tf.summary.merge([own])
        assert summary_value(sess.run(late, model.feed(24))) == pytest.approx(sess.run(model.loss, model.feed(24)))
        loss, trained, _ = sess.run([model.loss, own, model.train_op], model.feed(24))
        assert summary_value(trained) == loss


def test_rows_for_every_replica_in_a_run_of_replica_0_are_refused(init):
    init()
    model = Linear()
    p = tf.placeholder(tf.float32, [4, 1], "p")
    mean = tf.reduce_mean(p)
    model.loss += 0 * mean
    model.minimize()
    rewritten()
    rows = np.arange(8, dtype="f").reshape(8, 1)
    with tf.Session() as sess:
        with pytest.raises(FeedError, match="p:0 has a first dimension of 4 and was fed 8 rows.*Feed it 4 rows"):
            sess.run(mean, {p: rows})
        assert sess.run(mean, {p: rows[:4]}) == 1.5


def test_densified_gradients_are_not_taken_for_clipped_ones(init, caplog):
    init(communication__sparse_as_dense=True)
    table = tf.get_variable("table", [4, 2])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.placeholder(tf.int32, [None])))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewritten()
    assert "clip_after_allreduce" not in caplog.text


def test_densified_gradients_are_aggregated_dense_before_clipping(init):
    init(communication__sparse_as_dense=True, communication__clip_after_allreduce=True)
    table = tf.get_variable("table", [4, 2])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.placeholder(tf.int32, [None])))
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [table]), 1.0)
    tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, [table]))
    plan = rewritten().plan
    assert [reduction.sparse for group in plan.groups for reduction in group.reductions] == [False]
