"""Batch norms with the fused kernel by the statistics of all rows: the ops that replace it, and what is refused."""

from typing import Any, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.in_process import error_text

only_tf_2 = pytest.mark.tensorflow(
    "2", reason="kernels of TensorFlow 1.15 on CPUs know channels last and float32 alone"
)


def values(*shape: int) -> tf.Tensor:
    return tf.constant(np.sin(np.arange(np.prod(shape)) * 1.3).reshape(shape) * 2 + 1, tf.float32)


def results(x: tf.Tensor, made: List[tf.Tensor], weights: List[tf.Tensor]) -> List[np.ndarray]:
    """y, mean, variance, and the gradients of a loss of all three."""
    y, mean, variance = made
    y = tf.cast(y, tf.float32)
    loss = tf.reduce_sum(tf.sin(y) * values(*y.shape.as_list())) + tf.reduce_sum(mean * 3 + variance)
    with tf.Session() as sess:
        found: List[np.ndarray] = sess.run([y, mean, variance, *tf.gradients(loss, [x, *weights])])
    return found


@pytest.mark.parametrize(
    "data_format,shape,dtype,tolerance",
    [
        ("NHWC", (4, 3, 2, 5), tf.float32, 2e-6),
        ("NHWC", (1, 1, 1, 5), tf.float32, 2e-6),
        pytest.param("NCHW", (4, 5, 3, 2), tf.float32, 2e-6, marks=only_tf_2),
        pytest.param("NDHWC", (2, 3, 2, 2, 5), tf.float32, 2e-6, marks=only_tf_2),
        pytest.param("NHWC", (4, 3, 2, 5), tf.float16, 3e-3, marks=only_tf_2),
    ],
)
def test_one_device_computes_what_the_fused_kernel_computes(
    init: Any, data_format: str, shape: Any, dtype: Any, tolerance: float
) -> None:
    init(1, batch_norm__sync=True)
    x, scale, offset = tf.cast(values(*shape), dtype), values(5), values(5) * 0.5
    plain = tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=offset, mean=[], variance=[], epsilon=0.01, data_format=data_format
    )
    ours = tf.nn.fused_batch_norm(x, scale, offset, epsilon=0.01, data_format=data_format, name="ours")
    assert any(op.type == "Identity" and op.name == "ours/of_all_rows" for op in x.graph.get_operations())
    for seen, expected in zip(results(x, ours, [scale, offset]), results(x, plain[:3], [scale, offset])):
        np.testing.assert_allclose(seen, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@only_tf_2
def test_moving_averages_of_the_op(init: Any) -> None:
    init(1, batch_norm__sync=True)
    x, scale, offset = values(4, 3, 2, 5), values(5), values(5)
    given = {"mean": values(5) * 2, "variance": values(5) * 3, "exponential_avg_factor": 0.25}
    plain = tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, epsilon=0.001, **given)
    ours = tf.nn.fused_batch_norm(x, scale, offset, **given)
    with tf.Session() as sess:
        for seen, expected in zip(*sess.run([ours, plain[:3]])):
            np.testing.assert_allclose(seen, expected, rtol=2e-6, atol=2e-6)


def test_statistics_that_are_given_stay(init: Any) -> None:
    init(1, batch_norm__sync=True)
    made = tf.nn.fused_batch_norm(values(4, 3, 2, 5), values(5), values(5), values(5), values(5), is_training=False)
    assert made[0].op.type == "FusedBatchNormV3"
    assert not any("of_all_rows" in op.name for op in tf.get_default_graph().get_operations())


# ---- Refused


def train(make: Any) -> str:
    """The error of a training step over images, with the batch norm that `make` adds."""
    x = tf.placeholder(tf.float32, [None, 2, 2, 3])
    weight = tf.get_variable("weight", [3])
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(make(x * weight))))
    with tf.Session() as sess:
        return error_text(lambda: sess.run(tf.global_variables_initializer()))


def raw(x: tf.Tensor) -> tf.Tensor:
    ones = tf.ones([3])
    return tf.raw_ops.FusedBatchNormV3(x=x, scale=ones, offset=ones, mean=[], variance=[])[0]


def in_loop(x: tf.Tensor) -> tf.Tensor:
    def body(step: tf.Tensor, value: tf.Tensor) -> Any:
        return step + 1, tf.nn.fused_batch_norm(value, tf.ones([3]), tf.ones([3]))[0]

    return tf.while_loop(lambda step, value: step < 2, body, [0, x])[1]


@pytest.mark.parametrize("make", [raw, in_loop], ids=lambda one: one.__name__)
def test_a_fused_op_that_the_layer_did_not_make_is_refused(init: Any, make: Any) -> None:
    init(2, batch_norm__sync=True)
    text = train(make)
    assert "not available yet: batch_norm.sync with a fused batch norm in a loop or function" in text
    assert "FusedBatchNorm" in text


@pytest.mark.parametrize("fused", [False, True], ids=["moments", "fused"])
def test_gradients_of_gradients_are_refused(init: Any, fused: bool) -> None:
    init(2, batch_norm__sync=True)
    x = tf.placeholder(tf.float32, [None, 2, 2, 3])
    y = tf.layers.batch_normalization(x, training=True, fused=fused)
    (gradient,) = tf.gradients(tf.reduce_sum(tf.sin(y)), x)
    assert "batch_norm.sync with gradients of gradients" in error_text(lambda: tf.gradients(gradient, x))
