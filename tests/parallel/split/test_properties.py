"""Property: random small graphs, computed in random legal placements, give what they give unsplit.

The search would take the cheap ways alone. Here each op keeps a few of its choices, of which one is taken wherever it
can be, so that odd combinations of placements meet.
"""

import hypothesis
import hypothesis.strategies as st
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.rules import all as all_rules  # noqa: F401  (fills the registry)
from epl.parallel.sharding.rules.registry import RULES
from tests.parallel.split.harness import Model, check, few_choices, rows
from tests.parallel.split.models import FLOAT, weights
from tests.parallel.split.random_steps import COMMON, RARE, VARIANTS

SHAPE = (4, 6)  # of a row
# Rules of ops that compute in float32 alone, or draw random numbers, and of such as no function of TensorFlow makes.
NOT_DRAWN = frozenset(["_batch_norm", "_local_response", "_random", "_pool_v2", "_einsum"])
COUNTS = [(2, 2), (1, 3), (2, 1, 2)]  # rows of each rank
# By how many ranks there are.
RATIOS = {
    "none": {2: (), 3: (), 4: ()},
    "positive": {2: (1, 3), 3: (3, 1, 2), 4: (2, 1, 1, 4)},
    "empty": {2: (0, 1), 3: (2, 0, 1), 4: (1, 0, 0, 0)},
}


def equal_unsplit(steps, counts, seed, ratios="none"):
    def build():
        x = tf.placeholder(FLOAT, (None,) + SHAPE, "x")
        h = x * weights("first", SHAPE[1])
        for number, (step, variant) in enumerate(steps):
            h = step(h, number, variant)
            h = h / (1 + tf.reduce_max(tf.abs(tf.stop_gradient(h)), [1, 2], keepdims=True))
        return Model(tf.reduce_mean(tf.reduce_sum(tf.square(h), [1, 2])) + tf.nn.l2_loss(h), [h])

    check(build, rows(counts, seed, x=SHAPE), prepare=few_choices(seed), ratios=RATIOS[ratios][len(counts)])


def graphs(steps, most, counts):
    """Draws the arguments of `equal_unsplit`, with so many steps at most."""
    return hypothesis.given(
        steps=st.lists(st.tuples(st.sampled_from(steps), st.integers(0, VARIANTS - 1)), min_size=2, max_size=most),
        counts=st.sampled_from(counts),
        seed=st.integers(0, 100000),
        ratios=st.sampled_from(sorted(RATIOS)),
    )


def settings(examples):
    health = hypothesis.HealthCheck.all()
    return hypothesis.settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=health
    )


@settings(3)
@graphs(COMMON, 5, COUNTS)
def test_random_graphs(steps, counts, seed, ratios):
    equal_unsplit(steps, counts, seed, ratios)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(40)
@graphs(COMMON + RARE, 4, COUNTS + [(2, 1), (1, 2, 1, 1)])
def test_more_random_graphs(steps, counts, seed, ratios):
    equal_unsplit(steps, counts, seed, ratios)


@pytest.mark.long
@pytest.mark.parametrize("step", COMMON + RARE, ids=lambda step: step.__name__)
def test_each_step(step):
    """Twice in a graph."""
    number = (COMMON + RARE).index(step)
    drawn = [(step, 7 * number % VARIANTS), (step, (7 * number + 25) % VARIANTS)]
    equal_unsplit(drawn, COUNTS[number % 2], number, ("positive", "none", "empty")[number % 3])


@pytest.mark.long
def test_steps_take_ops_of_every_rule():
    with tf.Graph().as_default() as graph:
        for step in COMMON + RARE:
            for variant in range(VARIANTS // 2):
                with tf.variable_scope(f"{step.__name__}{variant}"):
                    tf.nn.l2_loss(step(tf.placeholder(FLOAT, (None,) + SHAPE), 0, variant))
        types = {op.type for op in graph.get_operations()}
    drawn = {RULES[op_type].__name__ for op_type in types & set(RULES)}
    assert {rule.__name__ for rule in RULES.values()} - drawn <= NOT_DRAWN
