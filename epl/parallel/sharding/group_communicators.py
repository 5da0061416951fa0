"""The communicators of the ranks that hold shards of variables; each is opened at the start or at its first use.

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
      name: prefix of their names.
      groups: ranks of the job, by group; each group has all shards.
      owners: by rank of the job, the process that builds its graph.
      rank: the first rank of this process.
      resharder: moves data between the ranks of a group.
      between_groups: moves data between the ranks with the same shard; None if there is one group.
      sub_communicators: of groups and of ranks with the same shard, without those of single fetches.
      unopened: those that are opened together with the communicators of the plan, see `_open`.
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
          processes: for each stage, by rank of the job, the process that runs it.
          process: this process. If it owns no rank, the ops that it builds are not used.
          transport: of the communicators that are opened later.
          fp16_scale: as in Resharder.
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
        """The group of a rank of the job, and the number of the shard that the rank holds of each variable."""
        return self._first.place(rank)

    def by_rank(self, values: Sequence[Any]) -> Tuple[Any, ...]:
        """Values by shard -> the same values by rank of the job."""
        return tuple(values[self.place(rank).rank] for rank in range(len(self.owners)))

    @property
    def writers(self) -> List[int]:
        """By shard, the rank of the job that writes it into checkpoints."""
        return [min(holders) for holders in zip(*self.groups)]

    @property
    def resharders(self) -> List[Resharders]:
        """All resharders that move data in a step."""
        first: Resharders = (self.resharder, self.between_groups)
        return [first, *self._in_branches.values(), *self._further.values()]

    @property
    def collectives(self) -> List[tf.Operation]:
        """The collectives of the first rank."""
        return [op for pair in self.resharders for one in pair if one is not None for op in one.collectives]

    def in_branch(self, context: Any) -> Resharders:
        """The resharders of a control-flow context: their collectives run only if the branch is taken."""
        if id(context) not in self._in_branches:
            opened = self._communicators(f"branch{len(self._in_branches)}", 0)
            self._in_branches[id(context)] = self._resharders_of(opened)
        return self._in_branches[id(context)]

    def further(self, what: str, stage: int, transport: str = "") -> Resharder:
        """A resharder of a stage with a stream of its own, named by its purpose."""
        if what not in self._further:
            self._further[what] = self._resharders_of(self._communicators(what, stage, transport))
        return self._further[what][0]

    def opened(self, what: str, stage: int) -> SubCommunicators:
        """New communicators of the groups for ops of a stage; may block until every process does the same."""
        communicators = self._communicators(what, stage)
        self._open(communicators)
        return communicators

    def _communicators(self, what: str, stage: int, transport: str = "") -> SubCommunicators:
        name, owners = f"{self.name}/{what}", self._processes[stage]
        return SubCommunicators(name, self.groups, owners, transport or self._transport, self._first.opened)

    def _resharders_of(self, communicators: SubCommunicators, fp16_scale: Optional[int] = None) -> Resharders:
        """The resharders of new communicators and of those of the ranks with the same shard; opens both."""
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

        Processes that only run stages of others build no graphs. If there are such processes, communicators are opened
        together with those of the plan, or one by one after that.
        """
        if not communicators.opened:
            communicators.open(communicators.owners[self.rank])
            Env.get().hold(self._graph.tf_graph, communicators, communicators.close)
        elif self._graph.rewritten is None:
            self.unopened += communicators.specs()
        else:
            server = Env.get().process_server
            assert server is not None  # the model spans processes
            server.open(self._graph.tf_graph, communicators.specs())
