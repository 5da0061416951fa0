"""Convolutions, pooling and batch norm on parts."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.rules.registry import OpInfo, TensorInfo, choices_of
from tests.parallel.sharding.rules.rule_harness import THREE, Case, check, short
from tests.parallel.sharding.rules.rule_inputs import constant, floats, positive

raw = tf.raw_ops
SAME = {"strides": [1, 2, 2, 1], "padding": "SAME"}


def convolution_cases():
    yield Case("conv", lambda x, k: raw.Conv2D(input=x, filter=k, **SAME), [floats("B", 5, 5, 7), floats(3, 3, 7, 8)],
               "b0,F>b0 s3,s2>P F,s3>s3")  # fmt: skip
    yield Case("conv_3d", lambda x, k: raw.Conv3D(input=x, filter=k, strides=[1] * 5, padding="VALID"),
               [floats(4, 2, 2, 2, 5), floats(1, 2, 2, 5, 7)], "s0,F>s0 s4,s3>P F,s4>s4")  # fmt: skip
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
               [floats("B", 3, 3, 7), floats(2, 2, 7, 2)], "b0,F>b0 s3,s2>s3")  # fmt: skip


def pooling_cases():
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    yield Case("max_pool", lambda x: raw.MaxPool(input=x, **window), [floats("B", 5, 5, 7)], "b0>b0 s3>s3")
    yield Case("average", lambda x: raw.AvgPool(value=x, **window), [floats(4, 4, 4, 7)], "s0>s0 s3>s3")
    window_3d = {"ksize": [1, 2, 2, 1, 1], "strides": [1, 2, 1, 1, 1], "padding": "SAME"}
    yield Case("max_pool_3d", lambda x: raw.MaxPool3D(input=x, **window_3d), [floats("B", 3, 3, 2, 7)], "b0>b0 s4>s4")
    yield Case("average_3d", lambda x: raw.AvgPool3D(input=x, **window_3d), [floats(4, 3, 3, 2, 7)], "s0>s0 s4>s4")
    yield Case("max_pool_v2", lambda x, k, s: raw.MaxPoolV2(input=x, ksize=k, strides=s, padding="VALID"),
               [floats(4, 4, 4, 7), constant([1, 2, 2, 1]), constant([1, 2, 2, 1])], "s0,F,F>s0 s3,F,F>s3")  # fmt: skip
    yield Case("local_response", tf.nn.lrn, [floats(4, 3, 3, 7)], "s0>s0", tolerance=1e-4)


def norm_cases():
    def norm(op_type, training):
        def build(*inputs):
            names = ("x", "scale", "offset", "mean", "variance")
            return getattr(raw, op_type)(is_training=training, **dict(zip(names, inputs)))[0].op

        return build

    inputs = [floats("B", 2, 3, 8), positive(8), floats(8)]
    batch = {"undifferentiated": [1, 2, 3, 4], "batch": [0, None, None, None, None], "tolerance": 1e-4}
    of_channels = "s3,s0,s0,{}>s3,s0,s0,s0,s0"
    yield Case("training", norm("FusedBatchNorm", True), inputs + [constant([]), constant([])],
               of_channels.format("F,F"), **batch)  # fmt: skip
    yield Case("inference", norm("FusedBatchNormV2", False), inputs + [floats(8), positive(8)],
               of_channels.format("s0,s0") + " b0,F,F,F,F>b0,F,F,F,F",
               unspecified=[1, 2, 3, 4], **batch)  # fmt: skip
    v3 = dict(batch, undifferentiated=[1, 2, 3, 4, 5], batch=[0] + [None] * 5)
    yield Case("training_v3", norm("FusedBatchNormV3", True), inputs + [constant([]), constant([])],
               of_channels.format("F,F") + ",F", **v3)  # fmt: skip


@pytest.mark.parametrize("ranks", THREE)
def test_images(ranks):
    check(list(convolution_cases()) + list(pooling_cases()) + list(norm_cases()), ranks)


def info(op_type, inputs, output, **attrs):
    """An op that a CPU has no kernel for."""
    tensors = tuple(TensorInfo(shape, tf.float32) for shape in inputs)
    return OpInfo(op_type, "op", attrs, tensors, (TensorInfo(output, tf.float32),), 2, {})


@pytest.mark.parametrize(
    "op, expected",
    [
        (info("Conv2D", [(4, 6, 1, 1), (1, 1, 6, 8)], (4, 8, 1, 1), data_format=b"NCHW"), "s0,F>s0 s1,s2>P F,s3>s1"),
        (info("MaxPool", [(4, 6, 4, 4)], (4, 6, 2, 2), data_format=b"NCHW", ksize=[1, 1, 2, 2]), "s0>s0 s1>s1"),
        (info("AvgPool", [(4, 4, 4, 6)], (4, 4, 4, 3), data_format=b"NHWC", ksize=[1, 1, 1, 2]), "s0>s0"),
    ],
)
def test_channels_first(op, expected):
    assert " ".join(map(short, choices_of(op))) == expected
