"""Exposed communication: the time of a traced step in which a device communicates and does not compute.

    computes       ######   ###########        ####
    collectives         ------------    ---------
    exposed             ***             *******

A collective lasts until all of its ranks have come, so the time in which it waits for a slower rank counts as well.
"""

from typing import Iterable, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.profiler import step_stats
from epl.profiler.roles import RoleKind, Roles
from epl.profiler.step_flops import TRANSFERS
from epl.profiler.step_stats import Execution

_Interval = Tuple[int, int]


class Exposure(NamedTuple):
    """The communication of one device in a step.

    Attributes:
      device: as the session names it.
      step_s: seconds from the first op of the session to the last one.
      communication_s: seconds in which at least one collective runs on the device.
      exposed_s: those of them in which the device computes nothing.
    """

    device: str
    step_s: float
    communication_s: float
    exposed_s: float


def exposures(metadata: tf.RunMetadata, tf_graph: tf.Graph) -> List[Exposure]:
    """The communication of each device to which the plan gives a replica or a stage, by name.

    On a GPU the kernels of its streams are what it computes, without those of NCCL, which communicate, and without
    copies of memory; elsewhere the ops are. Copies, transfers between processes, and ops that wait for the input
    pipeline, are neither computation nor communication.

    Args:
      metadata: the record of the step.
      tf_graph: the graph of the session. There are no devices if EPL did not rewrite it.

    Raises:
      ValueError: the run was not traced.
    """
    ran = step_stats.traced_executions(metadata)
    step_ns = max(one.end_ns for one in ran) - min(one.start_ns for one in ran)
    roles = Roles(tf_graph)
    found = []
    for device in sorted({one.device for one in ran}):
        if roles.place(device) is not None:
            collectives, computes = _busy([one for one in ran if one.device == device], roles)
            covered = _overlap(collectives, computes)
            length = _length(collectives)
            found.append(Exposure(device, step_ns / 1e9, length / 1e9, (length - covered) / 1e9))
    return found


def exposed_share(found: Sequence[Exposure]) -> float:
    """The exposed part of a step, 0 to 1: the mean over the devices; 0 without devices."""
    shares = [one.exposed_s / one.step_s for one in found if one.step_s]
    return sum(shares) / len(shares) if shares else 0.0


def _busy(ran: Iterable[Execution], roles: Roles) -> Tuple[List[_Interval], List[_Interval]]:
    """When a device communicates, and when it computes; without overlaps."""
    collectives, ops, kernels = [], [], []
    on_gpu = False  # also if all that is in its streams communicates or copies
    for one in ran:
        on_gpu = on_gpu or bool(one.stream)
        kind = roles.of(one.op, one.device, one.op_type).kind
        interval = (one.start_ns, one.end_ns)
        if kind == RoleKind.COLLECTIVE or (one.stream and "nccl" in _kernel(one)):
            collectives.append(interval)
        elif one.stream:
            if "memcpy" not in _kernel(one):
                kernels.append(interval)
        elif kind != RoleKind.TRANSFER and one.op_type not in TRANSFERS | op_types.DATA_SOURCES:
            ops.append(interval)
    return _union(collectives), _union(kernels if on_gpu else ops)


def _kernel(one: Execution) -> str:
    """What ran in a stream of a GPU, in lower case: the kernel and the stream, without the name of the op.

    The record has `op:type::kernel`, or the kernel alone, in whose name C++ may have `::`.
    """
    launched_by_op = one.op_type and not one.op_type.startswith(":")
    return f"{one.op_type if launched_by_op else one.op} {one.stream}".lower()


def _union(intervals: Iterable[_Interval]) -> List[_Interval]:
    """The same time as intervals that do not overlap, in order."""
    found: List[_Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _length(intervals: Iterable[_Interval]) -> int:
    return sum(end - start for start, end in intervals)


def _overlap(first: Sequence[_Interval], second: Sequence[_Interval]) -> int:
    """The length of the time that is in both; each without overlaps, in order."""
    length = at = other = 0
    while at < len(first) and other < len(second):
        start, end = max(first[at][0], second[other][0]), min(first[at][1], second[other][1])
        length += max(0, end - start)
        if first[at][1] < second[other][1]:
            at += 1
        else:
            other += 1
    return length
