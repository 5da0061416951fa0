"""The communicators of the ranks that hold the shards of variables, opened at once or when they are needed first.

groups of ranks          one for each group: its ranks hold all shards         resharder
ranks with one shard     one for each shard, where there are several groups    between_groups
later                    for a branch, for another order, for one fetch        in_branch, further, opened
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.ops.communicator_groups import Place, SubCommunicators
from epl.ops.service import CommunicatorSpec
from epl.parallel.sharding.resharding import Resharder, Resharders


class GroupCommunicators:
    """The communicators of groups of ranks that are replicas of each other in data parallelism.

    Attributes:
      name: begins the names of all.
      groups: ranks of the job, by group; each group has all shards.
      owners: by rank of the job, the process that builds its graph.
      rank: the first rank of this process.
      resharder: moves data between the ranks of a group.
      between_groups: moves data between the ranks with the same shard; None if there is one group.
      sub_communicators: of groups and of ranks with the same shard, but for those of single fetches.
      unopened: what is opened together with the communicators of the plan: see `_open`.
    """

    def __init__(
        self,
        graph: Graph,
        first: SubCommunicators,
        processes: Sequence[Sequence[int]],
        process: int,
        transport: str,
        fp16_scale: Optional[int] = None,
    ) -> None:
        """Opens the first communicators: may block until every process does.

        Args:
          graph: the annotated model.
          first: of the groups; their owners build the graphs of the ranks.
          processes: by stage, the process that runs it, by rank of the job.
          process: this one. What it builds is of no use if it owns no rank.
          transport: of the communicators that are opened later.
          fp16_scale: as that of Resharder.
        """
        self._graph = graph
        self._first = first
        self._processes = processes
        self._transport = transport
        self.name, self.groups, self.owners = first.name, first.groups, first.owners
        self.rank = self.owners.index(process) if process in self.owners else 0
        self.unopened: List[CommunicatorSpec] = []
        self.sub_communicators: List[SubCommunicators] = []
        self._further: Dict[str, Resharders] = {}  # by what they are for
        self._in_branches: Dict[int, Resharders] = {}  # by the id of a control-flow context
        self.resharder, self.between_groups = self._resharders_of(first, fp16_scale)

    def place(self, rank: int) -> Place:
        """The group of a rank of the job, and which shard of everything it holds."""
        return self._first.place(rank)

    def by_rank(self, values: Sequence[Any]) -> Tuple[Any, ...]:
        """What is given by shard, by rank of the job."""
        return tuple(values[self.place(rank).rank] for rank in range(len(self.owners)))

    @property
    def writers(self) -> List[int]:
        """By shard, the rank of the job that writes it into checkpoints."""
        return [min(holders) for holders in zip(*self.groups)]

    @property
    def resharders(self) -> List[Resharders]:
        """All that move data of a step."""
        first: Resharders = (self.resharder, self.between_groups)
        return [first, *self._in_branches.values(), *self._further.values()]

    @property
    def collectives(self) -> List[tf.Operation]:
        """Those of the first rank."""
        return [op for pair in self.resharders for one in pair if one is not None for op in one.collectives]

    def in_branch(self, context: Any) -> Resharders:
        """Move the data of a control-flow context, whose collectives run if the branch is taken."""
        if id(context) not in self._in_branches:
            opened = self._communicators(f"branch{len(self._in_branches)}", 0)
            self._in_branches[id(context)] = self._resharders_of(opened)
        return self._in_branches[id(context)]

    def further(self, what: str, stage: int, transport: str = "") -> Resharder:
        """Moves data of a stage in an order of its own, named by what it is for."""
        if what not in self._further:
            self._further[what] = self._resharders_of(self._communicators(what, stage, transport))
        return self._further[what][0]

    def opened(self, what: str, stage: int) -> SubCommunicators:
        """New communicators of the groups for what runs in a stage; may block until every process does the same."""
        communicators = self._communicators(what, stage)
        self._open(communicators)
        return communicators

    def _communicators(self, what: str, stage: int, transport: str = "") -> SubCommunicators:
        name, owners = f"{self.name}/{what}", self._processes[stage]
        return SubCommunicators(name, self.groups, owners, transport or self._transport, self._first.opened)

    def _resharders_of(self, communicators: SubCommunicators, fp16_scale: Optional[int] = None) -> Resharders:
        """Opens communicators, and those of the ranks with the same shard besides."""
        opened = [communicators]
        if len(self.groups) > 1:
            name, owners, transport = communicators.name, communicators.owners, communicators.transport
            holders = list(zip(*self.groups))
            opened.append(SubCommunicators(name + "/between_groups", holders, owners, transport, communicators.opened))
        resharders = []
        for one in opened:
            self._open(one)
            resharders.append(Resharder(one.at(self.rank), one.place(self.rank).rank, "split", fp16_scale))
        self.sub_communicators += opened
        return resharders[0], resharders[1] if len(resharders) > 1 else None

    def _open(self, communicators: SubCommunicators) -> None:
        """Opens communicators; may block until every process does the same.

        Processes that run no more than stages of others do not build graphs: where there are such, all communicators
        are opened when those of the plan are, or one by one after that.
        """
        if not communicators.opened:
            communicators.open(communicators.owners[self.rank])
            Env.get().communicators.append(communicators)
        elif self._graph.rewritten is None:
            self.unopened += communicators.specs()
        else:
            server = Env.get().process_server
            assert server is not None  # the model spans processes
            server.open(communicators.specs())
