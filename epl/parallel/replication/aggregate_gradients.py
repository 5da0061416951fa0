"""Gradients of replica 0 are replaced by the mean (or sum) over all replicas.

    g0 --> identity --> apply            g0 --> +-----------+ --> identity --> apply
    g1 --> identity --> apply     =>     g1 --> | allreduce | --> identity --> apply
                                         w/W -> +-----------+

The weight of a replica is its share of the rows of all replicas (1 / world size when nothing is fed). The sum of all
rows is itself a collective, the *gate*: it runs after every replica of the job has its data, and all gradients wait for
it. Gradients of shards, which the ranks of a split group compute together, are weighted with the rows of the group.
"""

from typing import Dict, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import inputs_for, source_of
from epl.ir.graph import first_tensor
from epl.ops import compression, ordered_sums
from epl.ops.communicator import Communicator, GatheredSlices
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.ops.weighing import weighed
from epl.parallel.accumulation import agree_steps
from epl.parallel.accumulation.record import accumulations_of
from epl.parallel.plan.communicators import gate_communicator
from epl.parallel.plan.gradient_groups import BoundaryGroup, control_flow_context
from epl.parallel.plan.plan import GradientGroup
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.scattered_gradients import ScatteredGradients
from epl.parallel.rewriting.context import Gate, RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.sharding.batch_weights import BatchWeights
from epl.parallel.sharding.packed import reduce_scatter
from epl.utils import tf_compat


def run(rewrite: RewriteContext) -> None:
    """Adds the collectives of replica 0 and rewires the boundaries."""
    if rewrite.world_size == 1:
        return
    weight = rewrite.weight = _weight(rewrite)
    if rewrite.sharded is not None:
        rewrite.collectives.update(op.name for op in rewrite.sharded.collectives)
    accumulations = agree_steps.by_boundary(rewrite.graph)
    agreed: Dict[str, tf.Operation] = {}
    for group, boundaries in rewrite.new_groups:
        context = control_flow_context(boundaries)
        accumulation = accumulations.get(first_tensor(boundaries.boundaries[0][1]).op.name)
        with rewrite.building(group.name, group.stage):
            # Not in the branch: other writes of the step wait for the gate, whether the branch is taken or not.
            if accumulation is None:
                gate = _gate(rewrite, group, weight)
            else:
                name = accumulation.counter.name
                if name not in agreed:
                    communicator = _of_all(rewrite, group)
                    agreed[name] = agree_steps.agree(rewrite, communicator, group.name, accumulation, weight)
                gate = agreed[name]
            if group.transfers:
                share = _share(rewrite, group, gate, weight if accumulation is None else None)
                with tf_compat.control_flow_context(rewrite.tf_graph, context):
                    gradients = _aggregate(rewrite, group, boundaries, share)
                rewrite.collectives |= gradients
            else:
                gradients = {first_tensor(gradient).op.name for _, gradient in boundaries.boundaries}
        _add_gate(rewrite, gate, gradients)
    for number, accumulation in enumerate(accumulations_of(rewrite.graph)):
        if accumulation.counter.name not in agreed:  # only gradients of shards, which are not aggregated
            name = f"micro_steps{number}"
            with rewrite.building(name):
                communicator = rewrite.communicator(f"{rewrite.plan.name}/{name}")
                gate = agree_steps.agree(rewrite, communicator, name, accumulation, weight)
            _add_gate(rewrite, gate, {first_tensor(source).op.name for source in accumulation.sources})


def _weight(rewrite: RewriteContext) -> tf.Tensor:
    """The weight of replica 0 in means."""
    if rewrite.weight is not None:  # of an earlier rewriting
        return rewrite.weight
    batch_weights = _row_weights(rewrite)
    if batch_weights is not None:
        return batch_weights.own
    with rewrite.building("rows"):
        return tf.placeholder_with_default(tf.constant(1.0, tf.float64), [], name="weight")


def _add_gate(rewrite: RewriteContext, gate: tf.Operation, gradients: Set[str]) -> None:
    rewrite.gates.append(Gate(gate, frozenset(gradients)))
    rewrite.collectives.add(gate.name)


