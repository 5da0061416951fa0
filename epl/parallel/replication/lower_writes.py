"""Gives the writes of a step values of all rows, which every replica computes alike: `replicate.state` is "all".

    sums of the replica's rows --> update --> assign     =>     sums --> all-reduce --> copy of update --> assign
    features of its rows --------> update --> assign     =>     features --> all-gather --> copy of update --> assign

The forward pass keeps its own ops: only what a write takes is computed anew, and `whole_writes.py` has chosen it. The
collectives of a write have a communicator of their own, so that a run may make one write without the others.

A write by hand, a run without gradients in which every replica is fed all rows, has the wholes already, and runs no
collective (`epl/parallel/rewriting/by_hand.py`).
"""

from typing import Any, Callable, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.parallel.plan.communicators import WHOLE_WRITES
from epl.parallel.replication.merge_outputs import mean_of_all
from epl.parallel.replication.replica_rows import ReplicaRows
from epl.parallel.replication.whole_writes import WholeWrites
from epl.parallel.replication.wholes import Values, Wholes, gathered
from epl.parallel.rewriting.by_hand import unless_by_hand
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.sharding.row_flow import Output
from epl.utils import tf_compat


def run(rewrite: RewriteContext) -> None:
    """Rewires the writes of all rows of replica 0."""
    found = rewrite.graph.state_of(ReplicaRows)
    whole = None if found is None else found.whole
    if found is None or whole is None or not whole.writes:
        return
    lowered = found.lowered.union(whole.view.nodes[write.node].name for write in whole.writes)
    rewrite.graph.keep(ReplicaRows, found._replace(whole=None, lowered=lowered))
    wholes = _Wholes(rewrite, whole)
    for number, write in enumerate(whole.writes):
        op = rewrite.remember(rewrite.operation(whole.view.nodes[write.node].name))
        values = wholes.of_write(number, [(one, op.inputs[at]) for at, one in write.values])
        for (at, _), value in zip(write.values, values):
            if op.inputs[at] is not value:
                tf_compat.set_input(op, at, value)


class _Wholes(Wholes):
    """Wholes that every replica of the job computes alike: built on replica 0, which is cloned.

    A write by hand leaves their collectives out.
    """

    def __init__(self, rewrite: RewriteContext, whole: WholeWrites) -> None:
        super().__init__(rewrite.tf_graph, whole.view, whole.lowering)
        self._rewrite = rewrite
        self._name = ""
        self._last: List[tf.Operation] = []  # the last collective of the write
        self._collectives = 0  # so far

    def of_write(self, number: int, values: Sequence[Tuple[Output, tf.Tensor]]) -> List[tf.Tensor]:
        """The wholes of what a write takes: outputs of the view, and the tensors that they are now."""
        self._name, self._last = f"{WHOLE_WRITES}/{number}", []
        with self._rewrite.building(self._name):
            return [self.whole(one, [now]) for one, now in values]

    def _copy(self, op: tf.Operation, inputs: Sequence[tf.Tensor], replica: int) -> List[tf.Tensor]:
        with tf.device(self._rewrite.device(0, replica)):
            return super()._copy(op, inputs, replica)

    def _sum(self, values: Values) -> tf.Tensor:
        return self._collective(values[0], lambda c, r, k, t: c.all_reduce(t, r, k, "sum"))

    def _mean(self, values: Values, rows: Values) -> tf.Tensor:
        return self._collective(values[0], lambda c, r, k, t: mean_of_all(c, r, k, t, rows[0])[0])

    def _concat(self, values: Values, dim: int) -> tf.Tensor:
        return gathered(values[0], dim, lambda rows: self._collective(rows, lambda c, r, k, t: c.all_gather(t, r, k)))

    def _first(self, values: Values) -> tf.Tensor:
        return self._collective(values[0], lambda c, r, k, t: c.broadcast(t, r, k))

    def _collective(self, tensor: tf.Tensor, build: Callable[[Communicator, int, str, tf.Tensor], Any]) -> tf.Tensor:
        """A collective, whose result has the shape that the graph says of the tensor."""
        rewrite = self._rewrite
        key = f"{self._name}/{self._collectives}"
        communicator = rewrite.communicator(f"{rewrite.plan.name}/{self._name}")

        def after_the_last(sent: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies(self._last):
                return build(communicator, rewrite.base_rank, key, sent)

        whole, made = unless_by_hand(rewrite, tensor, after_the_last)
        whole.set_shape(tensor.shape)
        self._last = made[-1:]
        self._collectives += len(made)
        return whole


PASS = Pass(
    "lower_writes",
    run,
    "replicate.state",
    adds=names("by_hand of_all_rows collectives"),
    after=names("recompute offload gather_per_use needed_collectives"),
)
