"""Merges the tensors of the output collections, and the objective, over all replicas.

Global outputs are collectives, built on replica 0 before it is cloned, each on its own communicator so that any of them
can be fetched without the others. Local outputs and the objective are plain ops over the local replicas' tensors, built
after cloning. Means weight each replica by its rows; a mean of no rows is no number, and
weighs nothing.

A value that the ranks of a split group compute together counts once for each group: a group is a replica of the split.
"""

from typing import List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import SAME, clone_nodes
from epl.ir.dataflow import data_descendants
from epl.ops.communicator import Communicator
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.ops.weighing import weighed
from epl.parallel.plan.plan import Output, split_groups
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.rewriting.context import PLAN_SCOPE, RewriteContext, Sibling
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat


def run_global(rewrite: RewriteContext) -> None:
    """Adds the collectives of global outputs to replica 0."""
    for output in _unmerged(rewrite):
        if output.scope == "global" and rewrite.world_size > 1:
            tensor = rewrite.in_replica(output.tensor)
            if _is_of_group(rewrite, output) and len(split_groups(rewrite.plan)) == 1:
                rewrite.merged[output.tensor] = Sibling(tensor, tensor.op.name)  # all ranks compute it together
                continue
            with rewrite.building("outputs", output.stage):
                merged, op = _merge_global(rewrite, output, tensor)
            rewrite.collectives.add(op.name)
            rewrite.merged[output.tensor] = Sibling(merged, op.name)


def run_local(rewrite: RewriteContext) -> None:
    """Adds the merged values of local outputs, and connects summaries of merged tensors to them."""
    for output in _unmerged(rewrite):
        tensor = rewrite.in_replica(output.tensor)
        replicas = _local_replicas(rewrite, output)
        if output.scope == "local" and len(replicas) > 1:
            tensors = [
                rewrite.tf_graph.get_tensor_by_name(rewrite.prefix(replica) + tensor.name) for replica in replicas
            ]
            weights = [rewrite.weights[replica] for replica in replicas]
            with rewrite.building("outputs", output.stage):
                tensors = [_without_copied_row(rewrite, output, *pair) for pair in zip(tensors, weights)]
                rewrite.merged[output.tensor] = Sibling(merge(output.merge, tensors, weights), "")
        elif tensor.name != output.tensor and output.tensor not in rewrite.merged:
            rewrite.merged[output.tensor] = Sibling(tensor, "")
    _update_summaries(rewrite)


def _unmerged(rewrite: RewriteContext) -> List[Output]:
    """The outputs that no earlier rewriting has merged."""
    earlier = set() if rewrite.earlier is None else {output.tensor for output in rewrite.earlier.plan.outputs}
    return [output for output in rewrite.plan.outputs if output.tensor not in earlier]


def _is_of_group(rewrite: RewriteContext, output: Output) -> bool:
    """Whether the ranks of a split group compute the value together."""
    ranks = replica_groups(rewrite.graph)
    return ranks is not None and ranks.is_of_group(output.tensor)


def _local_replicas(rewrite: RewriteContext, output: Output) -> List[int]:
    """The replicas of this process with different values; for a mean all of them, because each has its weight."""
    replicas = list(range(rewrite.local_replicas))
    if not _is_of_group(rewrite, output):
        return replicas
    group_of = {rank: number for number, group in enumerate(split_groups(rewrite.plan)) for rank in group}
    first = {group_of[rewrite.base_rank + replica]: replica for replica in reversed(replicas)}
    return replicas if output.merge == "mean" and len(first) > 1 else sorted(first.values())


def _counted_once(rewrite: RewriteContext, tensor: tf.Tensor, merge: str) -> tf.Tensor:
    """The value of a group on its first rank; on the others zeros (for a sum) or no rows (for a concatenation)."""
    ranks = replica_groups(rewrite.graph)
    assert ranks is not None  # `_is_of_group`
    resharder = ranks.resharder
    count = resharder.own([1] + [0] * (resharder.ranks - 1), tf.int32)
    if merge == "sum":
        return tf.reduce_sum(tensor[tf.newaxis][:count], axis=0)
    rows = tf.reshape(tensor, [1]) if tensor.shape.ndims == 0 else tensor
    return rows[: count * tf.shape(rows)[0]]


