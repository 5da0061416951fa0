"""Gates and experts against loops in NumPy."""

import mixture
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

GROUPS, TOKENS, EXPERTS, WIDTH = 3, 10, 4, 6
RANDOM = np.random.RandomState(0)
SCORES = RANDOM.randn(GROUPS, TOKENS, EXPERTS)
PROBABILITIES = (np.exp(SCORES) / np.exp(SCORES).sum(-1, keepdims=True)).astype("f")
PRESENT = np.ones([GROUPS, TOKENS], "f")
PRESENT[0, 7:] = 0


def expected(probabilities, present, choices, capacity):
    """By group: (token, expert, place, weight) of all that has a place, first choices of all tokens first."""
    found = []
    for group, rows in enumerate(probabilities):
        orders = np.argsort(-rows, axis=1)[:, :choices]
        taken = np.zeros(EXPERTS, int)
        for choice in range(choices):
            for token in range(TOKENS):
                if not present[group, token]:
                    continue
                expert = orders[token, choice]
                total = rows[token, orders[token]].sum() if choices > 1 else 1.0
                if taken[expert] < capacity:
                    found.append((group, token, expert, taken[expert], rows[token, expert] / total))
                taken[expert] += 1
    return found


@pytest.mark.parametrize("gate", ["switch", "top2"])
@pytest.mark.parametrize("capacity", [1, 3, 20])
def test_tokens_go_to_their_best_experts_while_there_is_room(gate, capacity):
    wanted = np.zeros([GROUPS, TOKENS, EXPERTS, capacity])
    for group, token, expert, place, weight in expected(PROBABILITIES, PRESENT, mixture.CHOICES[gate], capacity):
        wanted[group, token, expert, place] = weight
    routing = mixture.route(tf.constant(PROBABILITIES), tf.constant(PRESENT), gate, capacity)
    with tf.Session() as session:
        combine = session.run(routing.combine)
    np.testing.assert_allclose(combine, wanted, atol=1e-6)
    assert capacity == 20 or np.count_nonzero(wanted) < np.count_nonzero(PRESENT) * mixture.CHOICES[gate]


def test_balance_is_one_when_all_are_chosen_alike_and_more_when_one_is_preferred():
    alike = np.eye(EXPERTS, dtype="f")[np.arange(8) % EXPERTS][np.newaxis]
    one = np.eye(EXPERTS, dtype="f")[np.zeros(8, int)][np.newaxis]
    present = tf.ones([1, 8])
    with tf.Session() as session:
        values = [session.run(mixture.route(tf.constant(rows), present, "top2", 8).balance) for rows in (alike, one)]
    np.testing.assert_allclose(values, [1.0, EXPERTS], rtol=1e-6)


@pytest.mark.parametrize("gate", ["switch", "top2"])
def test_outputs_are_the_weighted_ones_of_the_experts(gate):
    x = tf.constant(RANDOM.randn(GROUPS, TOKENS, WIDTH).astype("f"))
    with tf.variable_scope("m"):
        y, _ = mixture.layer(x, tf.constant(PRESENT), EXPERTS, 8, gate, capacity_factor=0.8)
    values = {v.op.name: v for v in tf.trainable_variables()}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        outputs, rows, values = session.run([y, x, values])
    scores = rows @ values["m/gate/kernel"]
    probabilities = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    capacity = mixture.capacity_of(TOKENS, EXPERTS, gate, 0.8)
    wanted = np.zeros_like(outputs)
    for group, token, expert, _, weight in expected(probabilities, PRESENT, mixture.CHOICES[gate], capacity):
        inner = np.maximum(rows[group, token] @ values["m/expert_inner"][expert], 0)
        wanted[group, token] += weight * (inner @ values["m/expert_outer"][expert])
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)
    assert (
        len(expected(probabilities, PRESENT, mixture.CHOICES[gate], capacity)) < PRESENT.sum() * mixture.CHOICES[gate]
    )


@pytest.mark.parametrize(
    "tokens,experts,gate,factor,capacity",
    [(64, 8, "switch", 1.0, 8), (64, 8, "top2", 1.25, 20), (5, 4, "switch", 1.0, 2), (4, 64, "switch", 1.0, 1)],
)
def test_capacity(tokens, experts, gate, factor, capacity):
    assert mixture.capacity_of(tokens, experts, gate, factor) == capacity
