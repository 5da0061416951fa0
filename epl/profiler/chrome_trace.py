"""A traced step as a file for chrome://tracing or https://ui.perfetto.dev, in the Trace Event Format (JSON).

    process   a device, with the replica and the stages that the plan puts there
    thread    its actions (0F0 0F1 0B0 ...), then for each stage and micro batch the ops of the forward and of the
              backward pass, then updates, one thread for each communicator, transfers, the plan's own ops
    counter   the bytes that the device holds

If ops of a lane (a row of the picture) run at the same time, the lane has several threads.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.plan.schedule import BACKWARD, Action
from epl.profiler import actions, memory, output_files, step_stats
from epl.profiler.roles import Role, RoleKind, Roles
from epl.profiler.step_stats import Execution
from epl.utils import trace_events
from epl.utils.trace_events import TraceEvent, TraceSlice

# Lanes of a device, top to bottom.
_ACTIONS = "actions"
_ORDER = {
    kind: place
    for place, kind in enumerate(
        (
            _ACTIONS,
            RoleKind.FORWARD,
            RoleKind.BACKWARD,
            RoleKind.UPDATE,
            RoleKind.COLLECTIVE,
            RoleKind.TRANSFER,
            RoleKind.PLAN,
            RoleKind.OTHER,
        )
    )
}


class _Lane(NamedTuple):
    order: Tuple[int, int, int, str]
    title: str


_LaneSlice = Tuple[_Lane, TraceSlice]


def events_of_step(metadata: tf.RunMetadata, tf_graph: tf.Graph) -> List[TraceEvent]:
    """The events of a traced step.

    Args:
      metadata: the record of the step.
      tf_graph: the graph of the session.

    Raises:
      ValueError: the run was not traced.
    """
    ran = step_stats.traced_executions(metadata)
    roles = Roles(tf_graph)
    action_of = _actions_of(roles)
    by_device: Dict[str, List[Execution]] = {}
    for execution in ran:
        by_device.setdefault(execution.device, []).append(execution)
    live = {timeline.device: timeline for timeline in memory.timelines(metadata, tf_graph)}
    events: List[TraceEvent] = []
    for number, device in enumerate(sorted(by_device)):
        pid = 1000 * output_files.worker_of_device(device) + number + 1
        events += trace_events.process_events(pid, _title(device, roles), output_files.origin_of_device(device))
        slices = [_slice(execution, roles) for execution in by_device[device]]
        slices += _spans(by_device[device], action_of)
        events += trace_events.lane_events(pid, _lanes(slices))
        if device in live:
            changes = [(change.time_us, change.live) for change in live[device].changes]
            events += trace_events.counter_events(pid, "live bytes", "bytes", changes)
    return events


def write(metadata: tf.RunMetadata, tf_graph: tf.Graph, path: str, run: int) -> str:
    """Writes the trace of a step to a file; returns its path.

    Args:
      metadata: the record of the step.
      tf_graph: the graph of the session.
      path: of the file.
      run: number of the run, by which `merged_trace.py` tells which traces of workers belong together.

    Raises:
      ValueError: the run was not traced.
    """
    return trace_events.write_trace(events_of_step(metadata, tf_graph), path, {"run": run})


def _title(device: str, roles: Roles) -> str:
    title = output_files.title_of_device(device)
    place = roles.place(device)
    rewrite = roles.rewrite
    if place is None or rewrite is None:
        return title
    words = [title, f"replica {rewrite.base_rank + place[0]}"]
    if len(rewrite.plan.stages) > 1:
        words.append("stage " + ", ".join(map(str, place[1])))
    return ", ".join(words)


def _actions_of(roles: Roles) -> Dict[str, Action]:
    """The action of each op of a pipeline, recomputed ones included."""
    rewrite = roles.rewrite
    if rewrite is None or len(rewrite.plan.stages) == 1:
        return {}
    found = actions.of_ops(rewrite)
    copies = {copy for copies in rewrite.recomputed.values() for copy in copies} & rewrite.micro_batched
    for name in copies:
        for micro_batch in range(rewrite.plan.num_micro_batch):
            for replica in range(rewrite.local_replicas):
                in_replica = rewrite.micro_prefix(micro_batch) + name
                action = Action(rewrite.stage_of[in_replica], BACKWARD, micro_batch)
                found[rewrite.prefix(replica) + in_replica] = action
    return found


def _spans(ran: Sequence[Execution], action_of: Dict[str, Action]) -> List[_LaneSlice]:
    """The actions of one device as slices."""
    first = min(execution.start_ns for execution in ran)
    lane = _Lane((_ORDER[_ACTIONS], 0, 0, ""), _ACTIONS)
    return [
        (
            lane,
            TraceSlice(
                str(span.action),
                RoleKind.BACKWARD if span.action.kind == BACKWARD else RoleKind.FORWARD,
                first + int(span.start_us * 1e3),
                first + int(span.end_us * 1e3),
                {"stage": span.action.stage, "micro batch": span.action.micro_batch, "ops": span.ops},
            ),
        )
        for spans in actions.spans(ran, action_of).values()
        for span in spans
    ]


def _slice(execution: Execution, roles: Roles) -> _LaneSlice:
    role = roles.of(execution.op, execution.device, execution.op_type)
    args: Dict[str, Any] = {"op": execution.op, "type": execution.op_type}
    for key, value in (("stage", role.stage), ("micro batch", role.micro_batch)):
        if value is not None:
            args[key] = value
    if role.communicator:
        args["communicator"] = role.communicator
        args["key"] = role.key
    lane = _lane(role) if not execution.stream else _Lane((len(_ORDER), 0, 0, execution.stream), execution.stream)
    return lane, TraceSlice(execution.op, role.kind, execution.start_ns, execution.end_ns, args)


def _lane(role: Role) -> _Lane:
    """Passes have a lane for each stage and micro batch, collectives for each communicator."""
    kind = RoleKind.BACKWARD if role.kind == RoleKind.RECOMPUTE else role.kind
    if kind == RoleKind.COLLECTIVE:
        return _Lane((_ORDER[kind], 0, 0, role.communicator), "communicator " + role.communicator)
    if kind not in (RoleKind.FORWARD, RoleKind.BACKWARD, RoleKind.UPDATE):
        return _Lane((_ORDER[kind], 0, 0, ""), kind)
    words = [] if role.stage is None else [f"stage {role.stage}"]
    words += [] if role.micro_batch is None else [f"micro batch {role.micro_batch}"]
    copy = -1 if role.micro_batch is None else role.micro_batch
    return _Lane((_ORDER[kind], role.stage or 0, copy, ""), ", ".join(words + [kind]))


def _lanes(slices: Sequence[_LaneSlice]) -> List[Tuple[str, List[TraceSlice]]]:
    """The lanes of a device in order, with their titles."""
    by_lane: Dict[_Lane, List[TraceSlice]] = {}
    for lane, one in slices:
        by_lane.setdefault(lane, []).append(one)
    return [(lane.title, by_lane[lane]) for lane in sorted(by_lane)]
