"""The update rule of `epl.ops.adam_weight_decay_optimizer`: that of the paper, on one device, on many, and in parts."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ops.adam_weight_decay_optimizer import AdamWeightDecayOptimizer

ROWS, STEPS, RATE, DECAY = 6, 3, 0.1, 0.3
TABLE = np.random.RandomState(0).uniform(0.5, 1.0, [ROWS, 2]).astype(np.float32)
IDS = np.array([[0, 2, 2, 5], [1, 2, 3, 2], [5, 5, 0, 4]])


def expected(weights, gradients, decay):
    """The rule of the docstring, in float64."""
    weights, m, v = weights.astype(np.float64), 0.0, 0.0
    for step, gradient in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        rate = RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        weights = weights - rate * (m / (np.sqrt(v) + 1e-6) + decay * weights)
    return weights


def train(resource):
    """Sums rows of a table, and a bias that does not decay; returns both after some steps, and the rows' gradients."""
    with tf.variable_scope("", use_resource=resource):
        table = tf.get_variable("table", initializer=TABLE)
        bias = tf.get_variable("kept/bias", initializer=np.ones([2], np.float32))
    ids = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids)) / 2 + bias)
    optimizer = AdamWeightDecayOptimizer(RATE, DECAY, exclude_from_weight_decay=["^kept/"])
    gradients = optimizer.compute_gradients(loss, [table, bias])
    train_op = optimizer.apply_gradients(gradients)
    assert isinstance(gradients[0][0], tf.IndexedSlices)
    rows = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for fed in IDS:
            before = session.run(table)
            session.run(train_op, {ids: fed})
            dense = np.zeros_like(before)
            np.add.at(dense, fed, before[fed] / (2 * len(fed)))
            rows.append(dense)
        return session.run([table, bias]), rows


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("devices,config", [(1, {}), (2, {}), (2, {"zero__level": "v1"})], ids=str)
def test_weights_follow_the_rule(init, devices, config, resource):
    init(devices, **config)
    (table, bias), rows = train(resource)
    np.testing.assert_allclose(table, expected(TABLE, rows, DECAY), rtol=2e-5)
    np.testing.assert_allclose(bias, expected(np.ones(2), [np.full(2, 0.5)] * STEPS, 0.0), rtol=2e-5)


def test_without_decay_it_is_adam(init):
    init(1, annotate=False)
    weights = [tf.Variable(TABLE) for _ in range(2)]
    updates = [
        optimizer.apply_gradients([(tf.sin(weight), weight)])
        for optimizer, weight in zip(
            [AdamWeightDecayOptimizer(RATE), tf.train.AdamOptimizer(RATE, epsilon=1e-6)], weights
        )
    ]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            session.run(updates)
        ours, theirs = session.run(weights)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "excluded,words",
    [("bias", r"the string 'bias': expected a list"), (["("], r"'\(', which is no regular expression")],
)
def test_patterns_that_are_none(excluded, words):
    with pytest.raises(ValueError, match=words):
        AdamWeightDecayOptimizer(RATE, exclude_from_weight_decay=excluded)


def test_slots_are_named_as_those_of_adam(init):
    init(2)
    weight = tf.get_variable("w", [4])
    optimizer = AdamWeightDecayOptimizer(RATE, name="decayed")
    optimizer.minimize(tf.reduce_sum(weight))
    assert optimizer.get_slot_names() == ["m", "v"]
    assert [optimizer.get_slot(weight, name).name for name in "mv"] == ["w/decayed:0", "w/decayed_1:0"]
    assert epl.Graph.get().apply_calls
