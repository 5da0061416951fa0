"""Curves of a training: which runs are measured, what is written of them, and where."""

import os
import time
from typing import Any, Callable, Dict, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.amp.loss_scale import LossScale
from epl.profiler import exposed_communication, memory, output_files, step_flops
from epl.profiler.traced_runs import check_counts

_TAG = "epl/"
_MB = 1e6


class StepCurves:
    """What StepStatsHook and StepStatsCallback, its owner, have in common.

        curves.begin()
        curves.before_run()                      # saves and traces say what is due in this run
        curves.after_run(session, step, loss, metadata)
        curves.end()

    Attributes:
      saves: whether the values of the job are due in this run.
      traces: whether this run is to be traced.
    """

    def __init__(
        self,
        owner: Any,
        output_dir: Optional[str],
        samples_per_run: Optional[int],
        save_steps: int,
        trace_steps: Optional[int],
        log: Optional[Callable[..., Any]],
        peak_flops: Optional[float],
    ) -> None:
        """Args, Raises: as for StepStatsHook."""
        name = type(owner).__name__
        if output_dir is None and not callable(log):
            raise ValueError(
                f"{name} has no output_dir, and log is {log!r}: expected a folder for TensorBoard, a function "
                "that takes (values, step=...), such as mlflow.log_metrics, or both."
            )
        if peak_flops is not None and not peak_flops > 0:
            raise ValueError(f"peak_flops of {name} is {peak_flops!r}: expected FLOP/s of a device, above 0.")
        counts = {"samples_per_run": samples_per_run, "save_steps": save_steps, "trace_steps": trace_steps}
        optional = ("samples_per_run", "trace_steps")
        check_counts(owner, **{name: n for name, n in counts.items() if n is not None or name not in optional})
        self._folder = output_dir
        self._samples_per_run = samples_per_run
        self._save_steps = save_steps
        self._trace_steps = trace_steps
        self._runs = 0
        self._seconds = 0.0  # of the runs since the last rate
        self._timed_runs = 0
        self._last_end: Optional[float] = None
        self._log = log
        self._peak_flops = peak_flops
        self._flops: Optional[float] = None  # of the model in a run of the job
        self._writer: Any = None

    @property
    def saves(self) -> bool:
        return (self._runs - 1) % self._save_steps == 0

    @property
    def traces(self) -> bool:
        return self._trace_steps is not None and self._runs > 1 and (self._runs - 2) % self._trace_steps == 0

    def begin(self) -> None:
        """Opens the event file of this worker."""
        if self._folder is not None:
            worker = output_files.this_worker()[0]
            self._writer = tf.summary.FileWriterCache.get(
                os.path.join(self._folder, f"worker_{worker}") if worker else self._folder
            )

    def leave_out_next_run(self) -> None:
        """The next run is no part of the rate: variables are initialized or restored, or the graph is rewritten."""
        self._last_end = None

    def leave_out_pause(self) -> None:
        """What was done since the last run is no part of the rate."""
        if self._last_end is not None:
            self._last_end = time.monotonic()

    def before_run(self) -> None:
        """Counts the run."""
        self._runs += 1

    def take_back_run(self) -> None:
        """The run that was counted last was none."""
        self._runs -= 1

    def after_run(self, session: tf.Session, step: Any, loss: Any, metadata: Optional[tf.RunMetadata]) -> None:
        """Writes what is due.

        Args:
          session: the session of the run.
          step: the tensor or variable of the step over which the curves are drawn.
          loss: its value in this run, or None.
          metadata: of the run, if it was to be traced.
        """
        if self._last_end is not None and not self.traces:
            self._seconds += time.monotonic() - self._last_end
            self._timed_runs += 1
        if self.saves or self.traces:
            graph = Graph.of(session.graph)
            scale = None if graph is None else graph.state_of(LossScale)
            fetches = {"step": step}
            if scale is not None and scale.is_dynamic:
                fetches["scale"] = scale.scale
            after = session.run(fetches)
            values: Dict[str, float] = {}
            if self.saves and output_files.is_first_worker():
                values.update(self._of_job(loss))
                if scale is not None:
                    values["loss_scale"] = float(after.get("scale", scale.value))
            if self.traces and metadata is not None:
                values.update(_of_devices(metadata, session.graph))
                if output_files.is_first_worker():
                    self._flops = _flops_of_model(metadata, session.graph)
            self.write(values, int(after["step"]))
        self._last_end = time.monotonic()

    def write(self, values: Dict[str, float], step: int) -> None:
        """Writes values by the names of their tags, without `epl/`."""
        entries = [tf.Summary.Value(tag=_TAG + name, simple_value=value) for name, value in values.items()]
        if not entries:
            return
        if self._log is not None and output_files.is_first_worker() and Env.get().trial is None:
            self._log({entry.tag: entry.simple_value for entry in entries}, step=step)
        if self._writer is not None:
            self._writer.add_summary(tf.Summary(value=entries), step)
            self._writer.flush()  # TensorBoard shows it now, and it is there if the process dies

    def end(self) -> None:
        """Writes out what is buffered."""
        if self._writer is not None:
            self._writer.flush()

    def _of_job(self, loss: Any) -> Dict[str, float]:
        """Loss and rates."""
        values = {}
        if loss is not None:
            values["loss"] = float(np.mean(loss))  # a mean of one, unless a collection makes it a vector
        if self._samples_per_run is not None and self._seconds:
            values["samples_per_second"] = self._samples_per_run * self._timed_runs / self._seconds
        if self._flops is not None and self._seconds:
            rate = self._flops * self._timed_runs / self._seconds
            values["tflops_per_second"] = rate / 1e12
            if self._peak_flops is not None:
                values["mfu"] = rate / (self._peak_flops * _num_devices())
        self._seconds, self._timed_runs = 0.0, 0
        return values


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
