"""Checkpoints of a graph with sharded variables: its Savers write and read the shards of all ranks.

`savers.py` changes the ops of Savers, `checkpoint_parts.py` lets other processes write their shards.
"""

import contextlib
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.ops.job import Job
from epl.ops.waits import Limits
from epl.parallel.plan.agreement import process_server
from epl.parallel.sharded_variables.checkpoint_parts import CheckpointParts, Read
from epl.parallel.sharded_variables.part_writes import PartWrites
from epl.parallel.sharded_variables.savers import Slice, complete_savers, slices_of, value_of
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils import tf_compat


class Checkpoints:
    """Completes the Savers of a graph with sharded variables, also while sessions run in several processes."""

    def __init__(self, graph: Graph, variables: ShardedVariables) -> None:
        """Takes the registry, which is empty yet."""
        self._completed_through = 0  # number of the last op that was completed
        self._graph = graph
        self._variables = variables
        self._parts: Optional[CheckpointParts] = None  # where there are several processes
        self._values: Dict[str, tf.Tensor] = {}  # of the slices that this process writes
        self._reads: List[Read] = []  # of all sessions

    def complete(self, prefixes: Sequence[str]) -> None:
        """Lets Savers read the shards of all ranks of this process, and write each shard once.

        Args:
          prefixes: of the copies of these ranks.
        """
        slices = self._slices(prefixes)
        job = Job.current()
        assert job is not None
        groups = [owner.group for owner in self._variables.owners.values()]
        if self._parts is None and any(group.owners[rank] for group in groups for rank in group.writers):
            own = self._written(slices)
            self._values = {one.variable: value_of(self._graph.tf_graph, one.variable) for one in own}
            held = {one.variable: (one.full_name, one.spec) for one in own}
            communication = Env.get().config.communication
            limits = Limits(communication.stall_warning, communication.timeout)
            self._parts = CheckpointParts(_companion(job, sorted(set(groups[0].owners))), held, limits)
            if job.process == 0:  # the others follow
                Env.get().hold(self._graph.tf_graph, self._parts, self._parts.leave)
        parts = self._parts if job.process == 0 else None
        complete_savers(self._graph.tf_graph, slices, self._completed_through, parts)
        self._completed_through = tf_compat.last_op_id(self._graph.tf_graph)

    def _slices(self, prefixes: Sequence[str]) -> Dict[str, List[Slice]]:
        """The slices that the ranks of this process hold, see `slices_of`."""
        slices: Dict[str, List[Slice]] = {}
        for setting, owner in self._variables.owners.items():
            group = owner.group
            places = [(prefix, group.place(group.rank + copy).rank) for copy, prefix in enumerate(prefixes)]
            slices.update(slices_of(self._variables.of(setting), places, self._variables.full_names(setting)))
        return slices

    def _written(self, slices: Mapping[str, Sequence[Slice]]) -> List[Slice]:
        """The slices that this process writes into checkpoints: one rank writes each shard."""
        found = []
        for name in self._variables.variables:
            group = self._variables.owner_of(name).group
            writers = group.writers
            found += [one for copy, one in enumerate(slices[name]) if group.rank + copy in writers and not one.empty]
        return found

    def extend(self) -> None:
        """Completes ops that were built after the first run, before a session gets them."""
        tf_graph, rewrite = self._graph.tf_graph, self._graph.rewritten
        assert rewrite is not None  # a session has it
        with self._graph.late_lock:
            if tf_compat.last_op_id(tf_graph) > self._completed_through:
                with tf_compat.unfinalized(tf_graph), self._graph.building_own_ops():
                    for owner in self._variables.owners.values():
                        owner.follow_late(self._completed_through)
                    self.complete([rewrite.prefix(copy) for copy in range(rewrite.local_replicas)])

    def session_begins(self, read: Callable[[Sequence[tf.Tensor]], List[Any]], writes: PartWrites) -> int:
        """Notes a session.

        Args:
          read: gives values without a step of the plan.
          writes: tells how its variables in parts got their values outside of steps.

        Returns:
          The session's number.
        """
        if self._parts is None:
            return 0
        self._reads.append(lambda names: read([self._values[name] for name in names]))
        return self._parts.attach(self._reads[-1], writes)

    def feeds(self, session: int) -> Dict[tf.Tensor, Any]:
        """Further feeds for a run of a session, in case it saves."""
        return {} if self._parts is None else self._parts.feeds(session)

    def step(self) -> ContextManager[object]:
        """Inside, this process runs a step of all processes."""
        if self._parts is None:
            return contextlib.ExitStack()
        return self._parts.step()

    def session_closes(self, session: int) -> None:
        """To be called before a session closes: its shards end with it."""
        if self._parts is not None:
            self._parts.close(session)


def _companion(job: Job, processes: Sequence[int]) -> Job:
    """Joins the processes that build graphs; blocks until all of them do."""
    server = process_server()
    if server is None:
        return job.companion()
    return job.companion(processes, lambda key, text: server.service.exchange(key, text)[0])
