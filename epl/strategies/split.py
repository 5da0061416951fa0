"""`epl.split`: tensor model parallelism for the ops inside."""

from typing import Optional

from epl.strategies.parallel_strategy import ParallelStrategy


class Split(ParallelStrategy):
    """The ops inside form one TaskGraph that is sharded over devices. See `split`."""

    name_of_kind = "split"


def split(device_count: Optional[int] = None, name: Optional[str] = None) -> Split:
    """Annotates ops to be sharded over `device_count` devices, as if they ran on one.

    Args:
      device_count: number of shards.
      name: for messages.

    Returns:
      A context manager.

    Raises:
      AnnotationError: not a positive whole number.
    """
    return Split(device_count, name)
