"""Steps of models whose variables are in parts by ZeRO: what is merged, and when."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.runtime.run_plan import RunPlanner
from epl.utils.errors import NotAvailableError, PlanError
from tests.parallel.in_process import rewritten

LEVELS = ["v1", "v2"]


def model():
    x = tf.placeholder(tf.float32, [None, 3])
    weights = tf.get_variable("weights", [3, 63], initializer=tf.random_normal_initializer(seed=1))
    values = tf.matmul(x, weights)
    return x, weights, values, tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(values)))


@pytest.mark.parametrize("scope", ["GLOBAL", "LOCAL"])
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_fed_counts_once_in_outputs(init, level, scope):
    init(2, zero__level=level)
    x, weights, values, train_op = model()
    total = tf.reduce_sum(values)
    epl.add_to_collection(values, getattr(epl.GraphKeys, scope + "_CONCAT_OBJECTS"))
    epl.add_to_collection(total, getattr(epl.GraphKeys, scope + "_SUM_OBJECTS"))
    summary = tf.summary.scalar("total", total)
    rows = np.random.RandomState(0).rand(8, 3)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        expected = rows.dot(sess.run(weights))
        seen, seen_total, written = sess.run([values, total, summary], {x: rows})
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(seen_total, expected.sum(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tf.Summary.FromString(written).value[0].simple_value, seen_total)
        trained, _ = sess.run([values, train_op], {x: rows})
        np.testing.assert_allclose(trained, expected, rtol=1e-5, atol=1e-6)  # the rows of both ranks


@pytest.mark.parametrize("level", LEVELS)
def test_a_global_output_of_weights_alone_is_merged_in_each_step(init, level):
    init(2, zero__level=level)
    x, weights, _, train_op = model()
    norm = tf.nn.l2_loss(weights)
    epl.add_to_collection(norm, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    rewrite = rewritten()
    step = RunPlanner(rewrite).plan_run([], [train_op], [x])
    assert rewrite.merged[norm.name].op in {op.name for op in step.targets}


@pytest.mark.parametrize("trained", [False, True])
def test_a_scope_that_makes_other_stages_behind_the_first_updates_is_refused(init, trained):
    init(4, annotate=False, zero__level="v1")
    with epl.replicate(1):
        _, _, values, train_op = model()
    with pytest.raises(
        PlanError, match=r"1 stage\(s\) when its variables were cut into parts \(zero.level\), and has 2"
    ):
        with epl.replicate(1):
            loss = tf.reduce_mean(tf.square(tf.layers.dense(values, 64)))
        if trained:
            tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        else:
            with tf.Session() as sess:
                sess.run(train_op)


def test_a_split_behind_the_first_updates_is_refused(init):
    init(2, annotate=False, zero__level="v1", cluster__colocate_split_and_replicate=True)
    with epl.replicate(1):
        _, _, values, _ = model()
    with epl.split(2):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(values, 1001)))
    with pytest.raises(NotAvailableError, match="differentiated after apply_gradients with zero.level"):
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
