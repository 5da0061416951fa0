"""Models whose plan holds a decision: a split, ZeRO, recomputation, automatic stages; and searches that are off."""

import contextlib
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import epl

# By case: devices and configuration.
CASES = {
    "split": (2, {"cluster.colocate_split_and_replicate": True}),
    "zero": (2, {"zero.level": "v1"}),
    "recompute": (1, {"gradient_checkpoint.type": "auto"}),
    "pipeline": (2, {"auto.auto_parallel": True, "pipeline.num_stages": 2, "pipeline.num_micro_batch": 2}),
}
SEARCHES = (
    "epl.parallel.split.section.search",
    "epl.parallel.zero.section.choose_placements",
    "epl.parallel.recompute.section.choose",
    "epl.parallel.auto_partition.partition._search",
)


@contextlib.contextmanager
def no_search():
    """Inside, each search fails."""
    with contextlib.ExitStack() as patches:
        for name in SEARCHES:
            patches.enter_context(mock.patch(name, side_effect=AssertionError(f"{name} was called")))
        yield


class Layers:
    """Dense layers with tanh, and least squares."""

    def __init__(self, case, width=256, layers=4):
        random = np.random.RandomState(0)
        self.rows = random.randn(8, width).astype("f")
        with epl.split(2) if case == "split" else contextlib.ExitStack():
            value = self.x = tf.placeholder(tf.float32, [None, width], "x")
            for layer in range(layers):
                kernel = tf.get_variable(
                    f"kernel{layer}", initializer=(random.randn(width, width) / width**0.5).astype("f")
                )
                bias = tf.get_variable(f"bias{layer}", [width], initializer=tf.zeros_initializer())
                value = tf.tanh(tf.nn.bias_add(tf.matmul(value, kernel, name=f"matmul{layer}"), bias))
            self.loss = tf.reduce_mean(tf.square(value - 1.0), name="loss")
        self.train_op = tf.train.AdamOptimizer(0.01).minimize(self.loss)

    def train(self, steps=3):
        """The losses, and the variables after the last step."""
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            losses = [sess.run([self.loss, self.train_op], {self.x: self.rows})[0] for _ in range(steps)]
            return [np.asarray(losses), *sess.run(tf.trainable_variables())]


def begin(case):
    """A fresh graph, configured for a case."""
    devices, config = CASES[case]
    tf.reset_default_graph()
    epl.init(epl.Config({"cluster.device_type": "cpu", "cluster.num_virtual_devices": devices, **config}))
    if case in ("zero", "recompute"):
        epl.set_default_strategy(epl.replicate(1))
