"""Products on parts."""

import itertools

import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.sharding.rules.rule_harness import TWO, Case, check
from tests.parallel.sharding.rules.rule_inputs import floats, tied

MATMUL = "s0,F>s0 s1,s0>P F,s1>s1"


def matmul_cases():
    yield Case("plain", tf.matmul, [floats(7, 8), floats(8, 9)], MATMUL)
    yield Case("batch_rows", tf.matmul, [floats("B", 8), floats(8, 9)], "b0,F>b0 s1,s0>P F,s1>s1")
    yield Case(
        "batch_summed",
        lambda a, b: tf.matmul(a, b, transpose_a=True),
        [floats("B", 8), floats("B", 9)],
        "b0,b0>P s1,F>s0 F,s1>s1",
    )
    for ta, tb in itertools.product((False, True), repeat=2):
        left, right = (floats(8, 7) if ta else floats(7, 8)), (floats(9, 8) if tb else floats(8, 9))
        expected = f"s{ta + 0},F>s0 s{1 - ta},s{tb + 0}>P F,s{1 - tb}>s1"
        yield Case(
            f"transposed_{ta:d}{tb:d}",
            lambda a, b, ta=ta, tb=tb: tf.matmul(a, b, transpose_a=ta, transpose_b=tb),
            [left, right],
            expected,
        )
    sparse = tf.raw_ops.SparseMatMul
    yield Case("sparse", lambda a, b: sparse(a=a, b=b, a_is_sparse=True), [tied("B", 8), floats(8, 9)],
               "b0,F>b0 s1,s0>P F,s1>s1")  # fmt: skip
    yield Case("sparse_transposed", lambda a, b: sparse(a=a, b=b, transpose_a=True, transpose_b=True, b_is_sparse=True),
               [floats(8, 7), tied(9, 8)], "s1,F>s0 s0,s1>P F,s0>s1")  # fmt: skip


def batch_matmul_cases():
    for adj_x, adj_y in itertools.product((False, True), repeat=2):
        left = floats(5, 8, 7) if adj_x else floats(5, 7, 8)
        right = floats(5, 9, 8) if adj_y else floats(5, 8, 9)
        expected = f"s0,s0>s0 s{1 + adj_x},F>s1 s{2 - adj_x},s{1 + adj_y}>P F,s{2 - adj_y}>s2"
        yield Case(
            f"adjoint_{adj_x:d}{adj_y:d}",
            lambda a, b, x=adj_x, y=adj_y: tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=x, adj_y=y),
            [left, right],
            expected,
        )
    v2 = tf.raw_ops.BatchMatMulV2
    yield Case(
        "broadcast",
        lambda a, b: v2(x=a, y=b),
        [floats(6, 1, 4, 5), floats(7, 5, 8)],
        "s0,F>s0 F,s0>s1 s2,F>s2 s3,s1>P F,s2>s3",
    )
    yield Case(
        "v1", lambda a, b: tf.raw_ops.BatchMatMul(x=a, y=b), [floats("B", 4, 5), floats("B", 5, 4)],
        "b0,b0>b0 s1,F>s1 s2,s1>P F,s2>s2",
    )  # fmt: skip


def einsum_cases():
    def einsum(equation):
        return lambda *inputs: tf.raw_ops.Einsum(inputs=list(inputs), equation=equation)

    yield Case("experts", einsum("ebm,emh->ebh"), [floats(5, 7, 8), floats(5, 8, 9)],
               "s0,s0>s0 s1,F>s1 s2,s1>P F,s2>s2")  # fmt: skip
    yield Case("ellipsis", einsum("...ij,jk->...ki"), [floats("B", 5, 4, 7), floats(7, 8)],
               "b0,F>b0 s1,F>s1 s2,F>s3 s3,s0>P F,s1>s2")  # fmt: skip
    yield Case("row_sums", einsum("ij->i"), [floats("B", 7)], "b0>b0 s1>P")


@pytest.mark.parametrize("ranks", TWO)
def test_products(ranks):
    check(list(matmul_cases()) + list(batch_matmul_cases()) + list(einsum_cases()), ranks)
