"""Reading tf.RunMetadata: which op ran where and when, and what it allocated.

    values, metadata = step_stats.run(session, [loss, train_op], feed_dict)
    for execution in step_stats.executions(metadata):
        ...

This module knows only TensorFlow's records. `roles.py` says to which part of the model an op belongs, `memory.py` has
the bytes over time.
"""

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.profiler.fused_ops import plain_type

# "name = Type(inputs)"; with bytes first for an op that allocates much: "[cpu 1.0MB 1.0MB] name = Type(inputs)".
_LABEL = re.compile(r"(?:\[[^\]]*\] )*\S+ = ([^\s(]+)\(")
# TensorFlow's profiler lists ops a second time, with the times of its own.
_SECOND_LIST = "/host:CPU"
# GPU kernels are listed by stream, in addition to their launches: "/device:GPU:0/stream:7", "/device:GPU:0/memcpy".
_STREAM = re.compile(r"^(.*/device:[^/]+|/gpu:\d+)/(stream:[^/]+|memcpy)$")


class Execution(NamedTuple):
    """One execution of an op. An op of a loop has one for each iteration; a dead branch has none.

    Attributes:
      op: its name. Transfers between processes have a name of TensorFlow's own, RecvTensor.
      device: where it ran, as the session names it.
      start_ns, end_ns: since the epoch; the end is that of the kernel.
      op_type: type of the op that ran, maybe a fused one, as `fused_ops.plain_type` says; "" if the record lacks it.
      stream: the stream of a GPU in which the kernel ran; "" for the op itself.
    """

    op: str
    device: str
    start_ns: int
    end_ns: int
    op_type: str
    stream: str


class Allocation(NamedTuple):
    """Memory that an op allocated, or, with negative bytes, released memory.

    Attributes:
      op: the op that allocated it.
      device: where that op ran.
      allocator: name of the allocator.
      time_us: since the epoch.
      bytes: as the allocator rounds them.
    """

    op: str
    device: str
    allocator: str
    time_us: int
    bytes: int


def run_options(partition_graphs: bool = False) -> tf.RunOptions:
    """The options of a run that is traced; `partition_graphs` adds the graphs as TensorFlow ran them."""
    return tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=partition_graphs)


def run(
    session: tf.Session, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None, partition_graphs: bool = False
) -> Tuple[Any, tf.RunMetadata]:
    """Runs one step with a full trace.

    Args:
      session: an open session.
      fetches, feed_dict: as for `Session.run`.
      partition_graphs: whether the graphs that TensorFlow ran are kept as well.

    Returns:
      The fetched values, and the record of the run.
    """
    metadata = tf.RunMetadata()
    values = session.run(fetches, feed_dict, options=run_options(partition_graphs), run_metadata=metadata)
    return values, metadata


def trace(session: tf.Session, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None) -> List[Execution]:
    """Runs one step and returns the executions, by start."""
    return executions(run(session, fetches, feed_dict)[1])


def traced_executions(metadata: tf.RunMetadata) -> List[Execution]:
    """All executions, by start; at least one.

    Raises:
      ValueError: the run was not traced.
    """
    found = executions(metadata)
    if not found:
        raise ValueError(
            "The tf.RunMetadata has no step_stats: pass options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE) "
            "and run_metadata to Session.run."
        )
    return found


def executions(metadata: tf.RunMetadata) -> List[Execution]:
    """All executions, by start."""
    found = []
    devices = {device for device, _ in node_stats(metadata) if not _STREAM.match(device)}
    for device, stats in node_stats(metadata):
        match = _STREAM.match(device)
        start = stats.all_start_nanos or stats.all_start_micros * 1000
        length = _length_ns(stats)
        op = stats.node_name.partition(":")[0]
        place, stream = match.groups() if match else (device, "")
        if stream:  # GPU devices are listed without their process
            full = [name for name in devices if name.endswith(place)]
            place = full[0] if len(full) == 1 else place
        found.append(Execution(op, place, start, start + length, op_type(stats), stream))
    return sorted(found, key=lambda execution: (execution.start_ns, execution.end_ns))


def _length_ns(stats: Any) -> int:
    """From the start of an op to the end of its kernel.

    Not to the end of the record: TensorFlow passes the outputs of an op on before it closes the record, so ops that
    wait for it may run on another thread by then.
    """
    return (
        stats.op_end_rel_nanos
        or stats.op_end_rel_micros * 1000
        or stats.all_end_rel_nanos
        or stats.all_end_rel_micros * 1000
    )


def allocations(metadata: tf.RunMetadata) -> List[Allocation]:
    """Allocations and releases, in order; in the same microsecond, releases come first."""
    found = [
        Allocation(stats.node_name, device, memory.allocator_name, record.alloc_micros, record.alloc_bytes)
        for device, stats in node_stats(metadata)
        for memory in stats.memory
        for record in memory.allocation_records
    ]
    return sorted(found, key=lambda allocation: (allocation.time_us, allocation.bytes))


def node_stats(metadata: tf.RunMetadata) -> Iterator[Tuple[str, Any]]:
    """(device, NodeExecStats) of every execution."""
    for device in metadata.step_stats.dev_stats:
        if device.device != _SECOND_LIST:
            for stats in device.node_stats:
                yield device.device, stats


def op_type(stats: Any) -> str:
    """The type of the op of a NodeExecStats; "" if the record does not have it."""
    match = _LABEL.match(stats.timeline_label)
    if match:
        return plain_type(match.group(1))
    return stats.node_name if stats.node_name == "RecvTensor" else stats.node_name.partition(":")[2]
