"""Gives batch norms the statistics of all rows, forward and backward (`batch_norm.sync`).

    x --> FusedBatchNorm --> y, mean, variance          x --> FusedBatchNorm        of the replica's rows
                                                  =>            | all-reduce: n * mean, squares, n
                                                                v
                                                        x --> FusedBatchNorm(is_training=False) --> y

    dy, x --> FusedBatchNormGrad --> dx           =>    dy, x --> FusedBatchNormGrad(is_training=False) --> dx'
                                                                | all-reduce: sums of dy and of dy * x^
                                                                v
                                                        dx = dx' - what the mean and the variance pass on

Forward sums travel as float64: the difference between the mean square and the squared mean is then as exact as float32
values are. The loss of all rows is the mean of the replicas' losses, with their weights w (batch_weights.py), and each
replica computes the gradient of its own: so its sums are multiplied by w, and what it gets is divided by w.

A recomputed op takes the statistics that the forward pass has: it makes no second collective. All collectives of a
stage in one direction share a communicator, on which they follow each other in the order of the graph.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.control_flow import depths_of, ends_of, run_order
from epl.ir.taskgraph import DEFAULT_ATTR
from epl.ir.view import GraphView
from epl.ops.communicator import Communicator
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.ops.weighing import weighed
from epl.parallel.batch_norm import sites
from epl.parallel.plan.communicators import batch_norm_communicator
from epl.parallel.plan.plan import section
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.sections import BatchNormSection
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.needed_collectives import OrderedCollective, order_needed
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat

_FORWARD, _BACKWARD = "forward", "backward"


class _Statistics(NamedTuple):
    """The statistics of all rows of a batch: of each channel, in the type of the op, and the number of values."""

    mean: tf.Tensor
    variance: tf.Tensor
    rows: tf.Tensor


class _Collective(NamedTuple):
    """A collective that was added: its node in the graph before is `site`, which `micro_batch` computes."""

    op: tf.Operation
    site: int
    micro_batch: int


class _Copy(NamedTuple):
    """A copy of a forward op: of its micro batch; `again`: it is recomputed."""

    op: str
    micro_batch: int
    again: bool


def run(rewrite: RewriteContext) -> None:
    """Adds the collectives of replica 0."""
    planned = section(rewrite.plan, BatchNormSection)
    if planned is not None:
        _Synchronisation(rewrite, planned).run()


class _Synchronisation:
    """The rewriting of the batch norms of one graph.

    Attributes:
      collectives: those that were added, by stage and direction.
    """

    def __init__(self, rewrite: RewriteContext, planned: BatchNormSection) -> None:
        self._rewrite = rewrite
        self._view = GraphView(rewrite.tf_graph)
        self._consumers = self._view.consumers()
        self._copies = _copies(rewrite, [one.op for one in planned.synced])
        self._micro_batches = {
            rewrite.in_micro_batch(name, number): number
            for number in range(rewrite.plan.num_micro_batch)
            for name in rewrite.micro_batched
        }
        self._statistics: Dict[Tuple[str, int], _Statistics] = {}
        self._sums: Dict[Tuple[str, int], tf.Tensor] = {}
        self.collectives: Dict[Tuple[int, str], List[_Collective]] = {}

    def run(self) -> None:
        view = self._view
        forward, backward = sites.markers(view)
        own = [node for node in [*sites.fused_nodes(view), *forward] if view.nodes[node].name in self._copies]
        fused = set(sites.fused_nodes(view))
        for node in own:
            if not self._copies[view.nodes[node].name].again:
                self._forward(node, node in fused)
        for node in own:
            if self._copies[view.nodes[node].name].again:
                self._again(node, node in fused)
        for node in view.of_types(sites.FUSED_GRADS):
            of = sites.forward_of(view, node)
            if of is not None and view.nodes[of].name in self._copies:
                self._gradient(node, self._copies[view.nodes[of].name])
        synced = {node for node in own if node in forward}
        for node in sorted(view.descendants(synced).intersection(backward)):
            self._marked_gradient(node)
        self._order()

    # ---- Forward.

    def _forward(self, node: int, is_fused: bool) -> None:
        name, stage = self._place(node)
        copy = self._copies[name]
        op = self._rewrite.operation(name)
        with self._rewrite.building(f"batch_norm/{name}", stage):
            sums = _own_sums(op) if is_fused else op.inputs[0]
            counted = weighed(sums, tf.sign(self._weight()) * tf.cast(sums[-1] > 0, tf.float64))
            total = self._all_reduce(node, _FORWARD, counted)
            total.set_shape(sums.shape)
            self._sums[copy.op, copy.micro_batch] = total
            if not is_fused:
                tf_compat.set_input(self._rewrite.remember(op), 0, total)
                return
            of_all = self._statistics[copy.op, copy.micro_batch] = _statistics(total, op)
            y = _normalised(op, op.inputs[0], op.inputs[1], op.inputs[2], of_all)
            unbiased = of_all.rows / tf.maximum(of_all.rows - 1.0, 1.0)
            shown = [of_all.mean, tf.cast(tf.cast(of_all.variance, tf.float64) * unbiased, of_all.variance.dtype)]
            factor = _average_factor(op)
            if factor != 1.0:  # the op itself updates moving averages
                shown = [old * (1.0 - factor) + new * factor for old, new in zip(op.inputs[3:5], shown)]
        for output, tensor in enumerate([y, *shown]):
            self._replace(node, output, tensor)

    def _again(self, node: int, is_fused: bool) -> None:
        """A recomputed op: with the statistics of the forward pass."""
        name, stage = self._place(node)
        copy = self._copies[name]
        op = self._rewrite.remember(self._rewrite.operation(name))
        if not is_fused:
            tf_compat.set_input(op, 0, self._sums[copy.op, copy.micro_batch])
            return
        of_all = self._statistics[copy.op, copy.micro_batch]
        with self._rewrite.building(f"batch_norm/{name}", stage):
            given = [_of_any_shape(one) for one in (of_all.mean, of_all.variance)]
        tf_compat.set_attr(op, "is_training", tf.AttrValue(b=False))
        for position, tensor in enumerate(given, 3):
            tf_compat.set_input(op, position, tensor)

    # ---- Backward.

    def _gradient(self, node: int, of: _Copy) -> None:
        """dx = scale / deviation * (dy - sum(dy) / rows - x^ * sum(dy * x^) / rows), with the sums of all replicas."""
        name, stage = self._place(node)
        op = self._rewrite.remember(self._rewrite.operation(name))
        of_all = self._statistics[of.op, of.micro_batch]
        x, scale = op.inputs[1], op.inputs[2]
        with self._rewrite.building(f"batch_norm/{name}", stage):
            weight = self._weight()
            of_scale, of_offset = op.outputs[1], op.outputs[2]
            channels = tf.shape(of_scale)[0]
            total = self._all_reduce(node, _BACKWARD, weighed(tf.concat([of_offset, of_scale], 0), weight))
            own = tf.cast(tf.math.divide_no_nan(tf.constant(1.0, tf.float64), weight * of_all.rows), scale.dtype)
            factor = -scale * tf.math.rsqrt(of_all.variance + op.get_attr("epsilon")) * own
            passed_on = _normalised(op, x, factor * total[channels:], factor * total[:channels], of_all)
        _give_statistics(self._rewrite, op, of_all, f"batch_norm/{name}", stage)
        with self._rewrite.building(f"batch_norm/{name}", stage):
            direct = _direct_gradient(op, x)
            gradient = direct + passed_on
        self._replace(node, 0, gradient)

    def _marked_gradient(self, node: int) -> None:
        name, stage = self._place(node)
        op = self._rewrite.remember(self._rewrite.operation(name))
        with self._rewrite.building(f"batch_norm/{name}", stage):
            weight = self._weight()
            total = self._all_reduce(node, _BACKWARD, weighed(op.inputs[0], weight))
            own = tf.math.divide_no_nan(total, tf.fill(tf.shape(total), weight))
        tf_compat.set_input(op, 0, own)

    # ---- Collectives.

    def _place(self, node: int) -> Tuple[str, int]:
        """The name of a node, and its stage."""
        name = self._view.nodes[node].name
        return name, self._rewrite.stage_of.get(name, 0)

    def _weight(self) -> tf.Tensor:
        """The weight of this replica's gradients among those of all, float64 [], up to a common factor."""
        weight = self._rewrite.weight
        assert weight is not None  # there are several replicas
        is_sum = self._rewrite.plan.reduce_method == "sum" and replica_groups(self._rewrite.graph) is None
        return tf.sign(weight) if is_sum else weight

    def _all_reduce(self, node: int, direction: str, sums: tf.Tensor) -> tf.Tensor:
        name, stage = self._place(node)
        communicator: Communicator = self._rewrite.communicator(
            batch_norm_communicator(self._rewrite.plan, stage, direction), stage
        )
        total: tf.Tensor = communicator.all_reduce(sums, self._rewrite.base_rank, f"batch norm {name}")
        op = total.op
        while op.type not in COLLECTIVE_OP_TYPES:
            op = op.inputs[0].op
        self._rewrite.collectives.add(op.name)
        made = _Collective(op, node, self._micro_batches.get(name, 0))
        self.collectives.setdefault((stage, direction), []).append(made)
        return total

    def _order(self) -> None:
        """Fixes the order of the collectives of each communicator: micro batch after micro batch."""
        view = self._view
        place = {node: number for number, node in enumerate(run_order(view))}
        depths = depths_of(view)
        for (stage, direction), made in sorted(self.collectives.items()):
            ordered = sorted(made, key=lambda one: (one.micro_batch, place[one.site]))
            steps = [OrderedCollective(one.op, self._ends(one, depths), stage) for one in ordered]
            order_needed(self._rewrite, steps, f"batch_norm{stage}_{direction}")

    def _ends(self, one: _Collective, depths: Sequence[Tuple[int, int]]) -> Tuple[tf.Operation, ...]:
        if depths[one.site] == (0, 0):
            return (one.op,)
        ends = ends_of(self._view, one.site, depths)
        return tuple(self._rewrite.operation(self._view.nodes[end].name) for end in ends)

    def _replace(self, node: int, output: int, tensor: tf.Tensor) -> None:
        """Lets all that took an output of a node take another tensor."""
        name = self._view.nodes[node].name
        known = {name, f"{name}:0"} if output == 0 else {f"{name}:{output}"}
        for consumer in sorted(set(self._consumers[node])):
            taken = self._view.nodes[consumer].input
            for position, one in enumerate(taken):
                if one in known:
                    taker = self._rewrite.remember(self._rewrite.operation(self._view.nodes[consumer].name))
                    tf_compat.set_input(taker, position, tensor)