def _gate(rewrite: RewriteContext, group: GradientGroup, weight: tf.Tensor) -> tf.Operation:
    """The gate of a group: the sum of all rows, which runs after every replica of the job has its data."""
    return _of_all(rewrite, group).all_reduce(weight, rewrite.base_rank, f"{group.name}/rows").op


def _of_all(rewrite: RewriteContext, group: GradientGroup) -> Communicator:
    """The communicator for the gate of a group.

    It has all replicas, also for gradients of shards: these depend on the data of a whole split group.
    """
    return rewrite.communicator(gate_communicator(rewrite.plan, group), group.stage)


def _share(rewrite: RewriteContext, group: GradientGroup, gate: tf.Operation, weight: Optional[tf.Tensor]) -> tf.Tensor:
    """The factor of this replica's gradients in the mean or sum; with accumulation (no `weight`), sums are weighted."""
    ranks = _place(rewrite, group, group.transfers[0].communicator)[0].world_size
    if weight is None:
        return tf.constant(agree_steps.share(rewrite, ranks), tf.float64)
    ranks_together, batch_weights = replica_groups(rewrite.graph), _row_weights(rewrite)
    if ranks_together is None and rewrite.plan.reduce_method == "sum":  # 1, or 0 without rows
        with tf.control_dependencies([gate]):
            return tf.sign(weight)
    if ranks_together is not None and batch_weights is None:  # all have equal numbers of rows
        with tf.control_dependencies([gate]):
            share = tf.identity(tf.constant(1.0 / ranks, tf.float64))
    else:
        own = batch_weights.of_group_in(group.stage) if batch_weights is not None and group.of_shards else weight
        share = own / gate.outputs[0]
    return share * float(ranks) if rewrite.plan.reduce_method == "sum" else share


def _row_weights(rewrite: RewriteContext) -> Optional[BatchWeights]:
    """The row weights of the ranks that compute a replica together, if their numbers of rows differ."""
    ranks = replica_groups(rewrite.graph)
    return None if ranks is None else ranks.resharder.batch_weights


def _place(rewrite: RewriteContext, group: GradientGroup, communicator: str) -> Tuple[Communicator, int]:
    """The communicator with this name for the gradients of a group, and the rank of replica 0 in it."""
    if not group.of_shards:
        return rewrite.communicator(communicator, group.stage), rewrite.base_rank
    holders = rewrite.holders_of_shards(communicator, group.stage)
    return holders.at(rewrite.base_rank), holders.place(rewrite.base_rank).rank


def _aggregate(rewrite: RewriteContext, group: GradientGroup, boundaries: BoundaryGroup, share: tf.Tensor) -> Set[str]:
    """Adds the collectives of a group and rewires its boundaries; returns the names of the collective ops."""
    sources = [source_of(gradient) for _, gradient in boundaries.boundaries]
    previous: Dict[str, List[tf.Operation]] = {}
    moved: Set[str] = set()
    reduced: List[Gradient]
    for transfer in group.transfers:
        place = _place(rewrite, group, transfer.communicator)
        gradients = [sources[i] for i in transfer.members]
        after = previous.get(transfer.communicator, [])
        if transfer.scattered:
            wholes = [first_tensor(boundaries.boundaries[i][1]) for i in transfer.members]
            reduced = []  # no boundary gets a full gradient
            ops = _scatter(rewrite, place, transfer.key, wholes, share, after)
        else:
            with tf.control_dependencies(after):
                ordered = [group.reductions[i].ordered for i in transfer.members]
                reduced, ops = _reduce(rewrite, place, transfer.key, gradients, ordered, share)
        previous[transfer.communicator] = ops
        moved.update(op.name for op in ops)
        for i, gradient in zip(transfer.members, reduced):
            replace_source(rewrite, boundaries.boundaries[i][1], gradient)
    return moved


