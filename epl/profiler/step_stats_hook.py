"""StepStatsHook: curves of a training in sessions, for TensorBoard and for trackers of experiments."""

import logging
from typing import Any, Callable, List, Optional

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.profiler import output_files, step_stats
from epl.profiler.step_curves import StepCurves

logger = logging.getLogger("epl")


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
        self._curves = StepCurves(self, output_dir, samples_per_run, save_steps, trace_steps, log, peak_flops)
        if loss is not None and not (isinstance(loss, tf.Tensor) and loss.shape.ndims in (None, 0)):
            raise ValueError(
                f"loss of StepStatsHook is {loss!r}: expected a scalar tf.Tensor, such as tf.reduce_mean(losses)."
            )
        self._given_loss = loss
        self._loss: Optional[tf.Tensor] = None  # of the graph that runs
        self._step: Any = None

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
        self._loss = _objective(graph) if self._given_loss is None else self._given_loss
        if self._loss is not None and self._loss.graph is not tf.get_default_graph():
            raise ValueError(
                f"loss of StepStatsHook is {self._loss.name!r} of another graph than the one that the session runs: "
                "expected a tensor of that graph. Make a new hook for each graph, as in the model_fn of an Estimator, "
                "or leave loss out: the hook then finds it in each graph."
            )
        self._curves.begin()

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Restoring or initializing variables is not part of the rate."""
        self._curves.leave_out_next_run()

    def before_run(self, run_context: Any) -> Any:
        """Fetches the loss, or asks for a trace, in the runs that are due."""
        self._curves.before_run()
        fetches = {"loss": self._loss} if self._curves.saves and self._loss is not None else None
        options = step_stats.run_options(output_files.is_first_worker()) if self._curves.traces else None
        return tf.train.SessionRunArgs(fetches, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes what is due."""
        loss = None if run_values.results is None else run_values.results["loss"]
        self._curves.after_run(run_context.session, self._step, loss, run_values.run_metadata)

    def end(self, session: tf.Session) -> None:
        """Writes out what is buffered."""
        self._curves.end()


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
