"""Ops that move elements, on parts."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl.parallel.sharding.rules.all  # noqa: F401
from epl.parallel.sharding.placements import shard
from epl.parallel.sharding.rules.registry import OpInfo, TensorInfo, choices_of
from tests.parallel.sharding.rules.rule_harness import THREE, Case, check
from tests.parallel.sharding.rules.rule_inputs import constant, floats, hidden, imaginary, integers

raw = tf.raw_ops


def moving_cases():
    yield Case("transpose", tf.transpose, [floats("B", 7, 8), constant([2, 0, 1])], "b0,F>b1 s1,F>s2 s2,F>s0 P,F>P")
    yield Case("adjoint", lambda x, order: raw.ConjugateTranspose(x=x, perm=order),
               [imaginary(5, 7, 8), constant([2, 0, 1])], "s0,F>s1 s1,F>s2 s2,F>s0 P,F>P")  # fmt: skip
    yield Case("expand", lambda x, at: raw.ExpandDims(input=x, axis=at), [floats("B", 7), constant(-2)],
               "b0,F>b0 s1,F>s2 P,F>P")  # fmt: skip
    yield Case("squeeze", lambda x: tf.squeeze(x), [floats(1, 7, 1)], "s1>s0 P>P")
    yield Case("squeeze_one", lambda x: tf.squeeze(x, [-1]), [floats("B", 7, 1)], "b0>b0 s1>s1 P>P")
    yield Case("concat", lambda a, b, at: raw.ConcatV2(values=[a, b], axis=at),
               [floats("B", 4, 7), floats("B", 5, 7), constant(1)], "b0,b0,F>b0 s2,s2,F>s2 P,P,F>P")  # fmt: skip
    yield Case("concat_v1", lambda at, a, b: raw.Concat(concat_dim=at, values=[a, b]),
               [constant(0), floats(5, 7), floats(1, 7)], "F,s1,s1>s1 F,P,P>P")  # fmt: skip
    yield Case("split", lambda at, x: raw.Split(axis=at, value=x, num_split=2), [constant(-1), floats("B", 7, 4)],
               "F,b0>b0,b0 F,s1>s1,s1 F,P>P,P")  # fmt: skip
    yield Case("split_v", lambda x, sizes, at: raw.SplitV(value=x, size_splits=sizes, axis=at, num_split=2),
               [floats(5, 7), constant([1, 4]), constant(0)], "s1,F,F>s1,s1 P,F,F>P,P")  # fmt: skip
    yield Case("pack", lambda a, b: tf.stack([a, b], axis=1), [floats("B", 7), floats("B", 7)],
               "b0,b0>b0 s1,s1>s2 P,P>P")  # fmt: skip
    yield Case("pack_scalars", lambda a, b: tf.stack([a, b]), [floats(), floats()], "P,P>P")
    yield Case("unpack", lambda x: tf.unstack(x, axis=1), [floats(5, 3, 7)], "s0>s0,s0,s0 s2>s1,s1,s1 P>P,P,P")
    yield Case("reverse", tf.reverse, [floats("B", 5, 7), constant([-2])], "b0,F>b0 s2,F>s2 P,F>P")
    yield Case("reverse_marked", lambda x, marked: raw.Reverse(tensor=x, dims=marked),
               [floats("B", 5, 7), constant([False, True, False])], "b0,F>b0 s2,F>s2 P,F>P")  # fmt: skip
    yield Case("roll", lambda x, shift, axis: raw.Roll(input=x, shift=shift, axis=axis),
               [floats(5, 7), constant([2]), constant([0])], "s1,F,F>s1 P,F,F>P")  # fmt: skip
    yield Case("reverse_sequence", lambda x, n: raw.ReverseSequence(input=x, seq_lengths=n, seq_dim=1, batch_dim=0),
               [floats(5, 8, 7), integers(5)], "s0,s0>s0 s2,F>s2 P,F>P")  # fmt: skip


def slicing_cases():
    yield Case("slice", tf.slice, [floats("B", 7, 8), constant([0, 2, 0]), constant([-1, 3, 8])],
               "b0,F,F>b0 s2,F,F>s2 P,F,F>P")  # fmt: skip
    yield Case("slice_sizes_hidden", tf.slice, [floats(5, 7), constant([0, 1]), constant([5, 2])],
               "s0,F,F>s0 P,F,F>P")  # fmt: skip

    def strided(**masks):
        return lambda x, b, e, s: raw.StridedSlice(input=x, begin=b, end=e, strides=s, **masks)

    yield Case("strided", strided(begin_mask=5, end_mask=5),
               [floats("B", 7, 8), constant([0, 1, 0]), constant([0, 6, 0]), constant([1, 2, 1])],
               "b0,F,F,F>b0 s2,F,F,F>s2 P,F,F,F>P")  # fmt: skip
    yield Case("shrunk", strided(begin_mask=1, end_mask=1, shrink_axis_mask=2),
               [floats("B", 3, 7), constant([0, 1]), constant([0, 2]), constant([1, 1])],
               "b0,F,F,F>b0 s2,F,F,F>s1 P,F,F,F>P")  # fmt: skip
    yield Case("new_axis", strided(ellipsis_mask=1, new_axis_mask=2, shrink_axis_mask=4),
               [floats(5, 7, 4), constant([0, 0, 3]), constant([0, 0, 4]), constant([1, 1, 1])],
               "s0,F,F,F>s0 s1,F,F,F>s1 P,F,F,F>P")  # fmt: skip
    yield Case("whole_by_end", strided(), [floats(5, 7), constant([0, 0]), constant([5, 9]), constant([1, 1])],
               "s0,F,F,F>s0 s1,F,F,F>s1 P,F,F,F>P")  # fmt: skip
    yield Case("turned", strided(begin_mask=3, end_mask=3),
               [floats(5, 7), constant([0, 0]), constant([0, 0]), constant([-1, 1])],
               "s1,F,F,F>s1 P,F,F,F>P")  # fmt: skip


def repeating_cases():
    yield Case("pad", tf.pad, [floats("B", 4, 7), constant([[0, 0], [1, 2], [0, 0]])], "b0,F>b0 s2,F>s2 P,F>P")
    yield Case("pad_v2", lambda x, w, v: raw.PadV2(input=x, paddings=w, constant_values=v),
               [floats(5, 7), constant([[1, 0], [0, 0]]), constant(2.0)], "s1,F,F>s1")  # fmt: skip
    yield Case("mirror", lambda x, w: tf.pad(x, w, "REFLECT"), [floats(5, 7), constant([[1, 0], [0, 0]])],
               "s1,F>s1 P,F>P")  # fmt: skip
    yield Case("tile", tf.tile, [floats("B", 7, 1, 4), constant([1, 1, 8, 2])],
               "b0,F>b0 s1,F>s1 F,F>s2 P,F>P", granularities={})  # fmt: skip
    yield Case("broadcast", tf.broadcast_to, [floats(7, 1), constant([5, 7, 8])],
               "F,F>s0 s0,F>s1 F,F>s2 P,F>P")  # fmt: skip
    yield Case("fill", tf.fill, [constant([5, 7]), floats()], "F,F>s0 F,F>s1")
    # The number of rows is not known when the graph is built.
    yield Case("fill_hidden", tf.fill, [hidden([6]), floats()], "F,F>b0")


def shape_cases():
    yield Case("shape", lambda x: raw.Shape(input=x), [floats("B", 7)],
               "b0>F s1>F P>F")  # fmt: skip
    yield Case("size", lambda x: raw.Size(input=x, out_type=tf.int64), [floats("B", 7)], "b0>F s1>F P>F")
    yield Case("rank", lambda x: raw.Rank(input=x), [floats(5, 7)], "s0>F s1>F P>F")


def matrix_cases():
    spread = np.eye(3, dtype=np.float32) * 4
    definite = floats(5, 3, 3)._replace(
        make=lambda random, sizes: spread + np.matmul(*([random.uniform(0, 1, sizes)] * 2)).astype(np.float32) * 0
    )
    yield Case("fourier", tf.signal.fft, [imaginary(5, 7, 8)], "s0>s0 s1>s1")
    yield Case("fourier_back", tf.signal.ifft, [imaginary(5, 8)], "s0>s0")
    yield Case("band", tf.matrix_band_part, [floats(5, 3, 3), constant(1), constant(0)], "s0,F,F>s0 P,F,F>P")
    yield Case("diag", lambda x: raw.MatrixDiag(diagonal=x), [floats(5, 3)], "s0>s0 P>P")
    yield Case("diag_part", lambda x: raw.MatrixDiagPart(input=x), [floats(5, 3, 3)], "s0>s0 P>P")
    yield Case("set_diag", lambda x, d: raw.MatrixSetDiag(input=x, diagonal=d), [floats(5, 3, 3), floats(5, 3)],
               "s0,s0>s0")  # fmt: skip
    yield Case("inverse", tf.matrix_inverse, [definite], "s0>s0")
    yield Case("cholesky", tf.cholesky, [definite], "s0>s0")
    yield Case("determinant", tf.matrix_determinant, [definite], "s0>s0")
    yield Case("solve", tf.matrix_solve, [definite, floats(5, 3, 1)], "s0,s0>s0")
    yield Case("triangular", lambda a, b: tf.matrix_triangular_solve(a, b), [definite, floats(5, 3, 1)], "s0,s0>s0")


def image_cases():
    image = floats(5, 4, 4, 7)
    resized = (("resize", raw.ResizeBilinear), ("nearest", raw.ResizeNearestNeighbor), ("bicubic", raw.ResizeBicubic),
               ("area", raw.ResizeArea))  # fmt: skip
    for name, op in resized:
        yield Case(name, lambda x, size, op=op: op(images=x, size=size), [image, constant([3, 5])], "s0,F>s0 s3,F>s3")
    window = {"ksizes": [1, 2, 2, 1], "strides": [1, 1, 2, 1], "rates": [1, 2, 1, 1], "padding": "SAME"}
    yield Case("patches", lambda x: raw.ExtractImagePatches(images=x, **window), [image], "s0>s0 P>P")
    yield Case("to_depth", lambda x: tf.space_to_depth(x, 2), [image], "s0>s0 P>P")
    yield Case("from_depth", lambda x: tf.depth_to_space(x, 2), [floats(5, 1, 1, 8)], "s0>s0 P>P")


@pytest.mark.parametrize("ranks", THREE)
def test_moving_and_slicing(ranks):
    check(list(moving_cases()) + list(slicing_cases()), ranks)


@pytest.mark.parametrize("ranks", THREE)
def test_repeating_shapes_matrices_images(ranks):
    cases = list(repeating_cases()) + list(shape_cases()) + list(matrix_cases()) + list(image_cases())
    check(cases, ranks)


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("op_type", ["Shape", "Rank"])
def test_a_size_that_is_known_is_not_added_up(op_type, size):
    rows = TensorInfo((size, 4), tf.float32, None, 0)
    result = TensorInfo((2,) if op_type == "Shape" else (), tf.int32, None, None)
    info = OpInfo(op_type, "shape", {}, (rows,), (result,), 2, {})
    (choice,) = [one for one in choices_of(info) if one.inputs[0] == shard(0, None)]
    assert [one.collective for one in choice.inside] == (["all-reduce"] if op_type == "Shape" and size is None else [])
