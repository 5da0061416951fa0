"""Trains the handwritten digits with `fit` of tf.keras, which evaluates after each epoch and keeps the best weights.

    epl-launch --num_workers 2 --gpu_per_worker 2 examples/estimator_keras/train_keras.py --output my_model

What is EPL's stands at the beginning of `main`: the annotation, and the share of the images that a worker takes.
"""

import argparse
import csv
import os
import sys
from typing import Any, List, NamedTuple

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import h5py
import progress
import tensorflow.compat.v1 as tf
from quickstart import digits

import epl


class Before(NamedTuple):
    """What an earlier run with the same output has done.

    Attributes:
      epochs: how many it has ended.
      best: the smallest loss of the test images; infinite if it has ended none.
    """

    epochs: int
    best: float


def network() -> tf.keras.Model:
    """The network of the quick start, in layers of Keras."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(128, "relu", input_shape=[64]),
            tf.keras.layers.Dense(64, "relu"),
            tf.keras.layers.Dense(10, "softmax"),
        ]
    )


def read_history(path: str) -> Before:
    """Reads what the CSVLogger of an earlier run has written."""
    if not os.path.exists(path):
        return Before(0, float("inf"))
    with open(path) as source:
        losses = [float(row["val_loss"]) for row in csv.DictReader(source)]
    return Before(len(losses), min(losses, default=float("inf")))


class GoOn(tf.keras.callbacks.Callback):
    """Takes over what an earlier run has left, in every worker: the weights and the state of the optimizer.

    Not earlier than in `fit`, which makes the state.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.load_weights(self._path)
        with h5py.File(self._path, "r") as saved:
            state = saved["optimizer_weights"]
            self.model.optimizer.set_weights([state[name][()] for name in state.attrs["weight_names"]])


def callbacks(output: str, before: Before) -> List[tf.keras.callbacks.Callback]:
    """What worker 0 does: it writes for all."""
    best = tf.keras.callbacks.ModelCheckpoint(os.path.join(output, "best.h5"), save_best_only=True)
    best.best = before.best
    return [
        best,
        tf.keras.callbacks.ModelCheckpoint(os.path.join(output, "last.h5")),
        tf.keras.callbacks.CSVLogger(os.path.join(output, "history.csv"), append=True),
        tf.keras.callbacks.TensorBoard(output),
        tf.keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: print(f"evaluated after epoch {epoch + 1}: loss {logs['val_loss']:.4f}")
        ),
    ]


def export(weights: str, folder: str) -> None:
    """Writes a SavedModel of a network with these weights, in a graph that does not train it; in place of one there."""
    if tf.saved_model.contains_saved_model(folder):
        tf.io.gfile.rmtree(folder)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.keras.backend.set_session(session)
        model = network()
        model.load_weights(weights)
        tf.saved_model.simple_save(session, folder, {"image": model.input}, {"digit": tf.argmax(model.output, 1)})


def parse(arguments: Any) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", required=True, help="folder of models and events, which all workers see")
    parser.add_argument(
        "--epochs", type=int, default=20, help="in all; more go on from the last (default: %(default)s)"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="images of one device (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Any = None) -> None:
    """Trains and exports."""
    options = parse(arguments)
    epl.init()
    epl.set_default_strategy(epl.replicate(1))
    cluster = epl.Env.get().cluster
    images, labels = digits.images_and_labels("train")
    batch_size = options.batch_size * max(1, cluster.gpu_num_per_worker)  # fit cuts it by rows, for each device
    steps = len(images) // (batch_size * cluster.worker_num)  # of an epoch, the same in all workers
    share = slice(cluster.worker_index, steps * batch_size * cluster.worker_num, cluster.worker_num)

    os.makedirs(options.output, exist_ok=True)
    before = read_history(os.path.join(options.output, "history.csv"))
    model = network()
    model.compile(tf.keras.optimizers.Adam(0.001), "sparse_categorical_crossentropy")
    first = cluster.worker_index == 0
    shown = progress.KerasProgress(steps * options.epochs, batch_size * cluster.worker_num, steps * before.epochs)
    go_on = [GoOn(os.path.join(options.output, "last.h5"))] if before.epochs else []
    model.fit(
        images[share],
        labels[share],
        batch_size,
        options.epochs,
        verbose=0,
        callbacks=[shown] + go_on + (callbacks(options.output, before) if first else []),
        validation_data=digits.images_and_labels("test") if first else None,
        initial_epoch=before.epochs,
    )
    if first:
        export(os.path.join(options.output, "best.h5"), os.path.join(options.output, "export", str(options.epochs)))


if __name__ == "__main__":
    main()