def _copies(rewrite: RewriteContext, ops: Sequence[str]) -> Dict[str, _Copy]:
    """The copies of forward ops in all micro batches, by name; those that are recomputed, too."""
    found: Dict[str, _Copy] = {}
    for name in ops:
        for again in (False, True):
            for one in rewrite.recomputed.get(name, []) if again else [name]:
                count = rewrite.plan.num_micro_batch if one in rewrite.micro_batched else 1
                of_one = name in rewrite.micro_batched
                for number in range(count):
                    copy = _Copy(name, number if of_one else 0, again)
                    found.setdefault(rewrite.in_micro_batch(one, number), copy)
    return found


def _own_sums(op: tf.Operation) -> tf.Tensor:
    """n * mean, the sum of squares and n of a FusedBatchNorm's own rows; float64."""
    _, mean, variance = op.outputs[:3]
    if _average_factor(op) != 1.0:
        mean, variance = _training_op(op).outputs[1:3]
    rows = tf.cast(tf.size(op.inputs[0]), tf.float64) / tf.cast(tf.size(op.inputs[1]), tf.float64)
    mean, variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
    squares = variance * tf.maximum(rows - 1.0, 1.0)  # the op gives the unbiased variance
    return tf.concat([mean * rows, squares + tf.square(mean) * rows, [rows]], 0)


