"""`epl.replicate`: data parallelism for the ops inside."""

from typing import Optional

from epl.strategies.parallel_strategy import ParallelStrategy


class Replicate(ParallelStrategy):
    """The ops inside form one TaskGraph whose replicas consume different data. See `replicate`."""

    name_of_kind = "replicate"


def replicate(device_count: Optional[int] = None, name: Optional[str] = None) -> Replicate:
    """Annotates ops for data parallelism: every replica runs them on its own part of the data.

    Args:
      device_count: devices of one model replica; the number of replicas is inferred from the devices of the job.
        None means 1.
      name: for messages.

    Returns:
      A context manager, and a value for `epl.set_default_strategy`.

    Raises:
      AnnotationError: not a positive whole number.
    """
    return Replicate(device_count, name)
