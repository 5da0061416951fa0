"""TraceHook, and `trace_step` for plain sessions: the timeline of a step as a file for Chrome or Perfetto."""

import logging
import os
from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf

from epl.profiler import chrome_trace, output_files, step_stats
from epl.profiler.traced_runs import TracedRunsHook

logger = logging.getLogger("epl")


class TraceHook(TracedRunsHook):
    """Writes the timeline of a step with one row per device, stage, micro batch and communicator.

        tf.train.MonitoredTrainingSession(hooks=[TraceHook(save_steps=10, max_steps=10)])

    For each traced run n it writes `trace_step_<n>.json`, in a job of several workers each its own
    `trace_step_<n>_worker_<w>.json`; `epl-trace merge` joins those of one run.
    """

    def __init__(self, save_steps: int = 1, max_steps: int = 5, output_dir: str = output_files.DEFAULT_FOLDER) -> None:
        """Nothing is written before the session begins.

        Args:
          save_steps: one of so many runs is traced, those whose number it divides.
          max_steps: the last run that may be traced.
          output_dir: the folder, made if it is not there; "" is the current one.

        Raises:
          ValueError: `save_steps` or `max_steps` is below 1, or `save_steps` the larger one.
        """
        super().__init__(save_steps, max_steps)
        self._folder = output_dir

    def begin(self) -> None:
        """Makes the folder, so that an error appears before the training."""
        output_files.make_folder(self._folder)

    def profile(self, session: tf.Session, metadata: tf.RunMetadata, run: int) -> None:
        """Writes the trace of a run."""
        _write(metadata, session.graph, self._folder, run)


def trace_step(
    session: tf.Session,
    fetches: Any,
    feed_dict: Optional[Dict[Any, Any]] = None,
    output_dir: str = output_files.DEFAULT_FOLDER,
    step: int = 1,
) -> Any:
    """Runs a step in a plain session, and writes its timeline as `TraceHook` does.

    Args:
      session: an open session. In a job of several workers each makes the call, as it makes any step.
      fetches, feed_dict: as for `Session.run`.
      output_dir: the folder, made if it is not there; "" is the current one.
      step: a number for the name of the file.

    Returns:
      The fetched values.
    """
    output_files.make_folder(output_dir)
    values, metadata = step_stats.run(session, fetches, feed_dict)
    _write(metadata, session.graph, output_dir, step)
    return values


def _write(metadata: tf.RunMetadata, tf_graph: tf.Graph, folder: str, step: int) -> None:
    path = os.path.join(folder, output_files.own_file(f"trace_step_{step}", ".json"))
    logger.info("The timeline of run %d is in %s", step, chrome_trace.write(metadata, tf_graph, path, step))
