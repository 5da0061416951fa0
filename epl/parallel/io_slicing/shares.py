"""Which files of a list a worker reads: the rule of `io.slicing`, `io.unbalanced_io_slicing`, `io.drop_last_files`.

Pure arithmetic on names and counts. Finding file lists in a graph is `epl/parallel/io_slicing/file_lists.py`; writing
the result into the graph is `epl/parallel/io_slicing/rewrite.py`.
"""

import functools
import math
import random
from typing import NamedTuple, Sequence, Tuple


class SliceResult(NamedTuple):
    """The part of a file list that one worker reads."""

    files: Tuple[bytes, ...]  # in the order of the list; shuffled when the whole list is repeated
    indices: Tuple[int, ...]  # the positions of `files` in the whole list
    reason: str  # one line: how the share came about
    remedy: str = ""  # what divides a list that stays whole


def slice_files(
    files: Sequence[bytes], local_replicas: Sequence[int], worker: int, unbalanced: bool, drop_last: bool
) -> SliceResult:
    """Returns the share of a file list that one worker reads.

    With g the greatest common divisor of the replica counts, the list is dealt into `sum(local_replicas) / g` parts,
    file i to part i modulo the number of parts, and a worker with r replicas owns r / g consecutive parts:

        local_replicas (2, 1), 6 files, 3 parts     part   0 1 2 0 1 2
                                                    file   a b c d e f     worker 0: a b d e    worker 1: c f

    The list stays whole, for every worker, when there are fewer files than parts, or when the parts would differ in
    size and neither `unbalanced` nor `drop_last` is given. A worker then reads it r / g times, so that the epochs of
    workers with different numbers of replicas stay equally long; read more than once, it is shuffled, always in the
    same way for a worker (the seed is the index of the worker).

    Args:
      files: the whole list.
      local_replicas: the number of replicas on every worker, at least 1 each.
      worker: the index of the worker in `local_replicas`.
      unbalanced: deal also when the parts differ in size (by one file). Wins over `drop_last`.
      drop_last: leave out the last files, at most one fewer than there are parts, so that all parts have one size.

    Raises:
      ValueError: a replica count is below 1, or `worker` is not an index of `local_replicas`.
    """
    if not local_replicas or min(local_replicas) < 1:
        raise ValueError(f"local_replicas is {list(local_replicas)}: expected at least one worker, each with 1 or more")
    if not 0 <= worker < len(local_replicas):
        raise ValueError(f"worker is {worker}: expected 0 to {len(local_replicas) - 1}, as local_replicas has")
    unit = functools.reduce(math.gcd, local_replicas)
    parts = sum(local_replicas) // unit
    own = local_replicas[worker] // unit
    first = sum(local_replicas[:worker]) // unit
    count, rest = len(files), len(files) % parts
    if count < parts:
        remedy = f"Write the data into at least {parts} files, or divide records by Dataset.shard and switch it off."
        return _whole(files, own, worker, f"{count} files cannot be divided into {parts} parts", remedy)
    if rest and not (unbalanced or drop_last):
        reason = (
            f"{count} files do not divide evenly into {parts} parts "
            "(io.unbalanced_io_slicing or io.drop_last_files would slice them)"
        )
        remedy = (
            f"Make the number of files a multiple of {parts}, or set io.unbalanced_io_slicing, by which some parts get "
            "one file more, or io.drop_last_files."
        )
        return _whole(files, own, worker, reason, remedy)
    reason = f"part {first}" if own == 1 else f"parts {first} to {first + own - 1}"
    reason += f" of {parts}"
    if rest and unbalanced:
        reason += ", some parts one file larger"
    elif rest:
        count -= rest
        reason += f", the last {rest} left out"
    indices = tuple(i for i in range(count) if first <= i % parts < first + own)
    return SliceResult(tuple(files[i] for i in indices), indices, reason)


def _whole(files: Sequence[bytes], times: int, worker: int, reason: str, remedy: str) -> SliceResult:
    """Returns the whole list `times` times over."""
    indices = list(range(len(files))) * times
    if times > 1:
        random.Random(worker).shuffle(indices)
        reason += f"; the whole list {times} times, shuffled"
    else:
        reason += "; the whole list"
    return SliceResult(tuple(files[i] for i in indices), tuple(indices), reason, remedy)
