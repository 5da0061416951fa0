"""Progress: how the examples show that a training goes on, in MonitoredTrainingSession and in Estimator.

On a terminal it is a bar, if tqdm is installed. Elsewhere, also in the logs of `epl-launch`, it is a line for the first
step, one every 10 s, and one for the last step:

    goes on from step 14 of 1000
    step 15 of 1000: loss 2.3021
    step 411 of 1000: loss 0.4310, 5043 samples/s, 0:00:15 left

The module knows EPL only if the script has imported it: examples/quickstart/train.py is plain TensorFlow.
"""

import collections
import datetime
import sys
import time
from typing import IO, Any, Callable, Deque, List, Optional

import numpy as np
import tensorflow.compat.v1 as tf

try:
    from tqdm import tqdm
except ImportError:  # an extra: without it there are lines
    tqdm = None

LINE_SECONDS = 10.0
BAR_SECONDS = 0.5
_RECENT_RUNS = 20


class Display:
    """Shows step, loss, samples per second and the time that is left; worker 0 alone shows it.

    Attributes:
      steps_per_second: the mean since the first run, which also starts things up; 0.0 before the second.
    """

    def __init__(self, steps: int, samples_per_run: int, stream: Optional[IO[str]] = None) -> None:
        """Shows nothing before `begin`.

        Args:
          steps: the global step at which the training ends.
          samples_per_run: samples that a run takes, over all replicas of the job.
          stream: where it is shown; standard error by default.
        """
        self.steps_per_second = 0.0
        self._steps = steps
        self._samples_per_run = samples_per_run
        self._stream = sys.stderr if stream is None else stream
        self._has_bar = tqdm is not None and self._stream.isatty()
        self._bar: Any = None
        self._losses: Deque[float] = collections.deque(maxlen=_RECENT_RUNS)
        self._runs = 0
        self._shown_runs = 0
        self._first_step = 0  # after the first run
        self._first_end = self._last_end = self._shown_at = 0.0

    @property
    def loss(self) -> float:
        """The mean of the last 20 runs."""
        return float(np.mean(self._losses))

    def begin(self, step: int) -> None:
        """Begins at a global step; says so where an earlier run is continued."""
        self._runs = self._shown_runs = 0
        if step and _is_first_worker():
            print(f"goes on from step {step} of {self._steps}", file=self._stream, flush=True)

    def take(self, loss: float, step: Callable[[], int]) -> None:
        """Takes the loss of a run; `step` gives the global step after it, if it is shown."""
        self._losses.append(loss)
        self._runs += 1
        self._last_end = time.monotonic()
        if self._runs == 1:
            self._first_end = self._last_end
            self._first_step = step()
        pause = BAR_SECONDS if self._has_bar else LINE_SECONDS
        if self._runs == 1 or self._last_end - self._shown_at >= pause:
            self._show(step())

    def end(self, step: Callable[[], int]) -> None:
        """Shows the last step."""
        if self._runs > self._shown_runs:
            self._show(step())
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, step: int) -> None:
        seconds = self._last_end - self._first_end
        self._shown_runs, self._shown_at = self._runs, self._last_end
        words = [f"loss {self.loss:.4f}"]
        if seconds:
            self.steps_per_second = (step - self._first_step) / seconds
            words.append(f"{(self._runs - 1) * self._samples_per_run / seconds:.0f} samples/s")
        if not _is_first_worker():
            return
        if self._has_bar:
            self._show_bar(step, words)
        else:
            self._show_line(step, words)

    def _show_bar(self, step: int, words: List[str]) -> None:
        if self._bar is None:  # not earlier: what is printed before the first step would break it
            self._bar = tqdm(total=self._steps, initial=step, unit="step", file=self._stream, dynamic_ncols=True)
        self._bar.set_postfix_str(", ".join(words), refresh=False)
        self._bar.update(step - self._bar.n)

    def _show_line(self, step: int, words: List[str]) -> None:
        if self.steps_per_second and step < self._steps:
            left = round((self._steps - step) / self.steps_per_second)
            words = words + [f"{datetime.timedelta(seconds=left)} left"]
        print(f"step {step} of {self._steps}: {', '.join(words)}", file=self._stream, flush=True)


class Progress(tf.train.SessionRunHook):
    """Shows the progress of a session, and ends one whose steps an earlier run has all done.

        hooks = [progress.Progress(loss, steps, samples_per_run=32 * progress.devices())]

    Every worker of a job needs the hook, as the workers fetch the loss together. In an Estimator it belongs into
    `training_hooks` of the model function, which makes the loss.
    """

    def __init__(self, loss: tf.Tensor, steps: int, samples_per_run: int, stream: Optional[IO[str]] = None) -> None:
        """
        Args:
          loss: a scalar.
          steps, samples_per_run, stream: as for `Display`; a run is a call of `session.run`.
        """
        self._loss = loss
        self._steps = steps
        self.display = Display(steps, samples_per_run, stream)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        step = _global_step(session)
        self.display.begin(step)
        if step >= self._steps:
            coord.request_stop()  # StopAtStepHook would end it after one step more

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self.display.take(float(run_values.results), lambda: _global_step(run_context.session))

    def end(self, session: tf.Session) -> None:
        self.display.end(lambda: _global_step(session))


class KerasProgress(tf.keras.callbacks.Callback):
    """Shows the progress of `fit` of Keras, whose batches are the steps."""

    def __init__(self, steps: int, samples_per_run: int, first_step: int = 0, stream: Optional[IO[str]] = None) -> None:
        """
        Args:
          steps, samples_per_run, stream: as for `Display`; a run is a batch.
          first_step: how many steps an earlier run has done.
        """
        super().__init__()
        self._step = first_step
        self._display = Display(steps, samples_per_run, stream)

    def on_train_begin(self, logs: Any = None) -> None:
        self._display.begin(self._step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        self._display.take(float(logs["loss"]), lambda: self._step)

    def on_train_end(self, logs: Any = None) -> None:
        self._display.end(lambda: self._step)


def devices() -> int:
    """The number of devices of the job; 1 in a script without EPL."""
    cluster = _cluster()
    return 1 if cluster is None else max(1, cluster.total_gpu_num)


def _is_first_worker() -> bool:
    cluster = _cluster()
    return cluster is None or cluster.worker_index == 0


def _cluster() -> Any:
    """EPL's cluster; None if the script does not use EPL."""
    epl = sys.modules.get("epl")
    return None if epl is None else epl.Env.get().cluster


def _global_step(session: tf.Session) -> int:
    return int(session.run(tf.train.get_global_step(session.graph)))
