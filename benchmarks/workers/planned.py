"""A training step by one strategy, which `epl-plan` simulates and the driver measures: the same script.

Usage: planned.py CASE MODEL SIZE ROWS, with a CASE of `CASES`, MODEL "dense" or "convolutions", the SIZE of its layers,
ROWS of the global batch. Requests: ``{"steps": n, "warm_up": k}`` are answered with the seconds that they took.
"""

import os
import sys
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# Below the line above, since epl-plan runs this file as a script.
from benchmarks import control

_CLASSES = 100
_DENSE, _CONVOLUTIONS = 6, 4  # layers
_PICTURE = 32  # height and width


class Case(NamedTuple):
    """A strategy: processes, devices of each, stages, keys of the configuration."""

    workers: int
    devices: int
    scopes: str = "replicate"
    settings: Dict[str, Any] = {}


CASES = {
    "one device": Case(1, 1),
    "two devices": Case(1, 2),
    "two workers": Case(2, 1),
    "ZeRO v1": Case(1, 2, settings={"zero.level": "v1"}),
    "pipeline": Case(1, 2, "stages", {"pipeline.num_micro_batch": 4}),
    "split": Case(1, 2, "split"),
}


def main() -> None:
    """Builds one contender, and serves the driver, if there is one."""
    case, (model, size, rows) = CASES[sys.argv[1]], (sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    import epl

    own = {"cluster.device_type": "cpu", "cluster.num_virtual_devices": case.devices}
    epl.init(epl.Config({**own, **case.settings}))
    x, labels, loss = _model(case, model, size)
    train = tf.train.MomentumOptimizer(1e-4, 0.9).minimize(loss)
    random = np.random.RandomState(0)
    shape = [rows // case.workers] + x.shape.as_list()[1:]
    feed = {x: random.rand(*shape).astype(np.float32), labels: random.randint(0, _CLASSES, shape[0])}
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run(train, feed)
    rank = epl.Env.get().cluster.worker_index
    control.serve(rank, lambda request: _answer(request, lambda: session.run(train, feed)))


def _answer(request: control.Message, step: Any) -> control.Message:
    return control.timed(step, request["steps"], request["warm_up"])


def _model(case: Case, model: str, size: int) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The input, the labels and the loss, in the scopes of a strategy."""
    import epl

    labels = tf.placeholder(tf.int32, [None])
    if model == "dense":
        x = tf.placeholder(tf.float32, [None, size])
        layers: List[Any] = [lambda t: tf.layers.dense(t, size, tf.nn.relu)] * _DENSE
        layers.append(lambda t: tf.layers.dense(t, _CLASSES))
    else:
        x = tf.placeholder(tf.float32, [None, _PICTURE, _PICTURE, size])
        layers = [lambda t: tf.layers.conv2d(t, size, 3, padding="same", activation=tf.nn.relu)] * _CONVOLUTIONS
        layers.append(lambda t: tf.layers.dense(tf.reduce_mean(t, [1, 2]), _CLASSES))
    parts = [layers]
    if case.scopes == "stages":
        parts = [layers[: len(layers) // 2], layers[len(layers) // 2 :]]
    hidden = x
    for number, part in enumerate(parts):
        with epl.split(2) if case.scopes == "split" else epl.replicate(1):
            for layer in part:
                hidden = layer(hidden)
            if number == len(parts) - 1:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden)
                loss = tf.reduce_mean(losses)
    return x, labels, loss


if __name__ == "__main__":
    main()
