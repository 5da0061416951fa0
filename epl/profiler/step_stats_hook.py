"""StepStatsHook: curves of a training for TensorBoard, and for trackers of experiments."""

import logging
import os
import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.amp.loss_scale import LossScale
from epl.profiler import exposed_communication, memory, output_files, step_flops, step_stats
from epl.profiler.traced_runs import check_counts

logger = logging.getLogger("epl")

_TAG = "epl/"
_MB = 1e6


class StepStatsHook(tf.train.SessionRunHook):
    """Writes curves of a training: loss, samples per second, FLOP/s, exposed communication, loss scale, memory.

        hooks = [epl.StepStatsHook("logs", samples_per_run=256)]                  # for TensorBoard
        hooks = [epl.StepStatsHook(log=mlflow.log_metrics, samples_per_run=256)]  # or log=wandb.log
        with tf.train.MonitoredTrainingSession(hooks=hooks) as session:

    | Tag | Value | Written in |
    | --- | --- | --- |
    | `epl/loss` | as `session.run(loss)` gives it | runs 1, 1 + save_steps, ... |
    | `epl/samples_per_second` | of the job, since the last value; without run 1, traced runs and the hook | the same |
    | `epl/tflops_per_second` | FLOP/s of the model in the job, in 10^12, counted in the last traced run | the same |
    | `epl/mfu` | their share of the peak of all devices of the job, with `peak_flops` | the same |
    | `epl/loss_scale` | that of `amp.level`, after the run | the same |
    | `epl/exposed_communication` | a share of the step, 0 to 1 | runs 2, 2 + trace_steps, ... |
    | `epl/peak_memory_mb/<device>` | the most that a device holds in the step, in MB of 10^6 bytes | the same |

    A run is one call of `MonitoredSession.run`; runs are counted from 1, across sessions that the hook lives through.
    The values are those of the global step after the run. In a job of several workers each worker needs the hook, as
    workers fetch the loss together. Worker 0 writes all values into `output_dir`; worker w writes those of its own
    devices into `output_dir/worker_<w>`, for TensorBoard a run of its own. `log` is called on worker 0 alone.
    """

    def __init__(
        self,
        output_dir: Optional[str] = None,
        loss: Optional[tf.Tensor] = None,
        samples_per_run: Optional[int] = None,
        save_steps: int = 100,
        trace_steps: Optional[int] = 1000,
        log: Optional[Callable[..., Any]] = None,
        peak_flops: Optional[float] = None,
    ) -> None:
        """Nothing is written before the session begins.

        Args:
          output_dir: the folder for TensorBoard; made if it is missing. None: nothing is written for it.
          loss: a scalar. By default the one that the model is differentiated by; none if there are several.
          samples_per_run: samples that one run takes, over all replicas of the job; without it their rate is not
            written.
          save_steps: runs from one value of loss, rate and loss scale to the next.
          trace_steps: runs from one traced run to the next. A traced run is slower; None traces no run.

          log: called on worker 0 with the values of a run by tag, as `log(values, step=global_step)`.
          peak_flops: FLOP/s that one device reaches at most, in the precision of the training, such as 312e12.

        Raises:
          ValueError: a number is below 1, `loss` is no scalar tensor, or there is neither a folder nor a `log`.
        """
        if output_dir is None and not callable(log):
            raise ValueError(
                f"StepStatsHook has no output_dir, and log is {log!r}: expected a folder for TensorBoard, a function "
                "that takes (values, step=...), such as mlflow.log_metrics, or both."
            )
        if peak_flops is not None and not peak_flops > 0:
            raise ValueError(f"peak_flops of StepStatsHook is {peak_flops!r}: expected FLOP/s of a device, above 0.")
        counts = {"samples_per_run": samples_per_run, "save_steps": save_steps, "trace_steps": trace_steps}
        optional = ("samples_per_run", "trace_steps")
        check_counts(self, **{name: n for name, n in counts.items() if n is not None or name not in optional})
        if loss is not None and not (isinstance(loss, tf.Tensor) and loss.shape.ndims in (None, 0)):
            raise ValueError(
                f"loss of StepStatsHook is {loss!r}: expected a scalar tf.Tensor, such as tf.reduce_mean(losses)."
            )
        self._folder = output_dir
        self._given_loss = loss
        self._loss: Optional[tf.Tensor] = None  # of the graph that runs
        self._samples_per_run = samples_per_run
        self._save_steps = save_steps
        self._trace_steps = trace_steps
        self._runs = 0
        self._seconds = 0.0  # of the runs since the last rate
        self._timed_runs = 0
        self._last_end: Optional[float] = None
        self._step: Any = None
        self._scale: Optional[LossScale] = None
        self._log = log
        self._peak_flops = peak_flops
        self._flops: Optional[float] = None  # of the model in a run of the job
        self._writer: Any = None

    def begin(self) -> None:
        """Finds what is fetched, and opens the event file.

        Raises:
          ValueError: the graph has no global step, or the loss that was given is of another graph.
        """
        self._step = tf.train.get_global_step()
        if self._step is None:
            raise ValueError(
                "StepStatsHook needs a global step, over which TensorBoard draws its curves, and the graph has none: "
                "call tf.train.get_or_create_global_step() and pass it to minimize or apply_gradients."
            )
        graph = Graph.of(tf.get_default_graph())
        self._scale = None if graph is None else graph.state_of(LossScale)
        self._loss = _objective(graph) if self._given_loss is None else self._given_loss
        if self._loss is not None and self._loss.graph is not tf.get_default_graph():
            raise ValueError(
                f"loss of StepStatsHook is {self._loss.name!r} of another graph than the one that the session runs: "
                "expected a tensor of that graph. Make a new hook for each graph, as in the model_fn of an Estimator, "
                "or leave loss out: the hook then finds it in each graph."
            )
        if self._folder is not None:
            worker = output_files.this_worker()[0]
            self._writer = tf.summary.FileWriterCache.get(
                os.path.join(self._folder, f"worker_{worker}") if worker else self._folder
            )

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Restoring or initializing variables is not part of the rate."""
        self._last_end = None

    def before_run(self, run_context: Any) -> Any:
        """Fetches the loss, or asks for a trace, in the runs that are due."""
        self._runs += 1
        fetches = {"loss": self._loss} if self._saves() and self._loss is not None else None
        options = step_stats.run_options(output_files.is_first_worker()) if self._traces() else None
        return tf.train.SessionRunArgs(fetches, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes what is due."""
        if self._last_end is not None and not self._traces():
            self._seconds += time.monotonic() - self._last_end
            self._timed_runs += 1
        if self._saves() or self._traces():
            session = run_context.session
            fetches = {"step": self._step}
            if self._scale is not None and self._scale.is_dynamic:
                fetches["scale"] = self._scale.scale
            after = session.run(fetches)
            values: Dict[str, float] = {}
            if self._saves() and output_files.is_first_worker():
                values.update(self._of_job(run_values.results, after))
            if self._traces():
                values.update(_of_devices(run_values.run_metadata, session.graph))
                if output_files.is_first_worker():
                    self._flops = _flops_of_model(run_values.run_metadata, session.graph)
            self._write(values, int(after["step"]))
        self._last_end = time.monotonic()

    def end(self, session: tf.Session) -> None:
        """Writes out what is buffered."""
        if self._writer is not None:
            self._writer.flush()

    def _saves(self) -> bool:
        return (self._runs - 1) % self._save_steps == 0

    def _traces(self) -> bool:
        return self._trace_steps is not None and self._runs > 1 and (self._runs - 2) % self._trace_steps == 0

    def _of_job(self, results: Any, after: Dict[str, Any]) -> Dict[str, float]:
        """Loss, rates and loss scale."""
        values = {}
        if results is not None:
            values["loss"] = float(np.mean(results["loss"]))  # a mean of one, unless a collection makes it a vector
        if self._samples_per_run is not None and self._seconds:
            values["samples_per_second"] = self._samples_per_run * self._timed_runs / self._seconds
        if self._flops is not None and self._seconds:
            rate = self._flops * self._timed_runs / self._seconds
            values["tflops_per_second"] = rate / 1e12
            if self._peak_flops is not None:
                values["mfu"] = rate / (self._peak_flops * _num_devices())
        self._seconds, self._timed_runs = 0.0, 0
        if self._scale is not None:
            values["loss_scale"] = float(after.get("scale", self._scale.value))
        return values

    def _write(self, values: Dict[str, float], step: int) -> None:
        entries = [tf.Summary.Value(tag=_TAG + name, simple_value=value) for name, value in values.items()]
        if not entries:
            return
        if self._log is not None and output_files.is_first_worker():
            self._log({entry.tag: entry.simple_value for entry in entries}, step=step)
        if self._writer is not None:
            self._writer.add_summary(tf.Summary(value=entries), step)
            self._writer.flush()  # TensorBoard shows it now, and it is there if the process dies


