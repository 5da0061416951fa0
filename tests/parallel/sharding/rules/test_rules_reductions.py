"""Reductions, searches and running sums on parts, along the dimension that is cut as well."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.sharding.rules.rule_harness import THREE, TWO, Case, check
from tests.parallel.sharding.rules.rule_inputs import booleans, constant, floats, integers, positive, tied

raw = tf.raw_ops


def reduction(op_type, keep=False):
    names = {"x": "input"}
    return lambda x, axes: getattr(raw, op_type)(**{names["x"]: x, "axis": axes, "keep_dims": keep})


def sum_cases():
    grid = floats("B", 7, 8)
    for keep in (False, True):
        mark = "_kept" if keep else ""
        last = "s2,F>s2" if keep else "s2,F>s1"
        yield Case("sum" + mark, reduction("Sum", keep), [grid, constant(1)], f"b0,F>b0 s1,F>P {last} P,F>P")
        yield Case("mean" + mark, reduction("Mean", keep), [grid, constant([0, 1])],
                   "b0,F>P s1,F>P {} P,F>P".format(last if keep else "s2,F>s0"))  # fmt: skip
    yield Case("sum_batch", reduction("Sum"), [grid, constant([0])], "b0,F>P s1,F>s0 s2,F>s1 P,F>P")
    yield Case("mean_all", reduction("Mean"), [floats("B", 7), constant([0, -1])], "b0,F>P s1,F>P P,F>P")
    yield Case("mean_open", reduction("Mean"), [floats("?5", 7), constant([0, 1])], "s1,F>P P,F>P")
    yield Case("mean_integers", reduction("Mean"), [integers(5, 7), constant([1])], "s0,F>s0")
    yield Case("sum_unknown_axis", reduction("Sum"), [floats(5, 7), constant(1)._replace(constant=False)], "P,F>P")
    yield Case("l2", tf.nn.l2_loss, [floats(5, 7)], "s0>P s1>P")
    yield Case("running_sum", lambda x, a: raw.Cumsum(x=x, axis=a, reverse=True), [floats("B", 4, 7), constant(1)],
               "b0,F>b0 s2,F>s2 P,F>P")  # fmt: skip
    yield Case("running_product", lambda x, a: raw.Cumprod(x=x, axis=a), [positive(5, 7), constant(0)], "s1,F>s1")
    yield Case("running_exponentials", lambda x, a: raw.CumulativeLogsumexp(x=x, axis=a),
               [floats("B", 7, 8), constant(-1)], "b0,F>b0 s1,F>s1")  # fmt: skip


def extremum_cases():
    for op_type in ("Max", "Min"):
        yield Case(op_type, reduction(op_type), [tied("B", 4, 7), constant([1, 2])], "b0,F>b0 s1,F>F s2,F>F")
        yield Case(op_type + "_kept", reduction(op_type, True), [tied(5, 7), constant(-1)], "s0,F>s0 s1,F>F")
        yield Case(op_type + "_batch", reduction(op_type), [tied("B", 7), constant(0)], "b0,F>F s1,F>s0")
        yield Case(op_type + "_integers", reduction(op_type), [integers(5, 7), constant(0)], "s0,F>F s1,F>s0")
    yield Case("prod", reduction("Prod"), [positive("B", 7), constant(1)], "b0,F>b0 s1,F>F")
    yield Case("prod_kept", reduction("Prod", True), [positive(5, 7), constant([0, 1])], "s0,F>F s1,F>F")
    yield Case("norm", reduction("EuclideanNorm"), [positive(5, 7), constant([1])], "s0,F>s0 s1,F>F")
    almost = booleans(5, 7)._replace(make=lambda random, sizes: np.arange(35).reshape(sizes) != 3)
    few = booleans(5, 7)._replace(make=lambda random, sizes: np.arange(35).reshape(sizes) == 3)
    yield Case("all", reduction("All"), [almost, constant(1)], "s0,F>s0 s1,F>F")
    yield Case("any", reduction("Any", True), [few, constant(1)], "s0,F>s0 s1,F>F")


def search_cases():
    for op_type in ("ArgMax", "ArgMin"):
        search = getattr(raw, op_type)
        yield Case(op_type, lambda x, a, search=search: search(input=x, dimension=a), [tied("B", 8), constant(1)],
                   "b0,F>b0 s1,F>F")  # fmt: skip
        yield Case(op_type + "_rows", lambda x, a, search=search: search(input=x, dimension=a, output_type=tf.int32),
                   [tied(5, 7), constant(0)], "s0,F>F s1,F>s0")  # fmt: skip
    yield Case("top_3", lambda x, k: tf.nn.top_k(x, k), [tied("B", 8), constant(3)], "b0,F>b0,b0 s1,F>F,F")
    yield Case("top_1", lambda x, k: tf.nn.top_k(x, k), [floats(7), constant(1)], "s0,F>F,F")
    yield Case("top_of_3d", lambda x, k: tf.nn.top_k(x, k), [floats(5, 4, 7), constant(2)],
               "s0,F>s0,s0 s1,F>s1,s1 s2,F>F,F")  # fmt: skip


@pytest.mark.parametrize("ranks", THREE)
def test_sums(ranks):
    check(list(sum_cases()), ranks)


@pytest.mark.parametrize("ranks", TWO)
def test_extrema_and_searches(ranks):
    check(list(extremum_cases()) + list(search_cases()), ranks)