def _statistics(total: tf.Tensor, op: tf.Operation) -> _Statistics:
    """The statistics of all rows, given sums as of `_own_sums`."""
    rows = total[-1]
    mean, square = tf.split(total[:-1] / rows, 2)
    dtype = op.inputs[1].dtype
    variance = tf.maximum(square - tf.square(mean), 0.0)
    return _Statistics(tf.cast(mean, dtype), tf.cast(variance, dtype), rows)


def _average_factor(op: tf.Operation) -> float:
    """What share of the batch's statistics the op mixes with those that it is given."""
    try:
        return float(op.get_attr("exponential_avg_factor"))
    except ValueError:  # not of this TensorFlow
        return 1.0


def _training_op(op: tf.Operation) -> tf.Operation:
    """The same op with the statistics of its batch alone."""
    return _fused(op, op.inputs[0], op.inputs[1], op.inputs[2], [], [], True)


def _normalised(op: tf.Operation, x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, of_all: _Statistics) -> tf.Tensor:
    """(x - mean) / deviation * scale + offset, in the layout of a FusedBatchNorm or its gradient."""
    return _fused(op, x, scale, offset, of_all.mean, of_all.variance, False).outputs[0]


def _fused(
    op: tf.Operation, x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, mean: Any, variance: Any, is_training: bool
) -> tf.Operation:
    make = getattr(tf.raw_ops, op.type.replace("Grad", ""))
    made: tf.Operation = make(
        x=x,
        scale=scale,
        offset=offset,
        mean=mean,
        variance=variance,
        epsilon=op.get_attr("epsilon"),
        data_format=op.get_attr("data_format").decode(),
        is_training=is_training,
    )[0].op
    return made