def _objective(graph: Optional[Graph]) -> Optional[tf.Tensor]:
    """The scalar by which a model is differentiated; None, with a message, if there are several."""
    calls = [] if graph is None else graph.gradient_calls
    found: List[tf.Tensor] = []
    for y in (y for call in calls for y in call.ys):
        if y.shape.ndims == 0 and all(y is not one for one in found):
            found.append(y)
    if len(found) > 1:
        logger.warning(
            "StepStatsHook writes no loss, as the model has several (%s): pass one of them as loss.",
            ", ".join(y.name for y in found),
        )
    return found[0] if len(found) == 1 else None


def _flops_of_model(metadata: tf.RunMetadata, tf_graph: tf.Graph) -> float:
    """What the model computes in a run of the job, over all replicas; nothing that the plan adds."""
    flops = step_flops.count(metadata, tf_graph)
    return flops.scale * step_flops.total(one for one in flops.ops if one.role.kind in step_flops.OF_MODEL)


def _num_devices() -> int:
    """Devices of the job; one where EPL was not initialized."""
    cluster = Env.get().cluster
    return 1 if cluster is None else cluster.total_gpu_num


def _of_devices(metadata: tf.RunMetadata, tf_graph: tf.Graph) -> Dict[str, float]:
    """Exposed communication and peaks of memory of a traced run."""
    values = {}
    exposures = exposed_communication.exposures(metadata, tf_graph)
    if exposures:
        values["exposed_communication"] = exposed_communication.exposed_share(exposures)
    for timeline in memory.timelines(metadata, tf_graph):
        device = output_files.file_part(output_files.title_of_device(timeline.device))
        values[f"peak_memory_mb/{device}"] = timeline.peak / _MB
    return values
