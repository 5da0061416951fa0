"""Which devices of a job are split over together, when a split is over fewer than all: each group is a replica.

A group has a part of each variable on each of its devices, and a batch of its own:

    rank     0   1   2   3      epl.split(2) on four devices
    group    0   0   1   1
    part     0   1   0   1
"""

from typing import Sequence, Tuple

Groups = Tuple[Tuple[int, ...], ...]


def split_groups(count: int, slices: Sequence[Sequence[str]], devices: Sequence[str]) -> Groups:
    """The ranks of each group.

    Args:
      count: devices of a group, of which the number of all devices is a multiple.
      slices: devices of each model replica, as the layout of the cluster has them; used if they are of that size.
      devices: of the job, by rank.
    """
    if any(len(replica) != count for replica in slices):
        slices = [devices[begin : begin + count] for begin in range(0, len(devices), count)]
    rank = {device: number for number, device in enumerate(devices)}
    return tuple(sorted(tuple(sorted(rank[device] for device in replica)) for replica in slices))
