"""Gives the moving averages of batch norm the mean of what the replicas would write, so that all copies stay equal.

    replica 0   rows --> mean, variance --> layer           its own statistics
                                 '--> difference --.
                                                   +--> ALL-REDUCE --> mean, weighted with rows --> assign_sub
    replica 1   rows --> mean, variance --> difference

The values of a group of writes travel together, in one collective. `whole_writes.py` has chosen them. The mean of the
replicas' means is that of all rows; the mean of their variances leaves out how far the means are apart.

No collective runs in a write by hand, a run without gradients in which every replica is fed all rows. Nor does one run
where a job of several workers reads data without gradients, as the others may not do so: each replica then writes from
its own rows, which is told (`replica_rows.py`, `epl/runtime/run_plan.py`).
"""

from typing import List, Sequence

import tensorflow.compat.v1 as tf

from epl.parallel.plan.communicators import AVERAGED_WRITES
from epl.parallel.replication.merge_outputs import mean_of_all
from epl.parallel.replication.replica_rows import ReplicaRows
from epl.parallel.replication.whole_writes import AveragedWrite
from epl.parallel.rewriting.by_hand import unless_by_hand
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat


def run(rewrite: RewriteContext) -> None:
    """Rewires the averaged writes of replica 0."""
    found = rewrite.graph.state_of(ReplicaRows)
    if found is None or not found.averaged:
        return
    lowered = found.lowered.union(write.op for group in found.averaged for write in group)
    rewrite.graph.keep(ReplicaRows, found._replace(averaged=(), lowered=lowered))
    for number, group in enumerate(found.averaged):
        with rewrite.building(f"averaged_writes/{number}"):
            _average(rewrite, number, group)


def _average(rewrite: RewriteContext, number: int, group: Sequence[AveragedWrite]) -> None:
    ops = [rewrite.remember(rewrite.operation(write.op)) for write in group]
    values = [op.inputs[write.position] for op, write in zip(ops, group)]
    name = f"{AVERAGED_WRITES}/{number}"
    communicator = rewrite.communicator(f"{rewrite.plan.name}/{name}")
    weight = rewrite.weight
    assert weight is not None  # there are several replicas

    def mean(own: tf.Tensor) -> tf.Tensor:
        return mean_of_all(communicator, rewrite.base_rank, name, own, weight)[0]

    whole, _ = unless_by_hand(rewrite, tf.concat([tf.reshape(one, [-1]) for one in values], 0), mean)
    sizes = [one.shape.num_elements() for one in values]
    parts: List[tf.Tensor] = tf.split(tf.reshape(whole, [sum(sizes)]), sizes)
    for op, write, value, part in zip(ops, group, values, parts):
        tf_compat.set_input(op, write.position, tf.reshape(part, value.shape))


PASS = Pass(
    "average_writes",
    run,
    "replicate.state",
    adds=names("by_hand of_all_rows collectives"),
    requires=names("weight"),
    after=names("lower_writes"),
)
