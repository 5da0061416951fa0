"""Reshape on parts: which dimensions are cut alike, and in what multiples."""

import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.sharding.rules.rule_harness import THREE, Case, check
from tests.parallel.sharding.rules.rule_inputs import constant, floats, hidden


def cases():
    yield Case("split", tf.reshape, [floats("B", 40), constant([-1, 8, 5])], "b0,F>b0 s1,F>s1 P,F>P")
    yield Case("merge", tf.reshape, [floats("B", 8, 5), constant([-1, 40])], "b0,F>b0 s1,F>s1 P,F>P")
    yield Case("rows", tf.reshape, [floats("B", 5, 7), constant([-1, 7])], "b0,F>b0 s2,F>s1 P,F>P")
    yield Case("rows_back", tf.reshape, [floats("5B", 7), constant([-1, 5, 7])], "b0,F>b0 s1,F>s2 P,F>P")
    yield Case("ones", tf.reshape, [floats(1, 7, 1, 5), constant([7, 1, 5, 1])], "s1,F>s0 s3,F>s2 P,F>P")
    yield Case("regrouped", tf.reshape, [floats(6, 10, 4), constant([12, 5, 4])], "s0,F>s0 s2,F>s2 P,F>P")
    yield Case("flat", tf.reshape, [floats("B", 3), constant([-1])], "b0,F>b0 P,F>P")
    yield Case("inner_batch", tf.reshape, [floats(5, "B", 8), constant([5, -1, 4, 2])],
               "s0,F>s0 b1,F>b1 s2,F>s2 P,F>P")  # fmt: skip
    yield Case("scalar", tf.reshape, [floats(1, 1), constant([], "int32")], "P,F>P")


def with_shape(*shape):
    def build(tensor, target):
        result = tf.reshape(tensor, target)
        result.set_shape(shape)
        return result

    return build


def dynamic_cases():
    """Targets that are known when the graph runs; there are 6 rows on 3 ranks."""
    yield Case("open", tf.reshape, [floats("B", 5, 8), hidden([6, 5, 2, 4])], "b0,F>b0 P,F>P", batch=[0])
    yield Case("open_sequence", with_shape(None, None, 4, 2), [floats("B", "?5", 8), hidden([6, 5, 4, 2])],
               "b0,F>b0 s2,F>s2 P,F>P", batch=[0])  # fmt: skip
    yield Case("open_rest", with_shape(None, None, 8), [floats("B", "?5", 4, 2), hidden([6, -1, 8])],
               "b0,F>b0 s2,F>s2 P,F>P", batch=[0])  # fmt: skip
    yield Case("inferred_rows", with_shape(None, None, 8), [floats("B", "?5", 4, 2), hidden([-1, 5, 8])],
               "b0,F>b0 s2,F>s2 P,F>P", batch=[0])  # fmt: skip


@pytest.mark.parametrize("ranks", THREE)
def test_reshape(ranks):
    check(list(cases()), ranks)


def test_targets_that_are_known_at_run_time():
    check(list(dynamic_cases()), 3)


def test_multiples():
    granular = {40: (1, 5)}
    check([Case("granular", tf.reshape, [floats("B", 40), constant([-1, 8, 5])], "b0,F>b0 s1,F>s1 P,F>P",
                granularities=granular)], 3)  # fmt: skip
