"""Convolutions, pooling and batch norm on parts."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.rules.registry import OpInfo, TensorInfo, choices_of
from tests.parallel.sharding.rules.rule_harness import THREE, Case, check, short
from tests.parallel.sharding.rules.rule_inputs import constant, floats, integers, positive

raw = tf.raw_ops
SAME = {"strides": [1, 2, 2, 1], "padding": "SAME"}


def convolution_cases():
    yield Case("conv", lambda x, k: raw.Conv2D(input=x, filter=k, **SAME), [floats("B", 5, 5, 7), floats(3, 3, 7, 8)],
               "b0,F>b0 s3,s2>P F,s3>s3")  # fmt: skip
    yield Case("conv_3d", lambda x, k: raw.Conv3D(input=x, filter=k, strides=[1] * 5, padding="VALID"),
               [floats(4, 5, 5, 5, 5), floats(1, 2, 2, 5, 7)], "s0,F>s0 s4,s3>P F,s4>s4")  # fmt: skip
    transposed = raw.Conv2DBackpropInput
    yield Case("transposed", lambda s, k, x: transposed(input_sizes=s, filter=k, out_backprop=x, **SAME),
               [constant([4, 6, 6, 7]), floats(3, 3, 7, 8), floats(4, 3, 3, 8)],
               "F,F,s0>s0 F,s2,F>s3 F,s3,s3>P")  # fmt: skip
    transposed_3d = raw.Conv3DBackpropInputV2
    yield Case("transposed_3d", lambda s, k, x: transposed_3d(input_sizes=s, filter=k, out_backprop=x, padding="SAME",
                                                              strides=[1, 2, 2, 2, 1]),
               [constant([4, 3, 4, 4, 7]), floats(1, 2, 2, 7, 8), floats(4, 2, 2, 2, 8)],
               "F,F,s0>s0 F,s3,F>s4 F,s4,s4>P")  # fmt: skip
    yield Case("depthwise", lambda x, k: raw.DepthwiseConv2dNative(input=x, filter=k, strides=[1] * 4, padding="SAME"),
               [floats("B", 5, 5, 7), floats(2, 2, 7, 2)], "b0,F>b0 s3,s2>s3")  # fmt: skip


def pooling_cases():
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    yield Case("max_pool", lambda x: raw.MaxPool(input=x, **window), [floats("B", 5, 5, 7)], "b0>b0 s3>s3")
    yield Case("average", lambda x: raw.AvgPool(value=x, **window), [floats(4, 5, 5, 7)], "s0>s0 s3>s3")
    window_3d = {"ksize": [1, 2, 2, 1, 1], "strides": [1, 2, 1, 1, 1], "padding": "SAME"}
    yield Case("max_pool_3d", lambda x: raw.MaxPool3D(input=x, **window_3d), [floats("B", 5, 5, 5, 7)], "b0>b0 s4>s4")
    yield Case("average_3d", lambda x: raw.AvgPool3D(input=x, **window_3d), [floats(4, 5, 5, 5, 7)], "s0>s0 s4>s4")
    yield Case("max_pool_v2", lambda x, k, s: raw.MaxPoolV2(input=x, ksize=k, strides=s, padding="VALID"),
               [floats(4, 4, 4, 7), constant([1, 2, 2, 1]), constant([1, 2, 2, 1])], "s0,F,F>s0 s3,F,F>s3")  # fmt: skip
    yield Case("local_response", tf.nn.lrn, [floats(4, 5, 5, 7)], "s0>s0 s1>s1 s2>s2", tolerance=1e-4)


def norm_cases():
    def norm(op_type, training):
        def build(*inputs):
            names = ("x", "scale", "offset", "mean", "variance")
            return getattr(raw, op_type)(is_training=training, **dict(zip(names, inputs)))[0].op

        return build

    inputs = [floats("B", 5, 5, 8), positive(8), floats(8)]
    batch = {"undifferentiated": [1, 2, 3, 4], "batch": [0, None, None, None, None], "tolerance": 1e-4}
    of_channels = "s3,s0,s0,{}>s3,s0,s0,s0,s0"
    yield Case("training", norm("FusedBatchNorm", True), inputs + [constant([]), constant([])],
               of_channels.format("F,F"), **batch)  # fmt: skip
    yield Case("inference", norm("FusedBatchNormV2", False), inputs + [floats(8), positive(8)],
               "b0,F,F,F,F>b0,F,F,F,F s1,F,F,F,F>s1,F,F,F,F s2,F,F,F,F>s2,F,F,F,F " + of_channels.format("s0,s0"),
               unspecified=[1, 2, 3, 4], **batch)  # fmt: skip
    v3 = dict(batch, undifferentiated=[1, 2, 3, 4, 5], batch=[0] + [None] * 5)
    yield Case("training_v3", norm("FusedBatchNormV3", True), inputs + [constant([]), constant([])],
               of_channels.format("F,F") + ",F", **v3)  # fmt: skip


@pytest.mark.parametrize("ranks", THREE)
def test_images(ranks):
    check(list(convolution_cases()) + list(pooling_cases()) + list(norm_cases()), ranks)


BY_ONE = {"strides": [1] * 4, "padding": b"SAME"}


def info(op_type, inputs, output, **attrs):
    """An op that a CPU has no kernel for."""
    tensors = tuple(TensorInfo(shape, tf.float32) for shape in inputs)
    return OpInfo(op_type, "op", attrs, tensors, (TensorInfo(output, tf.float32),), 2, {})


@pytest.mark.parametrize(
    "op, expected",
    [
        (
            info("Conv2D", [(4, 6, 1, 2), (3, 3, 6, 8)], (4, 8, 1, 2), data_format=b"NCHW", **BY_ONE),
            "s0,F>s0 s1,s2>P F,s3>s1 s3,F>s3",
        ),
        (
            info(
                "MaxPool", [(4, 6, 4, 4)], (4, 6, 2, 2), data_format=b"NCHW", ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]
            ),
            "s0>s0 s1>s1",
        ),
        (info("AvgPool", [(4, 5, 5, 6)], (4, 5, 5, 3), data_format=b"NHWC", ksize=[1, 1, 1, 2], **BY_ONE), "s0>s0"),
    ],
)
def test_channels_first(op, expected):
    assert " ".join(map(short, choices_of(op))) == expected


# ---- Images cut along their height or width


def moving(stride, padding="SAME", **attrs):
    return {"strides": [1, stride, stride, 1], "padding": padding, **attrs}


def height_cases():
    """Images of 48 rows, which each of 4 ranks can halve twice, and of 7 columns, which none can divide."""
    for window, stride in ((1, 1), (2, 1), (3, 1), (3, 2), (7, 2), (2, 4), (5, 4), (11, 4)):
        attrs = moving(stride)
        yield Case(f"conv_{window}_{stride}", lambda x, k, attrs=attrs: raw.Conv2D(input=x, filter=k, **attrs),
                   [floats("B", 48, 7, 4, dtype=float), floats(window, 3, 4, 4, dtype=float)],
                   "b0,F>b0 s3,s2>P F,s3>s3 s1,F>s1", tolerance=1e-12)  # fmt: skip
    for window, stride in ((2, 2), (3, 2), (3, 1), (1, 2), (4, 1)):
        attrs = dict(moving(stride), ksize=[1, window, window, 1])
        yield Case(f"max_{window}_{stride}", lambda x, attrs=attrs: raw.MaxPool(input=x, **attrs),
                   [floats("B", 48, 7, 4)], "b0>b0 s3>s3 s1>s1")  # fmt: skip
    pool = dict(moving(2), ksize=[1, 2, 3, 1])
    yield Case("average", lambda x: raw.AvgPool(value=x, **pool), [floats(4, 16, 7, 4)], "s0>s0 s3>s3 s1>s1")
    wide = dict(moving(2), ksize=[1, 3, 3, 1])
    yield Case("wide_average", lambda x: raw.AvgPool(value=x, **wide), [floats(4, 16, 7, 4)], "s0>s0 s3>s3")
    depthwise = moving(1)
    yield Case("depthwise", lambda x, k: raw.DepthwiseConv2dNative(input=x, filter=k, **depthwise),
               [floats("B", 16, 7, 4), floats(3, 2, 4, 2)], "b0,F>b0 s1,F>s1 s3,s2>s3")  # fmt: skip
    yield Case("depthwise_one", lambda x, k: raw.DepthwiseConv2dNative(input=x, filter=k, **depthwise),
               [floats("B", 16, 7, 4), floats(3, 2, 4, 1)], "b0,F>b0 s1,F>s1 s3,s2>s3")  # fmt: skip
    yield Case("max_of_integers", lambda x: raw.MaxPool(input=x, **dict(wide, ksize=[1, 3, 3, 1])),
               [integers(4, 16, 7, 4)], "s0>s0 s3>s3")  # fmt: skip
    yield Case("both", lambda x, k: raw.Conv2D(input=x, filter=k, **moving(1)),
               [floats(4, 8, 16, 4), floats(3, 4, 4, 4)],
               "s0,F>s0 s3,s2>P F,s3>s3 s1,F>s1 s2,F>s2")  # fmt: skip
    yield Case("valid", lambda x, k: raw.Conv2D(input=x, filter=k, **moving(2, "VALID")),
               [floats(4, 16, 7, 4), floats(2, 3, 4, 4)], "s0,F>s0 s3,s2>P F,s3>s3 s1,F>s1")  # fmt: skip
    yield Case("valid_and_wide", lambda x, k: raw.Conv2D(input=x, filter=k, **moving(1, "VALID")),
               [floats(4, 16, 7, 4), floats(2, 3, 4, 4)], "s0,F>s0 s3,s2>P F,s3>s3")  # fmt: skip
    yield Case("longer_than_a_part", lambda x, k: raw.Conv2D(input=x, filter=k, **moving(1)),
               [floats(4, 4, 7, 4), floats(11, 3, 4, 4)], "s0,F>s0 s3,s2>P F,s3>s3")  # fmt: skip
    yield Case("conv_3d", lambda x, k: raw.Conv3D(input=x, filter=k, strides=[1] * 5, padding="SAME"),
               [floats(4, 8, 3, 5, 4), floats(3, 2, 3, 4, 4)], "s0,F>s0 s4,s3>P F,s4>s4 s1,F>s1")  # fmt: skip


@pytest.mark.parametrize("ranks", [4, pytest.param(2, marks=pytest.mark.long)])
def test_height(ranks):
    check(list(height_cases()), ranks)


def test_a_dilated_window_reaches_further():
    dilated = dict(BY_ONE, dilations=[1, 2, 1, 1])  # CPUs have no gradient of it
    op = info("Conv2D", [(1, 8, 7, 2), (3, 3, 2, 2)], (1, 8, 7, 2), data_format=b"NHWC", **dilated)
    (choice,) = [choice for choice in choices_of(op) if choice.outputs[0].dim == 1]
    assert choice.moved(2, True) == 2 * 2 * 7 * 2 * 4
    assert choice.moved(2, False) == 2 * 7 * 2 * 4


def test_the_halos_of_large_images_are_few_bytes():
    halves = info("Conv2D", [(1, 256, 128, 16), (3, 3, 16, 8)], (1, 256, 128, 8), data_format=b"NHWC", **BY_ONE)
    moved = {str(choice.outputs[0]): choice.moved(2, True) for choice in choices_of(halves)}
    # One row to the other rank, and the gradient of one back.
    assert moved["shard(1: 128+128)"] == 2 * 128 * 16 * 4
    assert moved["shard(2: 64+64)"] == 2 * moved["shard(1: 128+128)"]
