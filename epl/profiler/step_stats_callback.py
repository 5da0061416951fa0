"""StepStatsCallback: curves of a training in Keras, for TensorBoard and for trackers of experiments."""

from typing import Any, Callable, Dict, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.profiler import output_files, step_stats
from epl.profiler.step_curves import StepCurves
from epl.runtime.keras_callbacks import is_one_number
from epl.utils import tf_compat


class StepStatsCallback:
    """What StepStatsHook is for sessions, for `fit` of Keras, whose callback it is.

        callbacks = [epl.StepStatsCallback(log=mlflow.log_metrics, samples_per_run=256)]  # or log=wandb.log
        model.fit(x, y, batch_size, epochs, callbacks=callbacks)

    The tags are those of StepStatsHook, and at the end of an epoch one for each of its logs: `epl/epoch_loss`,
    `epl/epoch_val_loss`, `epl/epoch_lr`, ... A run is a batch of training, and its step that of the optimizer. The
    time between two epochs, such as that of the validation, is no part of the rates, and neither is the first batch of
    a `fit`. In a job of several workers each worker needs the callback; `log` is called on worker 0 alone.
    """

    model: Any  # set by Keras

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A callback of the Keras that is in use, which is not loaded before it is needed."""
        base: Any = tf.keras.callbacks.Callback
        return object.__new__(cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {}))

    def __init__(
        self,
        output_dir: Optional[str] = None,
        samples_per_run: Optional[int] = None,
        save_steps: int = 100,
        trace_steps: Optional[int] = 1000,
        log: Optional[Callable[..., Any]] = None,
        peak_flops: Optional[float] = None,
    ) -> None:
        """Args, Raises: as for StepStatsHook, whose `loss` is here that of Keras."""
        super().__init__()
        self._curves = StepCurves(self, output_dir, samples_per_run, save_steps, trace_steps, log, peak_flops)
        self._untraced: Optional[Tuple[Any, Any]] = None  # options and metadata of the function in other runs
        self._is_in_batch = False

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        """Opens the event file."""
        self._end_batch_without_rows()
        self._curves.begin()
        self._curves.leave_out_next_run()

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """The rate is that of the training."""
        self._curves.leave_out_pause()

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Asks for a trace in the runs that are due."""
        self._is_in_batch = True
        self._curves.before_run()
        function = self.model.train_function  # a generator has it made in its first run
        if self._curves.traces and function is not None:
            options = step_stats.run_options(output_files.is_first_worker())
            self._untraced = tf_compat.set_run_options(function, options, tf.RunMetadata())

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Writes what is due."""
        metadata = self._end_trace()
        self._is_in_batch = False
        step = self.model.optimizer.iterations
        self._curves.after_run(tf_compat.keras_session(), step, (logs or {}).get("loss"), metadata)

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Writes the logs of the epoch, which are those of all rows; what is no number is passed over."""
        self._end_batch_without_rows()
        step = tf_compat.keras_session().run(self.model.optimizer.iterations)
        if output_files.is_first_worker():
            numbers = {f"epoch_{name}": float(value) for name, value in (logs or {}).items() if is_one_number(value)}
            self._curves.write(numbers, int(step))

    def on_train_end(self, logs: Optional[Dict[str, Any]] = None) -> None:
        """Writes out what is buffered."""
        self._end_batch_without_rows()
        self._curves.end()

    def _end_trace(self) -> Optional[tf.RunMetadata]:
        """What a batch that was traced has shown; the function is as it was."""
        if self._untraced is None:
            return None
        metadata = self.model.train_function.run_metadata
        tf_compat.set_run_options(self.model.train_function, *self._untraced)
        self._untraced = None
        return metadata

    def _end_batch_without_rows(self) -> None:
        """Forgets a batch that began and did not end: the input was at its end, or the batch failed."""
        if self._is_in_batch:
            self._end_trace()
            self._curves.take_back_run()
            self._is_in_batch = False
