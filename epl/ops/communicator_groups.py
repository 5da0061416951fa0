"""Communicators of groups of ranks that do the same collectives at the same time, like those of MPI_Comm_split.

    rank of the job    0      1      2      3
    group              0      0      1      1        two groups of two
    rank in the group  0      1      0      1

An op that is built for one rank of the job fits another rank once its communicator and rank are those of that group.
"""

from typing import Dict, List, NamedTuple, Sequence, Tuple

from epl.ops.communicator import Communicator
from epl.ops.service import CommunicatorSpec


class Place(NamedTuple):
    """Where a rank of the job is: the number of its group, and its rank in that."""

    group: int
    rank: int


class SubCommunicators:
    """One communicator for each group; a process has those whose ranks it owns, at least one of them.

    Attributes:
      name: of all communicators together; with one group, that of the communicator itself.
      groups: ranks of the job, by group.
      owners: by rank of the job, the process that owns it.
      transport: as that of Communicator.
      opened: whether all processes open them by other means (see `specs`); this process may then build for any rank.
    """

    def __init__(
        self,
        name: str,
        groups: Sequence[Sequence[int]],
        owners: Sequence[int],
        transport: str = "auto",
        opened: bool = False,
    ) -> None:
        """Opens nothing yet.

        Args:
          name: unique within the job.
          groups: ranks of the job by group; each rank is in one of them.
          owners: by rank of the job, the process that owns it.
          transport, opened: as those of Communicator.
        """
        self.name = name
        self.transport = transport
        self.opened = opened
        self.groups: Tuple[Tuple[int, ...], ...] = tuple(tuple(ranks) for ranks in groups)
        self.owners = tuple(owners)
        self._opened: Dict[int, Communicator] = {}
        self._places = {
            rank: Place(number, position)
            for number, ranks in enumerate(self.groups)
            for position, rank in enumerate(ranks)
        }

    def place(self, rank: int) -> Place:
        """The group of a rank of the job, and its rank in it."""
        return self._places[rank]

    def name_at(self, rank: int) -> str:
        """The name of the communicator that a rank of the job takes part in."""
        return self.name if len(self.groups) == 1 else f"{self.name}/{self.place(rank).group}"

    def specs(self) -> List[CommunicatorSpec]:
        """The communicators to open."""
        return [
            CommunicatorSpec(self.name_at(ranks[0]), tuple(self.owners[rank] for rank in ranks), self.transport)
            for ranks in self.groups
        ]

    def open(self, process: int) -> None:
        """Opens the communicators of the ranks of this process; blocks until the others have opened theirs."""
        ranks = [rank for rank, owner in enumerate(self.owners) if owner == process]
        for rank in sorted(ranks, key=self.place):  # in every process in the order of the groups
            self.at(rank)

    def at(self, rank: int) -> Communicator:
        """The communicator of a rank of this process; see `open`."""
        group = self.place(rank).group
        if group not in self._opened:
            owners = [self.owners[member] for member in self.groups[group]]
            self._opened[group] = Communicator(self.name_at(rank), owners, self.transport, opened=self.opened)
        return self._opened[group]

    def close(self) -> None:
        """Ends the communicators of this process."""
        for communicator in self._opened.values():
            communicator.close()
