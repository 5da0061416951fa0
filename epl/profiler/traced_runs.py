"""The base of hooks that trace some runs of a session: it chooses the runs and traces them."""

from typing import Any

import tensorflow.compat.v1 as tf

from epl.profiler import step_stats


def check_counts(hook: Any, **counts: Any) -> None:
    """Checks arguments of a hook, or of a callback, that count something.

    Raises:
      ValueError: one of them is not a number of at least 1.
    """
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} of {type(hook).__name__} is {value!r}: expected 1 or more.")


class TracedRunsHook(tf.train.SessionRunHook):
    """Traces every `save_steps`th run of a session until `max_steps` runs have been made.

    A run is one call of `MonitoredSession.run`, whatever it fetches; runs are counted from 1, across sessions that the
    hook lives through. Subclasses say in `profile` what to do with the record.
    """

    _partition_graphs = False  # whether the record has the graphs as TensorFlow ran them

    def __init__(self, save_steps: int = 1, max_steps: int = 5) -> None:
        """Checks the numbers.

        Raises:
          ValueError: they are not numbers of at least 1, or no run would be traced.
        """
        check_counts(self, save_steps=save_steps, max_steps=max_steps)
        if save_steps > max_steps:
            raise ValueError(
                "{} would trace no run: save_steps is {} and max_steps {}. Give max_steps at least the value of "
                "save_steps.".format(type(self).__name__, save_steps, max_steps)
            )
        self._save_steps = save_steps
        self._max_steps = max_steps
        self._runs = 0
        self._tracing = False

    def before_run(self, run_context: Any) -> Any:
        """Asks for a trace of the runs that are due."""
        self._runs += 1
        self._tracing = self._runs <= self._max_steps and self._runs % self._save_steps == 0
        return tf.train.SessionRunArgs(None, options=self._options()) if self._tracing else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Hands the record of a traced run on."""
        if self._tracing:
            self._tracing = False
            self.profile(run_context.session, run_values.run_metadata, self._runs)

    def profile(self, session: tf.Session, metadata: tf.RunMetadata, run: int) -> None:
        """Handles the record of a run; `run` is its number."""
        raise NotImplementedError

    def _options(self) -> tf.RunOptions:
        return step_stats.run_options(self._partition_graphs)
