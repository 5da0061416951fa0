"""Evaluation while training goes on: each checkpoint is measured when it is written, and the best one is kept.

    experiments/bert_dp/model/           checkpoints of the training, the last five
    experiments/bert_dp/model/best/      a copy of the best one, and best.json with what was measured
    TensorBoard                          the tags eval/<measure>

Worker 0 measures, in a graph of its own, while the others wait in their next step: for `communication.timeout` at most.
"""

import json
import os
from typing import Any, Callable, Dict

import tensorflow.compat.v1 as tf

FOLDER, RECORD = "best", "best.json"

Measures = Dict[str, float]


class KeepBest(tf.train.CheckpointSaverListener):
    """Listens to the CheckpointSaverHook of a training."""

    def __init__(self, folder: str, evaluate: Callable[[str], Measures], measure: str) -> None:
        """Nothing is evaluated before the first step.

        Args:
          folder: that of the checkpoints.
          evaluate: returns what it measures of the checkpoint with this path.
          measure: the one by which the best is chosen; more is better.
        """
        self._folder = folder
        self._evaluate = evaluate
        self._measure = measure

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Measures the checkpoint that was written, unless that was done before or it is untrained."""
        step, best = int(global_step_value), read_best(self._folder)
        if step in (0, best.get("evaluated")):
            return
        checkpoint = tf.train.latest_checkpoint(self._folder)
        found = {name: float(value) for name, value in self._evaluate(checkpoint).items()}
        is_best = not best or found[self._measure] > best["measures"][self._measure]
        if is_best:
            best = {"step": step, "measures": found}
            _copy(checkpoint, os.path.join(self._folder, FOLDER))
        best["evaluated"] = step
        record = _record(self._folder)
        with tf.io.gfile.GFile(record + ".new", "w") as target:
            json.dump(best, target)
        tf.io.gfile.rename(record + ".new", record, overwrite=True)  # whole or not at all
        self._write(found, step)
        text = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        place = "the best so far" if is_best else "the best is step {step}".format(**best)
        print(f"evaluated after step {step}: {text} ({place})", flush=True)

    def _write(self, found: Measures, step: int) -> None:
        values = [tf.Summary.Value(tag="eval/" + name, simple_value=value) for name, value in found.items()]
        writer = tf.summary.FileWriterCache.get(self._folder)
        writer.add_summary(tf.Summary(value=values), step)
        writer.flush()


def read_best(folder: str) -> Dict[str, Any]:
    """Returns `step` and `measures` of the best checkpoint, and `evaluated`, the last step; {} if there is none."""
    path = _record(folder)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path) as source:
        return json.load(source)


def find_checkpoint(path: str) -> str:
    """Returns the checkpoint that a path names, or the last one in a folder.

    Raises:
      ValueError: there is none.
    """
    found = tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path
    if not found or not tf.train.checkpoint_exists(found):
        raise ValueError(f"{path} is no checkpoint, and no folder with one.")
    return found


def _record(folder: str) -> str:
    return os.path.join(folder, FOLDER, RECORD)


def _copy(checkpoint: str, folder: str) -> None:
    """Makes a checkpoint the only one of a folder."""
    tf.io.gfile.makedirs(folder)
    before = tf.train.latest_checkpoint(folder)
    copy = os.path.join(folder, os.path.basename(checkpoint))
    for path in tf.io.gfile.glob(checkpoint + ".*"):
        tf.io.gfile.copy(path, os.path.join(folder, os.path.basename(path)), overwrite=True)
    tf.train.update_checkpoint_state(folder, copy)
    if before and before != copy:
        for path in tf.io.gfile.glob(before + ".*"):
            tf.io.gfile.remove(path)
