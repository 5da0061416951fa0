"""The small model whose checkpoints lie in tests/runtime/checkpoints, and the program that writes them.

A folder for each TensorFlow, a checkpoint for each layout of the variables. To write those of a TensorFlow anew:

    PYTHONPATH=. python -m tests.runtime.checkpoint_models
"""

import os
from typing import Any, Callable, ContextManager, Dict

import numpy as np
import tensorflow.compat.v1 as tf

import epl

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoints")
LAYOUTS = ("plain", "v1", "split")  # of the variables: whole on each device, ZeRO v1, epl.split
STEPS = 3
_CONFIG: Dict[str, Dict[str, Any]] = {
    "plain": {},
    "v1": {"zero__level": "v1"},
    "split": {"cluster__colocate_split_and_replicate": True},
}


class Model:
    """Least squares on constants, with one weight [8, 12] in a scope, Adam and a global step."""

    def __init__(self, scope: ContextManager[Any]) -> None:
        random = np.random.RandomState(0)
        with scope:
            initializer = tf.constant_initializer(random.randn(8, 12))
            self.weight = tf.get_variable("weight", [8, 12], initializer=initializer)
            out = tf.matmul(tf.constant(random.randn(4, 8), tf.float32), self.weight, name="out")
        self.loss = tf.reduce_mean(tf.square(out - tf.constant(random.randn(4, 12), tf.float32)))
        self.train_op = tf.train.AdamOptimizer(0.1).minimize(self.loss, tf.train.get_or_create_global_step())
        self.saver = tf.train.Saver()
        others = [variable for variable in tf.global_variables() if not variable.op.name.endswith("weight")]
        self.variables = {"weight": self.weight, **{variable.op.name: variable for variable in others}}

    def values(self, sess: tf.Session) -> Dict[str, np.ndarray]:
        """The values of all variables by name."""
        values: Dict[str, np.ndarray] = sess.run(self.variables)
        return values


def model_in(layout: str, init: Callable[..., None], devices: int) -> Model:
    """The model on some devices of this process, its variables in that layout."""
    init(devices, **_CONFIG[layout])
    return Model(epl.split(devices, choices={"out": "shard(1)"}) if layout == "split" else tf.name_scope("whole"))


def _write(layout: str) -> None:
    def init(devices: int, **config: Any) -> None:
        values = {key.replace("__", "."): value for key, value in config.items()}
        epl.init(epl.Config({"cluster.device_type": "cpu", "cluster.num_virtual_devices": devices, **values}))
        epl.set_default_strategy(epl.replicate(1))

    tf.reset_default_graph()
    model = model_in(layout, init, 2)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            sess.run(model.train_op)
        path = os.path.join(FOLDER, ".".join(tf.VERSION.split(".")[:2]), layout)
        model.saver.save(sess, path, write_meta_graph=False, write_state=False)


if __name__ == "__main__":
    for name in LAYOUTS:
        _write(name)
