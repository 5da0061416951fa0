"""Gives the writes of a step values of all rows, which every replica computes alike: `replicate.state` is "all".

    sums of the replica's rows --> update --> assign     =>     sums --> all-reduce --> copy of update --> assign
    features of its rows --------> update --> assign     =>     features --> all-gather --> copy of update --> assign

The forward pass keeps its own ops: only what a write takes is computed anew, and `whole_writes.py` has chosen it. The
collectives of a write have a communicator of their own, so that a run may make one write without the others.

A write by hand, a run without gradients in which every replica is fed all rows, has the wholes already, and runs no
collective (`epl/parallel/rewriting/by_hand.py`).
"""

from typing import Any, Callable, Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import copy_op
from epl.ir.dataflow import data_inputs
from epl.ops.communicator import Communicator
from epl.ops.weighing import weighed
from epl.parallel.replication.replica_rows import ReplicaRows
from epl.parallel.replication.whole_writes import WholeWrites
from epl.parallel.rewriting.by_hand import unless_by_hand
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.sharding.forward_shapes import ASKS_SHAPE
from epl.parallel.sharding.row_flow import COUNT, ROWS, Output
from epl.parallel.sharding.row_lowering import Taken
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


class _Wholes:
    """Builds the wholes of values, each once."""

    def __init__(self, rewrite: RewriteContext, whole: WholeWrites) -> None:
        self._rewrite = rewrite
        self._view = whole.view
        self._lowering = whole.lowering
        self._own: Dict[int, List[tf.Tensor]] = {}
        self._wholes: Dict[Output, tf.Tensor] = {}
        self._counts: Dict[Tuple[Output, int], tf.Tensor] = {}
        self._name = ""
        self._last: List[tf.Operation] = []  # the last collective of the write
        self._collectives = 0  # so far

    def of_write(self, number: int, values: Sequence[Tuple[Output, tf.Tensor]]) -> List[tf.Tensor]:
        """The wholes of what a write takes: outputs of the view, and the tensors that they are now."""
        self._name, self._last = f"whole_writes/{number}", []
        with self._rewrite.building(self._name):
            return [self._whole(one, now) for one, now in values]

    # ---- Values. `now` is the tensor that takes the place of an output: ZeRO and offload give each use of a weight a
    # read of its own, and the one that the view knows may hold nothing.

    def _taken(self, taken: Taken, now: tf.Tensor) -> tf.Tensor:
        return self._whole(taken.output, now) if taken.is_whole else self._of_replica(taken.output, now)

    def _of_replica(self, output: Output, now: tf.Tensor) -> tf.Tensor:
        """An output in the form of the replica."""
        node, at = output
        lowered = self._lowering.found.get(node)
        if lowered is None or lowered.inputs is None:
            return now
        if node not in self._own:
            inputs = zip(lowered.inputs, self._operation(node).inputs)
            copies = self._copy(node, [self._taken(one, tensor) for one, tensor in inputs])
            if lowered.is_drawn:
                copies = [self._collective(one, lambda c, r, k, t: c.broadcast(t, r, k), one.shape) for one in copies]
            self._own[node] = copies
        return self._own[node][at]

    def _whole(self, output: Output, now: tf.Tensor) -> tf.Tensor:
        flow = self._lowering.of(output)
        if flow.is_same:
            return self._of_replica(output, now)
        if output not in self._wholes:
            if flow.kind == COUNT:
                self._wholes[output] = self._whole_count(output, now)
            elif flow.kind == ROWS:
                self._wholes[output] = self._gathered(self._of_replica(output, now), flow.dim)
            else:
                self._wholes[output] = self._summed(output, now)
        return self._wholes[output]

    def _gathered(self, rows: tf.Tensor, dim: int) -> tf.Tensor:
        """The rows of all replicas, in their order."""
        shape = rows.shape
        dims = range(len(shape.as_list()))
        order = [dim, *(other for other in dims if other != dim)]
        back = [order.index(place) for place in dims]
        if dim:
            rows = tf.transpose(rows, order)
        gathered = self._collective(rows, lambda c, r, k, t: c.all_gather(t, r, k), rows.shape)
        if dim:
            gathered = tf.transpose(gathered, back)
            gathered.set_shape(shape)
        return gathered

    def _summed(self, output: Output, now: tf.Tensor) -> tf.Tensor:
        """The sum over the replicas; of a mean, the mean of all rows."""
        tensor = self._of_replica(output, now)
        if self._lowering.of(output).degree:
            return self._collective(tensor, lambda c, r, k, t: c.all_reduce(t, r, k, "sum"), tensor.shape)
        wide = tensor.dtype if tensor.dtype in (tf.float32, tf.float64) else tf.float32
        rows = tf.cast(self._rows_averaged(output[0]), wide)

        def mean(communicator: Communicator, rank: int, key: str, own: tf.Tensor) -> tf.Tensor:
            total, count = communicator.all_reduce([weighed(tf.cast(own, wide), rows), rows], rank, key, "sum")
            return tf.cast(total / count, own.dtype)

        return self._collective(tensor, mean, tensor.shape)

    def _rows_averaged(self, node: int) -> tf.Tensor:
        """The number of the replica's rows of which a node gives the mean."""
        for one, now in zip(self._lowering.inputs_of(node), self._operation(node).inputs):
            flow = self._lowering.of(one.output)
            if flow.kind == ROWS and not one.is_whole:
                return tf.shape(self._taken(one, now))[flow.dim]
        raise ValueError(f"{self._view.nodes[node].name} takes no rows.")

    def _whole_count(self, output: Output, now: tf.Tensor) -> tf.Tensor:
        """A number that the model computes from the sizes of the batch, for the batch of all replicas."""
        node, at = output
        taken = list(zip(data_inputs(self._view, node), self._operation(node).inputs))
        op_type = self._view.types[node]
        if op_type in ASKS_SHAPE:
            one, tensor = taken[at if len(taken) > 1 else 0]
            flow = self._lowering.of(one)
            if flow.kind == ROWS:
                own, rows = self._of_replica(output, now), self._of_replica(one, tensor)
                if op_type == "Size":
                    return self._collective(own, lambda c, r, k, t: c.all_reduce(t, r, k, "sum"), own.shape)
                more = tf.cast(
                    self._count(one, tensor, flow.dim) - tf.shape(rows, out_type=tf.int64)[flow.dim], own.dtype
                )
                return own + more * tf.one_hot(flow.dim, rows.shape.ndims, dtype=own.dtype)
        copies = self._copy(node, [self._whole(one, tensor) for one, tensor in taken])
        return copies[at]

    def _count(self, rows: Output, now: tf.Tensor, dim: int) -> tf.Tensor:
        """The rows of all replicas, int64 []."""
        if (rows, dim) not in self._counts:
            own = tf.shape(self._of_replica(rows, now), out_type=tf.int64)[dim]
            self._counts[rows, dim] = self._collective(own, lambda c, r, k, t: c.all_reduce(t, r, k, "sum"), own.shape)
        return self._counts[rows, dim]

    # ---- Ops.

    def _collective(
        self, tensor: tf.Tensor, build: Callable[[Communicator, int, str, tf.Tensor], Any], shape: tf.TensorShape
    ) -> tf.Tensor:
        """A collective that a write by hand leaves out."""
        rewrite = self._rewrite
        key = f"{self._name}/{self._collectives}"
        communicator = rewrite.communicator(f"{rewrite.plan.name}/{self._name}")

        def after_the_last(sent: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies(self._last):
                return build(communicator, rewrite.base_rank, key, sent)

        whole, made = unless_by_hand(rewrite, tensor, after_the_last)
        whole.set_shape(shape)
        self._last = made[-1:]
        self._collectives += len(made)
        return whole

    def _copy(self, node: int, inputs: Sequence[tf.Tensor]) -> List[tf.Tensor]:
        """A copy of an op, which waits for what the op waits for."""
        op = self._operation(node)
        with tf.control_dependencies(list(op.control_inputs)):
            return list(copy_op(op, inputs, {}).outputs)

    def _operation(self, node: int) -> tf.Operation:
        return self._rewrite.operation(self._view.nodes[node].name)


PASS = Pass(
    "lower_writes",
    run,
    "replicate.state",
    adds=names("by_hand of_all_rows collectives"),
    after=names("recompute offload gather_per_use needed_collectives"),
)