def _give_statistics(rewrite: RewriteContext, op: tf.Operation, of_all: _Statistics, scope: str, stage: int) -> None:
    """Makes a gradient op one of given statistics, for which TensorFlow has it in the layout NHWC alone."""
    tf_compat.set_attr(op, "is_training", tf.AttrValue(b=False))
    tf_compat.set_input(op, sites.SAVED_MEAN, of_all.mean)
    tf_compat.set_input(op, sites.SAVED_MEAN + 1, of_all.variance)
    if op.get_attr("data_format") == b"NCHW":
        with rewrite.building(scope, stage):
            moved = [_of_any_shape(tf.transpose(one, [0, 2, 3, 1])) for one in list(op.inputs)[:2]]
        for position, tensor in enumerate(moved):
            tf_compat.set_input(op, position, tensor)
        tf_compat.set_attr(op, "data_format", tf.AttrValue(s=b"NHWC"))


def _direct_gradient(op: tf.Operation, x: tf.Tensor) -> tf.Tensor:
    """The gradient of x that does not go through the statistics, in the layout of x."""
    direct = op.outputs[0]
    if op.inputs[1] is x:
        return direct
    moved = tf.reshape(direct, tf.shape(op.inputs[1]))  # no change: the static shape of the op is that of before
    restored = tf.transpose(moved, [0, 3, 1, 2])
    restored.set_shape(x.shape)
    return restored


def _of_any_shape(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor without its static shape: an op whose input is replaced keeps the shape that it has."""
    hidden = tf.placeholder_with_default(tensor, None)
    tf_compat.set_attr(hidden.op, DEFAULT_ATTR, tf.AttrValue(b=True))
    return hidden


PASS = Pass(
    "sync_batch_norm",
    run,
    "batch_norm.sync",
    adds=names("collectives orders"),
    requires=names("weight micro_batched micro_merged stage_of recomputed"),
    after=names("clone_micro_batches aggregate_gradients"),
)
