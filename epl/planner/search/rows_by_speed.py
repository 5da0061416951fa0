"""Rows for devices of different speed and memory, so that the slowest is done as early as it can be.

    device   speed        memory             rows
    0        1            enough             12
    1        half of it   enough              6
    2        1            for two rows        2

What does not shrink with the rows (weights and optimizer slots; launching ops) is told apart from what does. Rows go,
one after the other, to the device that would be done first with one more and has memory for it. No other division has
an earlier end: the row that ends last could have gone to no other device without ending later. So this is the optimum
of what Whale's Algorithm 1 approaches by moving load from devices without memory to those with the least to do.
"""

import heapq
from typing import List, NamedTuple, Optional, Sequence, Tuple

from epl.utils.errors import PlanError


class RowLoad(NamedTuple):
    """What rows cost on one device.

    Attributes:
      seconds: of a step without rows, and of each row.
      memory: bytes without rows, and of each row.
      limit: bytes of the device; None: no limit.
      name: of the device, for messages.
    """

    seconds: Tuple[float, float]
    memory: Tuple[float, float]
    limit: Optional[float]
    name: str


def most_rows(load: RowLoad, rows: int) -> int:
    """The rows, `rows` at most, for which a device has memory; -1 if it has none for the model itself."""
    if load.limit is None:
        return rows
    free = load.limit - load.memory[0]
    if free < 0:
        return -1
    return rows if load.memory[1] * rows <= free else int(free // load.memory[1])


def share_rows(rows: int, loads: Sequence[RowLoad], granule: int = 1) -> Tuple[int, ...]:
    """Rows of each device: at least `granule`, a multiple of it, and all together `rows`.

    Args:
      rows: of the global batch, a multiple of `granule`.
      loads: of the devices.
      granule: the smallest number of rows that a device can have more, such as one for each micro batch.

    Raises:
      PlanError: there are too few rows, or too little memory.
    """
    if rows % granule or rows < granule * len(loads):
        raise PlanError(
            f"A batch of {rows} rows cannot be shared out in multiples of {granule} to {len(loads)} replicas, each of "
            "which needs some: give a larger batch, or fewer micro batches."
        )
    most = [most_rows(load, rows) // granule * granule for load in loads]
    _refuse_too_little_memory(rows, loads, most, granule)
    given = [granule] * len(loads)
    waiting = [(_end(load, 2 * granule), number) for number, load in enumerate(loads) if most[number] > granule]
    heapq.heapify(waiting)
    for _ in range(rows // granule - len(loads)):
        _, number = heapq.heappop(waiting)
        given[number] += granule
        if given[number] < most[number]:
            heapq.heappush(waiting, (_end(loads[number], given[number] + granule), number))
    return tuple(given)


def _end(load: RowLoad, rows: int) -> float:
    return load.seconds[0] + load.seconds[1] * rows


def _refuse_too_little_memory(rows: int, loads: Sequence[RowLoad], most: Sequence[int], granule: int) -> None:
    lacking = [
        f"{load.name} lacks {load.memory[0] + granule * load.memory[1] - load.limit:.3g} bytes for {granule} row(s)"
        for load, fitting in zip(loads, most)
        if fitting < granule and load.limit is not None
    ]
    if lacking:
        raise PlanError(
            "The model does not fit with any rows: {}. Shard its state (zero.level), recompute activations "
            "(gradient_checkpoint.type), or cut it into stages.".format("; ".join(_some(lacking)))
        )
    if sum(most) < rows:
        raise PlanError(
            "All devices together have memory for {} of the {} rows of a batch: {}. Give a smaller batch, more micro "
            "batches, or more devices.".format(
                sum(most), rows, "; ".join(_some([f"{load.name} for {n}" for load, n in zip(loads, most)]))
            )
        )


def _some(words: List[str], most: int = 4) -> List[str]:
    return words if len(words) <= most else words[:most] + [f"and {len(words) - most} others"]
