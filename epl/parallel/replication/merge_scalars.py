"""Gives scalars of a training step, where runs fetch them and summaries take them, their values of all rows.

    replica 0   rows --> correct? --> mean --.
    replica 1   rows --> correct? --> mean --+-- mean of the means, weighted with rows --> fetch

These are plain ops over the replicas of a process, which run when a run asks for them. No other process takes part, so
that a worker may fetch what the others do not: a hook of the chief fetches summaries in some steps. `whole_scalars.py`
has chosen the scalars. The value of replica 0 stays in the graph, for runs of replica 0 alone.
"""

from typing import List, Sequence

import tensorflow.compat.v1 as tf

from epl.ops.weighing import weighed
from epl.parallel.replication.batch_weights import without_copied_row
from epl.parallel.replication.merge_outputs import merge
from epl.parallel.replication.replica_rows import ReplicaRows
from epl.parallel.replication.whole_scalars import WholeScalars
from epl.parallel.replication.wholes import Values, Wholes
from epl.parallel.rewriting.context import RewriteContext, Sibling
from epl.parallel.rewriting.pass_manager import Pass, names


def run(rewrite: RewriteContext) -> None:
    """Builds the scalars of all rows."""
    found = rewrite.graph.state_of(ReplicaRows)
    if found is None or found.scalars is None:
        return
    whole = found.scalars
    merged = found.merged.union(whole.view.nodes[node].name for node, _ in whole.scalars)
    rewrite.graph.keep(ReplicaRows, found._replace(scalars=None, merged=merged))
    prefixes = [rewrite.prefix(replica) for replica in range(rewrite.local_replicas)]
    with rewrite.building("outputs"):
        wholes = _LocalWholes(rewrite, whole, prefixes)
        for node, at in whole.scalars:
            ops = [rewrite.operation(prefix + whole.view.nodes[node].name) for prefix in prefixes]
            values = [op.outputs[at] for op in ops]
            if (node, at) in whole.averaged:
                value = merge("mean", values, rewrite.weights)
            else:
                value = wholes.whole((node, at), values)
            rewrite.merged[ops[0].outputs[at].name] = Sibling(value, "")


class _LocalWholes(Wholes):
    """Values of the rows of all replicas of this process."""

    def __init__(self, rewrite: RewriteContext, whole: WholeScalars, prefixes: Sequence[str]) -> None:
        super().__init__(rewrite.tf_graph, whole.view, whole.lowering, prefixes)
        self._rewrite = rewrite

    def _copy(self, op: tf.Operation, inputs: Sequence[tf.Tensor], replica: int) -> List[tf.Tensor]:
        with tf.device(self._rewrite.device(0, replica)):
            return super()._copy(op, inputs, replica)

    def _sum(self, values: Values) -> tf.Tensor:
        wide = _wide(values[0].dtype)
        total = tf.add_n([tf.cast(one, wide) for one in self._without_copied_row(values)])
        return tf.cast(total, values[0].dtype)

    def _mean(self, values: Values, rows: Values) -> tf.Tensor:
        wide = _wide(values[0].dtype)
        counts = [tf.cast(one, wide) for one in self._without_copied_row(rows)]
        terms = [weighed(tf.cast(one, wide), count) for one, count in zip(values, counts)]
        return tf.cast(tf.add_n(terms) / tf.add_n(counts), values[0].dtype)

    def _concat(self, values: Values, dim: int) -> tf.Tensor:
        if self._rewrite.batch_index is not None:
            values = [
                tf.boolean_mask(one, tf.fill([tf.shape(one)[dim]], weight > 0.0), axis=dim)
                for one, weight in zip(values, self._rewrite.weights)
            ]
        return tf.concat(values, axis=dim)

    def _rows_of_gradients(self) -> Values:
        return self._rewrite.weights

    def _first(self, values: Values) -> tf.Tensor:
        return values[0]

    def _without_copied_row(self, values: Values) -> List[tf.Tensor]:
        return [without_copied_row(self._rewrite, one, replica) for replica, one in enumerate(values)]


def _wide(dtype: tf.DType) -> tf.DType:
    """A type that has room for sums."""
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


PASS = Pass(
    "merge_scalars",
    run,
    "outputs",
    adds=names("merged"),
    requires=names("weights batch_index cloned"),
    after=names("broadcast_variables"),
)