def _without_copied_row(rewrite: RewriteContext, output: Output, tensor: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Drops the value of a replica that has no row of a divided batch and computes on a row of another replica."""
    if rewrite.batch_index is None or output.merge == "mean" or _is_of_group(rewrite, output):
        return tensor
    if output.merge == "sum":
        return tensor * tf.cast(tf.sign(weight), tensor.dtype)
    rows = tf.reshape(tensor, [1]) if tensor.shape.ndims == 0 else tensor
    return rows[: tf.cast(tf.sign(weight), tf.int32) * tf.shape(rows)[0]]


def _merge_global(rewrite: RewriteContext, output: Output, tensor: tf.Tensor) -> Tuple[tf.Tensor, tf.Operation]:
    communicator = rewrite.communicator(output.communicator, output.stage)
    rank = rewrite.base_rank
    key = f"output {output.tensor}"
    if output.merge != "mean" and _is_of_group(rewrite, output):
        tensor = _counted_once(rewrite, tensor, output.merge)
    weight = rewrite.weight
    assert weight is not None  # there are several replicas
    tensor = _without_copied_row(rewrite, output, tensor, weight)
    if output.merge == "concat":
        merged = communicator.all_gather(tensor, rank, key)
        return merged, _collective_of(merged)
    if output.merge == "sum":
        merged = communicator.all_reduce(tensor, rank, key, "sum")
        return merged, _collective_of(merged)
    merged, total = mean_of_all(communicator, rank, key, tensor, weight)
    return merged, _collective_of(total)


def mean_of_all(
    communicator: Communicator, rank: int, key: str, tensor: tf.Tensor, weight: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor]:
    """The mean of the tensors of all ranks, each with its weight, by one collective; the sum that it is made of.

    Args:
      communicator: of the ranks.
      rank: the local rank that this is built for.
      key: names the collective.
      tensor: of this rank.
      weight: a scalar; a tensor of weight 0 does not count, whatever it is.
    """
    weighed = _weighed(tensor, weight)
    total, weights = communicator.all_reduce([weighed, tf.cast(weight, weighed.dtype)], rank, key, "sum")
    return tf.cast(total / weights, tensor.dtype), total


def _weighed(tensor: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """The product in a type that has room for it; zeros where the weight is 0, also of what is no number."""
    wide = tensor.dtype if tensor.dtype in (tf.float32, tf.float64) else tf.float32
    wide = wide if tensor.dtype.is_floating else tf.float64
    return weighed(tf.cast(tensor, wide), weight)


def merge(how: str, tensors: Sequence[tf.Tensor], weights: Sequence[tf.Tensor] = ()) -> tf.Tensor:
    """Merges the tensors of several replicas or micro batches.

    Args:
      how: "concat" along axis 0, "sum", or "mean".
      tensors: the tensors, of one dtype.
      weights: the weight of each tensor in a mean; by default all are equal. A tensor of weight 0 does not count,
        whatever it is.
    """
    if how == "concat":
        return tf.concat([tf.reshape(t, [1]) if t.shape.ndims == 0 else t for t in tensors], axis=0)
    if how == "sum":
        return tf.add_n(tensors)
    dtype = tensors[0].dtype
    if not weights:
        if not dtype.is_floating:
            return tf.truncatediv(tf.add_n(tensors), tf.constant(len(tensors), dtype))
        return tf.add_n(tensors) / tf.constant(len(tensors), dtype)
    weighed = [_weighed(tensor, weight) for tensor, weight in zip(tensors, weights)]
    rows = [tf.cast(weight, weighed[0].dtype) for weight in weights]
    return tf.cast(tf.add_n(weighed) / tf.add_n(rows), dtype)  # a mean of integers is truncated


def _collective_of(tensor: tf.Tensor) -> tf.Operation:
    """The collective op that computes a merged tensor, before casts and reshapes."""
    op = tensor.op
    while op.type not in COLLECTIVE_OP_TYPES:
        op = op.inputs[0].op
    return op


def _update_summaries(rewrite: RewriteContext) -> None:
    """Connects summary ops of merged tensors to the merged values; the op and its tag stay the same.

    A fed evaluation merges nothing. So summaries of locally merged values get a copy with the values of replica 0.
    """
    view = rewrite.view
    assert view is not None
    inputs = [
        (node, position, name if ":" in name else name + ":0")
        for node in view.of_types(op_types.SUMMARIES)
        for position, name in enumerate(view.nodes[node].input)
        if name[0] != "^"
    ]
    earlier = {} if rewrite.earlier is None else rewrite.earlier.summarized
    inputs = [one for one in inputs if rewrite.is_new(one[0])]
    added = {node: tensor for node, _, tensor in inputs if tensor in rewrite.merged}
    rewrite.summarized = {**earlier, **added}
    local = [node for node, tensor in added.items() if not rewrite.merged[tensor].op]
    plain = data_descendants(view, local, set()) if local else set()
    prefix = f"{PLAN_SCOPE}/plain/"
    clone_nodes(rewrite.tf_graph, view, plain, [prefix], lambda copy, node: SAME)
    rewrite.plain_summaries.update({view.nodes[node].name: prefix + view.nodes[node].name for node in plain})
    for node, position, tensor in inputs:
        if tensor in rewrite.merged:
            op = rewrite.remember(rewrite.operation(view.nodes[node].name))
            tf_compat.set_input(op, position, rewrite.merged[tensor].tensor)


GLOBAL_PASS = Pass(
    "merge_global_outputs",
    run_global,
    "outputs",
    adds=names("collectives merged"),
    requires=names("weight over_micro_batches batch_index"),
    after=names("order_step_writes"),
)
LOCAL_PASS = Pass(
    "merge_local_outputs",
    run_local,
    "outputs",
    provides=names("summarized plain_summaries"),
    adds=names("merged"),
    requires=names("weights over_micro_batches batch_index cloned"),
    after=names("broadcast_variables merge_scalars sum_metrics"),
)
