"""The default weight of a replica in means: the rows of the batch that it reads.

    get_next --> rows --> weight        share of a replica: its rows / rows of all replicas

A short last batch weighs less than a full one, as on one device. In a pipeline the rows of all micro batches count.
With several data sources the first one in the script that has rows counts; a replica that reads no data weighs 1.
`epl.runtime.feeds` sets the weight of fed batches.
"""

from typing import List, Optional

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.parallel.replication.batch_division import deserialized
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat


def run(rewrite: RewriteContext) -> None:
    """Sets the weight of replica 0 to the rows that it reads; leaves it if it reads no data."""
    weight = rewrite.weight
    if weight is None or rewrite.earlier is not None:
        return
    view = rewrite.view = current_view(rewrite)
    source = next(iter(_sources(rewrite, view)), None)
    if source is None:
        return
    sources = [rewrite.operation(prefix + source.name) for prefix in rewrite.micro_prefixes_of(source.name)]
    with rewrite.building("rows"):
        rows = tf.add_n([_rows(rewrite, one) for one in sources])
    tf_compat.set_input(rewrite.remember(weight.op), 0, rows)
    rewrite.counted = frozenset(one.name for one in sources)


def without_copied_row(rewrite: RewriteContext, value: tf.Tensor, replica: int) -> tf.Tensor:
    """Zeros if a replica has no row of a divided batch, and computes on a row of another replica; else the value."""
    if rewrite.batch_index is None:
        return value
    return value * tf.cast(tf.sign(rewrite.weights[replica]), value.dtype.base_dtype)


def current_view(rewrite: RewriteContext) -> GraphView:
    """The view of an earlier pass, brought up to date; a new one if there is none."""
    if rewrite.view is None:
        return GraphView(rewrite.tf_graph)
    return rewrite.view.followed(rewrite.tf_graph, rewrite.user_nodes)


def _sources(rewrite: RewriteContext, view: GraphView) -> List[tf.Operation]:
    """The data sources with rows that the gradients of every step need, in the order of the script."""
    gradients = [view.index[name] for name in rewrite.gradients()]
    needed = rewrite.needed_by(view, gradients, view.of_types(op_types.SHARED_STATE))
    ops = [rewrite.operation(view.nodes[node].name) for node in view.of_types(op_types.DATA_SOURCES) if node in needed]
    return [
        op for op in ops if tf_compat.control_flow_context_of(op) is None and _with_rows(op) is not None
    ]  # fmt: skip


def _with_rows(source: tf.Operation) -> Optional[tf.Tensor]:
    """The output whose first dimension counts the rows; for a sparse tensor, its dense shape."""
    outputs = [tensor for tensor in source.outputs if tensor.dtype not in (tf.variant, tf.resource)]
    open_rows = [tensor for tensor in outputs if tensor.shape.ndims and tf.dimension_value(tensor.shape[0]) is None]
    sparse = [op.outputs[2] for tensor in source.outputs for op in deserialized(tensor)]
    known = [tensor for tensor in outputs if tensor.shape.ndims]
    unknown = [tensor for tensor in outputs if tensor.shape.ndims is None]
    return next(iter(open_rows + sparse + known + unknown), None)


def _rows(rewrite: RewriteContext, source: tf.Operation) -> tf.Tensor:
    """The number of rows that a data source reads, float64 []."""
    if source.name in rewrite.rows_read:
        return rewrite.rows_read[source.name]
    with_rows = _with_rows(source)
    assert with_rows is not None
    if with_rows.op is not source:
        return tf.cast(with_rows[0], tf.float64)
    if with_rows.shape.ndims and tf.dimension_value(with_rows.shape[0]) is not None:
        return tf.constant(tf.dimension_value(with_rows.shape[0]), tf.float64)
    # A scalar is one row.
    return tf.cast(tf.concat([tf.shape(with_rows), [1]], axis=0)[0], tf.float64)


PASS = Pass(
    "count_rows",
    run,
    "replicas",
    provides=names("counted"),
    requires=names("weight rows_read micro_batched gates barriers later_writes orders"),
    after=names("merge_global_outputs"),
)
