"""MemoryProfilerHook: the memory of each device over a step, as a table (csv) and as a picture (png)."""

import csv
import logging
import os
from typing import Any, Dict, List, Optional

import tensorflow.compat.v1 as tf

from epl.profiler import memory, output_files
from epl.profiler.memory import Timeline
from epl.profiler.traced_runs import TracedRunsHook

logger = logging.getLogger("epl")

_HEADER = ("time_us", "op", "bytes", "live_bytes")
_GB = 1e9


class MemoryProfilerHook(TracedRunsHook):
    """Writes what each device holds over a step, and logs its peak.

        tf.train.MonitoredTrainingSession(hooks=[MemoryProfilerHook(save_steps=2, max_steps=4)])

    For each traced run n and each device of the session it writes `profile_step_<n>_<device>.csv` and, where
    matplotlib is installed, `profile_step_<n>_<device>.csv.png`. Each worker of a job writes its own devices.
    """

    def __init__(
        self,
        save_steps: int = 1,
        max_steps: int = 5,
        output_dir: str = output_files.DEFAULT_FOLDER,
        visualize: bool = True,
        dump_metadata: bool = False,
    ) -> None:
        """Nothing is written before the session begins.

        Args:
          save_steps: one of so many runs is traced, those whose number it divides.
          max_steps: the last run that may be traced.
          output_dir: the folder, which is created if it is missing; "" is the current one.
          visualize: whether pictures are drawn.
          dump_metadata: whether the tf.RunMetadata is kept as well, serialized, in `run_metadata_<n>.bin`.

        Raises:
          ValueError: `save_steps` or `max_steps` is below 1, or `save_steps` the larger one.
        """
        super().__init__(save_steps, max_steps)
        self._folder = output_dir
        self._visualize = visualize
        self._dump_metadata = dump_metadata

    def begin(self) -> None:
        """Makes the folder, so that an error appears before the training."""
        output_files.make_folder(self._folder)

    def profile(self, session: tf.Session, metadata: tf.RunMetadata, run: int) -> None:
        """Writes the files of a run."""
        prefix = os.path.join(self._folder, f"profile_step_{run}_")
        profile_memory(metadata, prefix, self._visualize, session.graph)
        if self._dump_metadata:
            name = output_files.own_file(f"run_metadata_{run}", ".bin")
            with open(os.path.join(self._folder, name), "wb") as target:
                target.write(metadata.SerializeToString())


def profile_memory(
    run_metadata: tf.RunMetadata,
    prefix_name: str = "",
    visualize: bool = True,
    graph: Optional[tf.Graph] = None,
) -> List[Dict[str, Any]]:
    """Writes the memory timeline of each device of a traced step, and logs the peaks.

    Args:
      run_metadata: of a run with `tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)`.
      prefix_name: what the file names begin with, a folder included; `<device>.csv` follows.
      visualize: whether a picture of each is drawn, where matplotlib is installed.
      graph: that of the session; the default graph if not given.

    Returns:
      A dict for each device, with its name under "device", the bytes that variables and constants hold under "persist",
      and the most bytes at once, these included, under "peak_memory".

    Raises:
      ValueError: the run was not traced.
    """
    if not run_metadata.step_stats.dev_stats:
        raise ValueError(
            "The tf.RunMetadata has no step_stats: pass options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE) "
            "and run_metadata to Session.run."
        )
    found = memory.timelines(run_metadata, graph or tf.get_default_graph())
    visualize = visualize and _can_draw()
    for timeline in found:
        title = output_files.title_of_device(timeline.device)
        logger.info("Device: %s, peak memory: %.6f GB (%d bytes)", title, timeline.peak / _GB, timeline.peak)
        path = f"{prefix_name}{output_files.file_part(title)}.csv"
        _write_csv(timeline, path)
        if visualize:
            _draw(timeline, title, path + ".png")
    return [{"device": one.device, "persist": one.persistent, "peak_memory": one.peak} for one in found]


def _write_csv(timeline: Timeline, path: str) -> None:
    """One row for each change; the first row has the bytes before the step."""
    start = timeline.changes[0].time_us if timeline.changes else 0
    with open(path, "w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(_HEADER)
        writer.writerow((0, "", timeline.persistent, timeline.persistent))
        writer.writerows((change.time_us - start, change.op, change.bytes, change.live) for change in timeline.changes)


def _can_draw() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        logger.warning(
            "The memory timelines are written as csv alone, without pictures, as matplotlib cannot be imported (%s): "
            "`pip install matplotlib`, or pass visualize=False.",
            error,
        )
        return False
    return True


def _draw(timeline: Timeline, title: str, path: str) -> None:
    """Live bytes over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    start = timeline.changes[0].time_us if timeline.changes else 0
    times = [0.0] + [(change.time_us - start) / 1e3 for change in timeline.changes]
    live = [timeline.persistent / 1e6] + [change.live / 1e6 for change in timeline.changes]
    figure = Figure(figsize=(10, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(1, 1, 1)
    axes.fill_between(times, live, step="post", alpha=0.4)
    axes.step(times, live, where="post")
    axes.axhline(timeline.persistent / 1e6, linestyle="--", label="variables and constants")
    axes.set_xlabel("time (ms)")
    axes.set_ylabel("live memory (MB)")
    axes.set_title(f"{title}: at most {timeline.peak / 1e6:.3f} MB")
    axes.legend(loc="upper right")
    figure.savefig(path)
