"""ResNet-50 with very many classes: the convolutions replicated, and with --split the head in `epl.split`.

epl-plan --machine 4x8*v100-32,eth-50 --rows 1024 benchmarks/papers/many_classes/model.py --classes 100000 --split
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

import epl

CONFIG = {"cluster.colocate_split_and_replicate": True}
SIZE = 224  # of a side of a picture


def build(classes: int, split: bool) -> tf.Tensor:
    """The loss of ResNet-50 (He et al. 2015, the stride in the 3 x 3 convolution) on placeholders."""
    pictures = tf.placeholder(tf.float32, [None, SIZE, SIZE, 3], "pictures")
    labels = tf.placeholder(tf.int32, [None], "labels")
    with epl.replicate(1):
        features = _convolutions(pictures)
        if not split:
            return _classified(features, labels, classes)
    with epl.split():
        return _classified(features, labels, classes)


def _convolutions(x: tf.Tensor) -> tf.Tensor:
    x = tf.nn.max_pool(tf.nn.relu(_convolution(x, 64, 7, 2)), 3, 2, "SAME")
    for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if number and not block else 1
            shortcut = x if block else _convolution(x, 4 * width, 1, stride)
            y = tf.nn.relu(_convolution(x, width, 1))
            y = tf.nn.relu(_convolution(y, width, 3, stride))
            x = tf.nn.relu(_convolution(y, 4 * width, 1) + shortcut)
    return tf.reduce_mean(x, [1, 2])


def _convolution(x: tf.Tensor, width: int, kernel: int, stride: int = 1) -> tf.Tensor:
    x = tf.layers.conv2d(x, width, kernel, stride, "same", use_bias=False)
    return tf.layers.batch_normalization(x, training=True)


def _classified(features: tf.Tensor, labels: tf.Tensor, classes: int) -> tf.Tensor:
    logits = tf.layers.dense(features, classes)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def main() -> None:
    """Trains on random pictures."""
    parser = argparse.ArgumentParser(description="ResNet-50 with many classes")
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--split", action="store_true", help="the head in epl.split")
    options = parser.parse_args()
    epl.init(epl.Config(CONFIG))
    loss = build(options.classes, options.split)
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            pictures, labels = np.random.rand(8, SIZE, SIZE, 3), np.random.randint(0, options.classes, 8)
            print(session.run([loss, train_op], {"pictures:0": pictures, "labels:0": labels})[0])


if __name__ == "__main__":
    main()
