"""Callbacks of Keras in a job of several workers: all decide by the same logs, and worker 0 alone writes.

Each worker fits its own rows, so its loss is its own. A callback that decides by it (EarlyStopping, ReduceLROnPlateau)
would stop, or write a rate, in one worker alone, and the others would wait for it in their next step. So `fit` gets two
callbacks more:

    BaseLogger, the first, callbacks of the user, the last, History
                 |                                 |
                 logs become those of all rows     one worker stops -> all stop, in the same step

A worker that would do another number of steps than worker 0 is refused before the first one. Then the workers also
agree whether they tell each other of stops after each step, or after each epoch only: a callback that one worker alone
has counts for all.
"""

import json
import os
import tempfile
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.ops.job import Job
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils.errors import PlanError

# Callbacks of Keras that write files, or send what they would write.
_WRITERS = frozenset("BackupAndRestore CSVLogger ModelCheckpoint RemoteMonitor TensorBoard".split())
# Callbacks of Keras that stop no training at the end of a batch.
_STOP_NOTHING = _WRITERS | frozenset("BaseLogger EarlyStopping History LearningRateScheduler ProgbarLogger".split())
_BATCH_ENDS = ("on_batch_end", "on_train_batch_end")


def configure(original: Callable[..., Any], callbacks: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """`configure_callbacks` of Keras, which each `fit`, `evaluate` and `predict` calls once."""
    cluster, graph = Env.get().cluster, Graph.get()
    is_configured = callbacks is not None and not isinstance(callbacks, (list, tuple))
    if Env.get().trial is not None and not is_configured:
        callbacks = _without_writers(callbacks or (), graph)
    if is_configured or kwargs.get("mode", "train") != "train" or cluster is None or cluster.worker_num == 1:
        return original(callbacks, model, *args, **kwargs)
    if graph is None or not graph.taskgraphs:
        return original(callbacks, model, *args, **kwargs)
    given = list(callbacks or ())
    if cluster.worker_index:
        given = _without_writers(given, graph)
    may_stop = any(map(_may_stop_in_an_epoch, given))
    first, last = _callbacks_of_all_workers(tf.keras.callbacks.Callback, may_stop)
    return original([first, *given, last], model, *args, **kwargs)


def _without_writers(callbacks: Sequence[Any], graph: Optional[Graph]) -> List[Any]:
    """The callbacks of another worker than 0, or of a trial of a plan.

    A ModelCheckpoint stays if variables are in parts, as all workers gather them; its files are thrown away.
    """
    in_parts = graph is not None and graph.state_of(ShardedVariables) is not None
    kept = []
    for callback in callbacks:
        if not _kinds(callback) & _WRITERS:
            kept.append(callback)
        elif in_parts and "ModelCheckpoint" in _kinds(callback):
            folder = tempfile.TemporaryDirectory(prefix="epl_")  # lives as long as the callback
            callback.filepath = os.path.join(folder.name, os.path.basename(callback.filepath))
            callback._epl_folder = folder
            kept.append(callback)
    return kept


def _kinds(callback: Any) -> FrozenSet[str]:
    """Names of the classes of Keras that a callback is of."""
    return frozenset(kind.__name__ for kind in type(callback).__mro__ if _is_of_keras(kind))


def _is_of_keras(kind: type) -> bool:
    return not {"keras", "tf_keras"}.isdisjoint(kind.__module__.split("."))


def _may_stop_in_an_epoch(callback: Any) -> bool:
    """Whether a callback may set `stop_training` at the end of a batch."""
    for kind in type(callback).__mro__:
        if _is_of_keras(kind) and kind.__name__ in _STOP_NOTHING | {"Callback"}:
            return False
        if kind.__module__.startswith("epl."):  # EPL's own stop nothing
            continue
        if any(name in vars(kind) for name in _BATCH_ENDS) or kind.__name__ == "LambdaCallback":
            return True
    return False


def _callbacks_of_all_workers(base: Any, may_stop: bool) -> Any:
    """The first and the last callback.

    Args:
      base: the class Callback of the Keras in use.
      may_stop: whether a callback of this worker may stop the training within an epoch.
    """

    class LogsOfAllRows(base):
        """The logs of an epoch are the mean of those of the workers, by the rows, or steps, that each has done."""

        def on_train_begin(self, logs: Any = None) -> None:
            told = _of_all_workers("steps", [_steps(self.params), may_stop])
            _refuse_unequal_steps([steps for steps, _ in told])
            last.stops_in_an_epoch = any(stops for _, stops in told)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._seen = {"train": 0, "val": 0}

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._seen["train"] += (logs or {}).get("size", 1)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self._seen["val"] += (logs or {}).get("size", 1)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            own = {name: float(value) for name, value in (logs or {}).items() if is_one_number(value)}
            if logs is not None:
                logs.update(mean_of_workers(_of_all_workers("logs", [own, self._seen])))

    class StopsEverywhere(base):
        """A training that one worker stops stops in all, after the same step."""

        stops_in_an_epoch = False  # of any worker: all are to agree, as each exchange needs all

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.stops_in_an_epoch:
                self._stop_together()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._stop_together()

        def _stop_together(self) -> None:
            self.model.stop_training = any(_of_all_workers("stop", bool(self.model.stop_training)))

    last = StopsEverywhere()
    return LogsOfAllRows(), last


def mean_of_workers(told: Sequence[Any]) -> Dict[str, float]:
    """The logs of all workers: means by weight; values that are equal stay as they are.

    Args:
      told: of each worker, its logs by name and its weights, "train" and "val".
    """
    means = {}
    for name in told[0][0]:
        values = [logs[name] for logs, _ in told if name in logs]
        weights = [seen["val" if name.startswith("val_") else "train"] for logs, seen in told if name in logs]
        if len(set(values)) > 1:
            weights = weights if any(weights) else [1] * len(values)
            means[name] = sum(v * w for v, w in zip(values, weights) if w) / sum(weights)
        else:
            means[name] = values[0]
    return means


def is_one_number(value: Any) -> bool:
    """Whether a value of the logs of Keras is one number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _steps(params: Dict[str, Any]) -> Optional[int]:
    """Steps of an epoch; None if they end with the data."""
    steps, rows, batch = (params.get(name) for name in ("steps", "samples", "batch_size"))
    steps = -(-rows // batch) if steps is None and rows and batch else steps
    return None if steps is None else int(steps)


def _refuse_unequal_steps(told: Sequence[Optional[int]]) -> None:
    """Raises PlanError if a worker has other steps than worker 0."""
    worker = next((worker for worker, steps in enumerate(told) if steps != told[0]), None)
    if worker is not None:
        raise PlanError(
            "Model.fit: an epoch of worker 0 has {} steps, and one of worker {} {}. Every step needs all workers: give "
            "each as many batches, or set steps_per_epoch.".format(told[0], worker, told[worker])
        )


def _of_all_workers(what: str, own: Any) -> List[Any]:
    """What each worker tells."""
    job = Job.join()
    if job is None:
        raise PlanError("The job has ended (Job.stop, or epl.init for other workers): build the model again.")
    return [json.loads(part.decode()) for part in job.exchange(f"Keras: {what}", json.dumps(own).encode())]
