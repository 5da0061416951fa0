"""AlexNet on two devices, with the dense layers data parallel, on one device, or split.

epl-plan --machine benchmarks/papers/alexnet/machine.json --rows 32 benchmarks/papers/alexnet/model.py --dense one
"""

import argparse
from typing import Any, Dict

import numpy as np
import tensorflow.compat.v1 as tf

import epl

SIZE, CLASSES = 227, 1000  # of a side of a picture; of pictures
DENSE = ("parallel", "one", "split")


def build(dense: str) -> tf.Tensor:
    """The loss of AlexNet (Krizhevsky et al. 2012, in one column) on placeholders."""
    x = tf.placeholder(tf.float32, [None, SIZE, SIZE, 3], "pictures")
    labels = tf.placeholder(tf.int32, [None], "labels")
    with epl.replicate(2 if dense == "one" else 1):
        for width, kernel, stride, padding, pools in (
            (96, 11, 4, "valid", True), (256, 5, 1, "same", True), (384, 3, 1, "same", False),
            (384, 3, 1, "same", False), (256, 3, 1, "same", True),
        ):  # fmt: skip
            x = tf.layers.conv2d(x, width, kernel, stride, padding, activation=tf.nn.relu)
            x = tf.nn.max_pool(x, 3, 2, "VALID") if pools else x
        x = tf.reshape(x, [-1, 6 * 6 * 256])
        if dense == "parallel":
            return _classified(x, labels)
    with epl.replicate(1) if dense == "one" else epl.split():
        return _classified(x, labels)


def _classified(x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    x = tf.layers.dense(tf.layers.dense(x, 4096, tf.nn.relu), 4096, tf.nn.relu)
    logits = tf.layers.dense(x, CLASSES)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def config(dense: str) -> Dict[str, Any]:
    """Keys of `epl.Config`: with "one" and "split" all scopes have both devices."""
    return {} if dense == "parallel" else {"cluster.colocate_split_and_replicate": True}


def main() -> None:
    """Trains on random pictures."""
    parser = argparse.ArgumentParser(description="AlexNet on two devices")
    parser.add_argument("--dense", choices=DENSE, default="parallel", help="where the dense layers are")
    options = parser.parse_args()
    epl.init(epl.Config(config(options.dense)))
    loss = build(options.dense)
    train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            pictures, labels = np.random.rand(32, SIZE, SIZE, 3), np.random.randint(0, CLASSES, 32)
            print(session.run([loss, train_op], {"pictures:0": pictures, "labels:0": labels})[0])


if __name__ == "__main__":
    main()
