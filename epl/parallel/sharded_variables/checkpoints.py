"""Checkpoints of a graph with parts: its Savers write and read the parts of all ranks, whatever has cut them.

Which ops of a Saver are changed is `savers.py`'s, what other processes write is `checkpoint_parts.py`'s.
"""

import atexit
from typing import Any, Callable, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.ops.job import Job
from epl.ops.waits import Limits
from epl.parallel.plan.agreement import process_server
from epl.parallel.sharded_variables.checkpoint_parts import CheckpointParts
from epl.parallel.sharded_variables.savers import Slice, complete_savers, value_of
from epl.utils import tf_compat


class Checkpoints:
    """What Savers need to know of the parts that some Shards hold."""

    def __init__(self, graph: Graph, holders: Sequence[Any]) -> None:
        """Takes the Shards; each has all ranks of the job."""
        self._completed_through = 0  # number of the last op that was looked at
        self._graph = graph
        self._holders = list(holders)
        self._parts: Optional[CheckpointParts] = None  # where there are several processes
        self._values: Dict[str, tf.Tensor] = {}  # of the parts in this process

    def complete(self, prefixes: Sequence[str]) -> None:
        """Lets Savers read the parts of all ranks of this process, and write each part once.

        Args:
          prefixes: of the copies of these ranks.
        """
        slices: Dict[str, List[Slice]] = {}
        for holder in self._holders:
            slices.update(holder.slices(prefixes))
        job = Job.current()
        assert job is not None
        if self._parts is None and any(holder.writes_elsewhere for holder in self._holders):
            own = [one for holder in self._holders for one in holder.written(prefixes)]
            self._values = {one.variable: value_of(self._graph.tf_graph, one.variable) for one in own}
            held = {one.variable: (one.full_name, one.spec) for one in own}
            communication = Env.get().config.communication
            limits = Limits(communication.stall_warning, communication.timeout)
            self._parts = CheckpointParts(_companion(job, self._holders[0].processes), held, limits)
            atexit.register(self._parts.leave)
        parts = self._parts if job.process == 0 else None
        complete_savers(self._graph.tf_graph, slices, self._completed_through, parts)
        self._completed_through = tf_compat.last_op_id(self._graph.tf_graph)

    def extend(self) -> None:
        """Sees to what was built behind the first run, before a session gets it."""
        tf_graph, rewrite = self._graph.tf_graph, self._graph.plan
        with self._graph.late_lock:
            if tf_compat.last_op_id(tf_graph) > self._completed_through:
                with tf_compat.unfinalized(tf_graph):
                    for holder in self._holders:
                        holder.follow_late()
                    self.complete([rewrite.prefix(copy) for copy in range(rewrite.local_replicas)])

    def session_begins(self, read: Callable[[Sequence[tf.Tensor]], List[Any]]) -> int:
        """A session has the variables; `read` gives values without a step of the plan. Returns the session's number."""
        if self._parts is None:
            return 0
        return self._parts.attach(lambda names: read([self._values[name] for name in names]))

    def feeds(self, session: int) -> Dict[tf.Tensor, Any]:
        """What a run of a session is to be fed besides, in case it saves."""
        return {} if self._parts is None else self._parts.feeds(session)

    def step_done(self) -> None:
        """A step of all processes has ended here."""
        if self._parts is not None:
            self._parts.step_done()

    def session_closes(self, session: int) -> None:
        """A session is about to close; the variables of its parts go with it."""
        if self._parts is not None:
            self._parts.close(session)


def _companion(job: Job, processes: Sequence[int]) -> Job:
    """Joins the processes that build graphs; blocks until all of them do."""
    server = process_server()
    if server is None:
        return job.companion()
    return job.companion(processes, lambda key, text: server.service.exchange(key, text)[0])