def _reduce(
    rewrite: RewriteContext,
    place: Tuple[Communicator, int],
    key: str,
    gradients: List[Gradient],
    ordered: Sequence[bool],
    share: tf.Tensor,
) -> Tuple[List[Gradient], List[tf.Operation]]:
    """All-reduces gradients; returns the reduced ones and the collective ops.

    Those that are `ordered` are sparse, and summed by index in a fixed order.
    """
    communicator, rank = place
    before = tf_compat.last_op_id(rewrite.tf_graph)
    counted: List[Gradient] = []
    for one, in_order in zip(gradients, ordered):
        if not isinstance(one, tf.IndexedSlices):
            counted.append(_of_rows(rewrite, one, share))
        else:
            counted.append(ordered_sums.of_one_rank(one) if in_order else one)
    scale, agreed = _scale(rewrite, place, key, counted, share)
    sent = counted if scale is None else [compression.compress(gradient, scale) for gradient in counted]
    with tf.control_dependencies(agreed):
        received = communicator.all_reduce(sent, rank, key, "sum", weight=share)
    exact = received
    if scale is not None:
        exact = [compression.decompress(new, first_tensor(old).dtype, scale) for old, new in zip(gradients, received)]
    summed = [
        ordered_sums.of_all_ranks(one, new) if in_order and isinstance(new, GatheredSlices) else one
        for one, new, in_order in zip(exact, received, ordered)
    ]
    added = tf_compat.ops_since(rewrite.tf_graph, before)
    return summed, [op for op in added if op.type in COLLECTIVE_OP_TYPES]


def _scale(
    rewrite: RewriteContext,
    place: Tuple[Communicator, int],
    key: str,
    gradients: Sequence[Gradient],
    share: tf.Tensor,
) -> Tuple[Optional[compression.Scale], List[tf.Operation]]:
    """The scale of gradients that travel as float16, None where they travel as they are; and the ops that agree on it.

    A scalar collective: the one after it on this communicator waits for these ops.
    """
    wanted = rewrite.plan.fp16_scale
    if wanted is None:
        return None, []
    communicator, rank = place

    def all_max(largest: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([share.op]):  # as all collectives of gradients, after the gate
            return communicator.all_reduce(largest, rank, f"{key}/scale", "max")

    terms = communicator.world_size if rewrite.plan.reduce_method == "sum" else 1
    scale = compression.agreed_scale(gradients, float(wanted), terms, all_max)
    return scale, [scale.op] if isinstance(scale, tf.Tensor) else []


def _of_rows(rewrite: RewriteContext, gradient: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """The gradient; zeros for a replica without rows, whose gradient may be no number.

    With even rows no process has a batch without rows, unless the script reads one. The collective of sparse gradients
    does the same.
    """
    has_rows = not rewrite.plan.row_shares or rewrite.plan.workers == 1
    return gradient if has_rows else weighed(gradient, tf.sign(share))


def _scatter(
    rewrite: RewriteContext,
    place: Tuple[Communicator, int],
    key: str,
    gradients: List[tf.Tensor],
    share: tf.Tensor,
    after: List[tf.Operation],
) -> List[tf.Operation]:
    """Reduce-scatters gradients and connects ZeRO's cuts to the shards; returns the collective ops."""
    communicator, rank = place
    before = tf_compat.last_op_id(rewrite.tf_graph)
    scattered = rewrite.graph.state_of(ScatteredGradients)
    assert scattered is not None  # the plan has transfers that are scattered
    cuts = [cut for cut in map(scattered.cut_of, gradients) if cut is not None]

    def scatter(lines: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([*after, *agreed]):
            return communicator.reduce_scatter(lines, rank, key, "sum", weight=share)

    counted = [_of_rows(rewrite, gradient, share) for gradient in gradients]
    with tf.control_dependencies(after):
        scale, agreed = _scale(rewrite, place, key, counted, share)
    sent = counted if scale is None else [compression.compress(gradient, scale) for gradient in counted]
    parts = reduce_scatter(sent, [cut.member for cut in cuts], scattered.resharder, scatter)
    for cut, gradient, part in zip(cuts, gradients, parts):
        exact = part if scale is None else compression.decompress(part, gradient.dtype, scale)
        tf_compat.set_input(rewrite.remember(cut.part.op), 0, exact)
    return [op for op in tf_compat.ops_since(rewrite.tf_graph, before) if op.type in COLLECTIVE_OP_TYPES]


def replace_source(rewrite: RewriteContext, boundary: Gradient, new: Gradient) -> None:
    for op, tensor in inputs_for(boundary, new):
        tf_compat.set_input(rewrite.remember(op), 0, tensor)


PASS = Pass(
    "aggregate_gradients",
    run,
    "replicas",
    provides=names("gates weight"),
    adds=names("collectives"),
    after=names("clone_micro_batches divide_batches"),
)
