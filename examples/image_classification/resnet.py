"""ResNet (He et al., "Deep Residual Learning for Image Recognition"), with the stride in the 3 x 3 convolution (v1.5).

Knows nothing of EPL. `features` and `logits` are apart, so that each can have an annotation of its own.
"""

from typing import NamedTuple, Tuple

import tensorflow.compat.v1 as tf


class Block(NamedTuple):
    """What the four groups of a network are made of.

    Attributes:
      bottleneck: units of 1 x 1, 3 x 3 and 1 x 1 convolutions; else of two 3 x 3 ones.
      units: how many in each group.
    """

    bottleneck: bool
    units: Tuple[int, int, int, int]


DEPTHS = {
    18: Block(False, (2, 2, 2, 2)),
    34: Block(False, (3, 4, 6, 3)),
    50: Block(True, (3, 4, 6, 3)),
    101: Block(True, (3, 4, 23, 3)),
    152: Block(True, (3, 8, 36, 3)),
}
_WIDENING = 4  # of a bottleneck
_BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


def features(images: tf.Tensor, depth: int, width: int, training: bool) -> tf.Tensor:
    """The features of images.

    Args:
      images: float32 or float64 [batch, height, width, 3].
      depth: one of DEPTHS.
      width: channels of the first group; 64 as published.
      training: whether batch statistics are used, and collected in UPDATE_OPS.

    Returns:
      [batch, channels], of the type of the images.

    Raises:
      ValueError: there is no network of that depth.
    """
    if depth not in DEPTHS:
        raise ValueError("There is no ResNet-{}; depths are {}.".format(depth, ", ".join(map(str, sorted(DEPTHS)))))
    block = DEPTHS[depth]
    with tf.variable_scope("resnet"):
        net = _convolution(images, width, 7, 2, "stem", training)
        net = tf.layers.max_pooling2d(net, 3, 2, padding="same")
        for group, units in enumerate(block.units):
            for number in range(units):
                stride = 2 if group and not number else 1
                with tf.variable_scope(f"group_{group + 1}/unit_{number + 1}"):
                    net = _unit(net, block.bottleneck, width << group, stride, training)
        return tf.reduce_mean(net, [1, 2])


def logits(inputs: tf.Tensor, classes: int) -> tf.Tensor:
    """Scores of the classes, [batch, classes]."""
    return tf.layers.dense(inputs, classes, kernel_initializer=tf.random_normal_initializer(stddev=0.01), name="head")


def loss(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """The mean cross entropy."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))


def _unit(inputs: tf.Tensor, bottleneck: bool, channels: int, stride: int, training: bool) -> tf.Tensor:
    """One residual unit: what it adds begins as nothing."""
    widened = channels * _WIDENING if bottleneck else channels
    shortcut = inputs
    if stride > 1 or inputs.shape[-1] != widened:
        shortcut = _convolution(inputs, widened, 1, stride, "shortcut", training, activate=False)
    if bottleneck:
        net = _convolution(inputs, channels, 1, 1, "reduce", training)
        net = _convolution(net, channels, 3, stride, "middle", training)
        net = _convolution(net, widened, 1, 1, "expand", training, activate=False, last=True)
    else:
        net = _convolution(inputs, channels, 3, stride, "first", training)
        net = _convolution(net, channels, 3, 1, "second", training, activate=False, last=True)
    return tf.nn.relu(net + shortcut)


def _convolution(
    inputs: tf.Tensor,
    channels: int,
    kernel: int,
    stride: int,
    name: str,
    training: bool,
    activate: bool = True,
    last: bool = False,
) -> tf.Tensor:
    """Convolution and batch norm; padding does not depend on the size of the image."""
    with tf.variable_scope(name):
        if stride > 1:
            before = (kernel - 1) // 2
            after = kernel - 1 - before
            inputs = tf.pad(inputs, [[0, 0], [before, after], [before, after], [0, 0]])
        net = tf.layers.conv2d(
            inputs,
            channels,
            kernel,
            stride,
            padding="valid" if stride > 1 else "same",
            use_bias=False,
            kernel_initializer=tf.variance_scaling_initializer(2.0, "fan_out"),
            name="convolution",
        )
        net = tf.layers.batch_normalization(
            net,
            training=training,
            gamma_initializer=tf.zeros_initializer() if last else tf.ones_initializer(),
            fused=net.dtype != tf.float64,  # which has no fused kernel
            name="batch_norm",
            **_BATCH_NORM,
        )
        return tf.nn.relu(net) if activate else net
