"""A prediction as a Chrome trace: its devices, its links, its critical path, and what devices hold."""

from typing import Dict, List, Set

from epl.planner.prediction.prediction import Prediction
from epl.planner.simulator.timeline import ProgramNames, timeline_events
from epl.utils.trace_events import TraceEvent, write_trace


def prediction_events(prediction: Prediction, begin_us: float = 0.0) -> List[TraceEvent]:
    """The events of a predicted step, see `timeline_events`.

    Args:
      prediction: the step.
      begin_us: the time at which it begins.
    """
    lowered, run = prediction.lowered, prediction.run
    devices = [one.name for one in prediction.devices]
    names = ProgramNames(
        [told.name for told in lowered.ops], [told.kind for told in lowered.ops], devices, _pools(prediction)
    )
    persistent = [one.memory.peak - peak.bytes for one, peak in zip(prediction.devices, run.peaks)]
    return timeline_events(lowered.program, run, names, persistent, begin_us)


def write_prediction(prediction: Prediction, path: str) -> str:
    """Writes the trace of a predicted step to a file; returns its path."""
    return write_trace(prediction_events(prediction), path)


def _pools(prediction: Prediction) -> List[str]:
    """Names of the pools: what devices do, and for each link what it carries."""
    lowered = prediction.lowered
    carried: Dict[int, Set[str]] = {}
    for op, told in zip(lowered.program.ops, lowered.ops):
        if op.pool >= 0:
            carried.setdefault(op.pool, set()).add(told.kind + "s")
    devices = len(lowered.program.pools)
    links = range(devices, len(lowered.program.threads))
    return ["computes"] * devices + [
        f"link {pool - devices}: {', '.join(sorted(carried.get(pool, ())))}" for pool in links
    ]
