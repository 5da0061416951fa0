"""The bytes that each device holds over a traced step.

The records of a step contain its allocations. Variables and constants live longer and are not allocated in the step:
their sizes come from TensorFlow's note at the op, and for resource variables from the graph. The allocator of a GPU
counts all of its bytes itself.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.costs.shapes import TensorType, num_bytes
from epl.profiler import step_stats


class MemoryChange(NamedTuple):
    """An allocation, or a release of memory.

    Attributes:
      time_us: since the epoch.
      op: the op that allocated it.
      bytes: negative for a release.
      live: bytes that the device holds from then on, the persistent ones included.
    """

    time_us: int
    op: str
    bytes: int
    live: int


class Timeline(NamedTuple):
    """The memory of one device in one step.

    Attributes:
      device: as the session names it; followed by "/host" for host memory that the ops of a GPU allocated.
      persistent: bytes of the variables and constants that the step uses.
      peak: most bytes at once, the persistent ones included.
      changes: in order.
    """

    device: str
    persistent: int
    peak: int
    changes: Tuple[MemoryChange, ...]


def timelines(metadata: tf.RunMetadata, tf_graph: Optional[tf.Graph] = None) -> List[Timeline]:
    """The memory of each device in a traced step.

    Args:
      metadata: of the step.
      tf_graph: has the sizes of resource variables; without it they do not count.

    Returns:
      One timeline for each device that held anything, by name.
    """
    persistent = _persistent(metadata, tf_graph)
    counted: Dict[str, int] = {}
    for device, stats in step_stats.node_stats(metadata):
        for memory in stats.memory:
            place = _place(device, memory.allocator_name)
            counted[place] = max(counted.get(place, 0), memory.allocator_bytes_in_use)
    allocations: Dict[str, List[step_stats.Allocation]] = {}
    for allocation in step_stats.allocations(metadata):
        allocations.setdefault(_place(allocation.device, allocation.allocator), []).append(allocation)
    found = []
    for device in sorted(set(persistent) | set(allocations)):
        live = peak = persistent.get(device, 0)
        changes = []
        for allocation in allocations.get(device, []):
            live += allocation.bytes
            peak = max(peak, live)
            changes.append(MemoryChange(allocation.time_us, allocation.op, allocation.bytes, live))
        peak = max(peak, counted.get(device, 0))
        if peak:
            found.append(Timeline(device, persistent.get(device, 0), peak, tuple(changes)))
    return found


def _place(device: str, allocator: str) -> str:
    """The device whose memory an allocator hands out. An op on a GPU also takes pinned memory of the host."""
    on_host = re.search(r"gpu", device, re.IGNORECASE) and re.search(r"cpu|host", allocator, re.IGNORECASE)
    return device + "/host" if on_host else device


def _persistent(metadata: tf.RunMetadata, tf_graph: Optional[tf.Graph]) -> Dict[str, int]:
    """Bytes by device that were there before the step and stay."""
    sizes: Dict[Tuple[str, str], int] = {}
    for device, stats in step_stats.node_stats(metadata):
        op_type = step_stats.op_type(stats)
        if op_type in op_types.WRITES:  # notes the variables that it writes a second time
            continue
        # What an op took in the step is among its allocations, even if TensorFlow also notes it as lasting: as it does
        # for temporary variables and for the elements of TensorArrays.
        size = stats.memory_stats.persistent_memory_size - _taken(stats)
        name = stats.node_name
        if op_type in op_types.RESOURCE_VARIABLES and tf_graph is not None:
            name, size = _variable(tf_graph.get_operation_by_name(name))
        if size > 0:
            sizes[device, name] = max(size, sizes.get((device, name), 0))
    result: Dict[str, int] = {}
    for (device, _), size in sizes.items():
        result[device] = result.get(device, 0) + size
    return result


def _taken(stats: Any) -> int:
    """Bytes that an op allocated, NodeExecStats."""
    records = (record for memory in stats.memory for record in memory.allocation_records)
    return sum(record.alloc_bytes for record in records if record.alloc_bytes > 0)


def _variable(op: tf.Operation) -> Tuple[str, int]:
    """A key for a resource variable on its device, and its bytes; 0 if its shape is not known."""
    shape = tf.TensorShape(op.get_attr("shape"))
    known = TensorType(tuple(shape.as_list()), op.get_attr("dtype")) if shape.is_fully_defined() else None
    return op.get_attr("shared_name").decode() or op.name, 0 if known is None else num_bytes(known)
