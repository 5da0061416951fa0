"""Runs of a split that train nothing: the ranks of one process are all fed the same rows of the batch.

    process 0: ranks 0, 1    rows a b on both       rank 0 is the primary rank: sums over the batch take its rows alone
    process 1: ranks 2, 3    rows c d on both       rank 2 is

If the batch size of an input is written into the model, the copies cannot be left out. Such a run gives values of a
row, and means over rows, as one device does; for all else it is refused.
"""

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel.sharded_variables.fetching import ShardFetches
from epl.parallel.sharding.group_communicators import GroupCommunicators
from epl.parallel.sharding.replicated_rows import ReplicatedRows, primary_ranks_of
from epl.parallel.split.groups import SplitPlan
from epl.parallel.split.program import ENTRY, Program
from epl.parallel.split.replicated_results import first_changed
from epl.utils.errors import FeedError

_FETCH_TOGETHER = "Fetch its gradients in a run of the train op."
_OPEN = (
    "Leave the batch dimension of what is fed open (None), or build the model again in a tf.Graph that does not train "
    "it and restore a checkpoint there, as an Estimator does."
)


class InferenceRows:
    """Which ranks have the same rows in runs that train nothing, and what such a run may ask for.

    Attributes:
      any_open: whether the batch size of some input of the split is not written into the model.
    """

    def __init__(self, graph: Graph, program: Program, group: GroupCommunicators, plan: SplitPlan) -> None:
        """Sets the replicated rows of the group's resharder, where ranks have copies that can be left out."""
        self._graph, self._program, self._group = graph, program, group
        self._primary_ranks = [primary_ranks_of([plan.owners[rank] for rank in ranks]) for ranks in plan.groups]
        self._ranks = group.resharder.ranks
        self._has_copies = any(len(set(ranks)) < self._ranks for ranks in self._primary_ranks)
        open_batches = self._open_batches()
        self.any_open = any(open_batches)
        if self._has_copies and all(open_batches):
            in_one_process = all(set(ranks) == {0} for ranks in self._primary_ranks)
            group.resharder.replicated_rows = ReplicatedRows(self._ranks, in_one_process)

    def _open_batches(self) -> List[bool]:
        """Of each tensor with a batch that enters the split, whether its size is not written into the model."""
        infos = [value.info for value in self._program.values if value.kind == ENTRY]
        return [(info.shape or ())[info.batch] is None for info in infos if info.batch is not None]

    def primary_ranks(self) -> Dict[tf.Tensor, Tuple[Tuple[int, ...], ...]]:
        """As that of ShardOwner: by rank of the job, the first rank of each process in its group."""
        rows, group = self._group.resharder.replicated_rows, self._group
        by_rank = tuple(self._primary_ranks[group.place(rank).group] for rank in range(len(group.owners)))
        return {} if rows is None else dict.fromkeys(rows.switches, by_rank)

    def refuse(
        self, fetches: Sequence[tf.Tensor], objective: Sequence[Any], local: Sequence[Mapping[tf.Tensor, tf.Tensor]]
    ) -> None:
        """Raises FeedError if a run that trains nothing asks for what is not as on one device.

        Args:
          fetches: as `fetch_value` gave them.
          objective: what was differentiated, if the run needs gradients; it is not fed `primary_ranks` then.
          local: tensors of the user's graph -> what a rank has in their place.
        """
        if not self._has_copies or (self._group.resharder.replicated_rows is not None and not objective):
            return
        program = self._program
        inside = [y for y in objective if program.result(y) is not None]  # gradients are of the rows of all ranks
        changed = inside[0] if inside else first_changed(program, [*fetches, *objective], self._numbers(local))
        if changed is not None:
            raise FeedError(
                "{!r} is computed inside of epl.split from the rows of the batch, in a run that trains nothing: each "
                "of the {} devices has all rows that are fed, and what is not of one row, or a mean over them, would "
                "be of as many copies. {}".format(changed.name, self._ranks, _FETCH_TOGETHER if objective else _OPEN)
            )

    def _numbers(self, local: Sequence[Mapping[tf.Tensor, tf.Tensor]]) -> Dict[tf.Tensor, int]:
        """The numbers of the program's values, by all tensors that have them: of the user, of a rank, of fetches."""
        number = self._program.number
        found = {tensor: number[tensor] for tensor in number if self._program.result(tensor) is not None}
        for tensors in local:
            found.update((self._graph.restored(own), number[tensor]) for tensor, own in tensors.items())
        fetches = self._graph.state_of(ShardFetches)
        fetched = {} if fetches is None else fetches.values
        results = [tensor for tensor in fetched if self._program.result(tensor) is not None]
        found.update((fetched[tensor].tensor, number[tensor]) for tensor in results)
        return found
