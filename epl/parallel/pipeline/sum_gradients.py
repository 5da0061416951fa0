"""Gradients of the micro batches are summed, in their order; the sum replaces micro batch 0's gradient.

    g ----> boundary          g ------> + ------> + --> / M --> boundary
                         =>   g/1 -----'         /
                              g/2 --------------'

One gradient is added at a time, so at most two of each are alive. Two kinds of control edges keep it so. The next
action of the device waits for the additions of a backward pass; otherwise a busy machine runs them late and keeps the
gradients. And each addition waits for the beginning of the backward pass of its micro batch, which its gradient needs
anyway: TensorFlow's optimizer would otherwise join a chain of additions into one AddN, which keeps all its inputs. The
edge comes from the merge in the barrier; an edge from another op would be removed as superfluous.
"""

from typing import List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.gradient_boundary import source_of
from epl.ir.view import GraphView
from epl.parallel.pipeline.micro_batches import Actions
from epl.parallel.pipeline.schedule_actions import Between
from epl.parallel.plan.schedule import Action
from epl.parallel.plan.stages import stage_of_op
from epl.parallel.replication.aggregate_gradients import replace_source
from epl.parallel.rewriting.barriers import Barrier
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.plan_nodes import PlanNodes


class GradientSums:
    """The mean, or sum, of each gradient over the micro batches, which replaces micro batch 0's gradient.

    Attributes:
      nodes: the nodes for dense gradients, to be added to the graph with the clones.
    """

    def __init__(
        self, rewrite: RewriteContext, view: GraphView, trainings: Sequence[Actions], between: Between
    ) -> None:
        """Makes the nodes, and lets barriers wait for them.

        Args:
          rewrite: the rewriting; its `micro_batched` is filled.
          view: view of the graph before it is cloned.
          trainings: by training, the nodes of the actions of micro batch 0.
          between: the barriers around each action, which are not in the graph yet.
        """
        self.nodes: List[tf.NodeDef] = []
        self._rewrite = rewrite
        self._dense: List[Tuple[tf.Tensor, str]] = []
        self._sparse: List[Tuple[tf.IndexedSlices, int]] = []
        if rewrite.plan.num_micro_batch == 1:
            return
        stages = rewrite.plan.stages
        for number, training in enumerate(rewrite.trainings):
            scope = "micro_batches/gradients{}/stage{}"
            added = [PlanNodes(rewrite, scope.format(number, stage), stage) for stage in range(len(stages))]
            for variable, bound in training.boundaries:
                stage = stage_of_op(rewrite.operation(variable), stages)
                if isinstance(bound, tf.IndexedSlices):
                    self._sparse.append((bound, stage))
                else:
                    gradient = source_of(bound)
                    barriers = self._barriers(number, trainings[number], view.index[gradient.op.name], between)
                    self._dense.append((bound, self._add(added[stage], gradient, barriers)))
            self.nodes += [node for of_stage in added for node in of_stage.nodes]

    def _barriers(
        self, number: int, actions: Actions, node: int, between: Between
    ) -> List[Tuple[Optional[Barrier], Optional[Barrier]]]:
        """By micro batch, the barriers before and after the action that computes `node`."""
        copies = range(self._rewrite.plan.num_micro_batch)
        for (stage, kind), members in actions.items():
            if node in members:
                return [between[number, Action(stage, kind, copy)] for copy in copies]
        return [(None, None)] * len(copies)

    def _add(
        self,
        added: PlanNodes,
        gradient: tf.Tensor,
        barriers: Sequence[Tuple[Optional[Barrier], Optional[Barrier]]],
    ) -> str:
        """Adds the nodes for one gradient, each addition between its barriers; returns the name of the result."""
        name = f"{len(self._dense)}/{{}}{{}}"
        dtype = gradient.dtype.base_dtype
        total, *parts = _names_in_all_micro_batches(self._rewrite, gradient)
        for copy, (part, (before, after)) in enumerate(zip(parts, barriers[1:]), 1):
            waits = [] if before is None else ["^" + before.merged]
            total = added.add(name.format("sum", copy), "AddV2", [total, part] + waits, T=dtype).name
            if after is not None:
                after.node.input.append("^" + total)
        if self._rewrite.plan.reduce_method == "mean":
            count = added.constant(len(barriers), dtype)
            total = added.add(name.format("mean", ""), "RealDiv", [total, count], T=dtype).name
        return total

    def apply(self) -> None:
        """Connects the boundaries of the gradients to the sums, which are in the graph by now."""
        rewrite = self._rewrite
        for bound, name in self._dense:
            replace_source(rewrite, bound, rewrite.operation(name).outputs[0])
        for sparse, stage in self._sparse:
            with rewrite.building("micro_batches/gradients", stage):
                replace_source(rewrite, sparse, _sparse_mean(rewrite, source_of(sparse)))


def _sparse_mean(rewrite: RewriteContext, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The rows of all micro batches."""
    values = tf.concat(of_all_micro_batches(rewrite, gradient.values), axis=0)
    indices = tf.concat(of_all_micro_batches(rewrite, gradient.indices), axis=0)
    if rewrite.plan.reduce_method == "mean":
        values = values / rewrite.plan.num_micro_batch
    return tf.IndexedSlices(_of_any_rows(values), _of_any_rows(indices), gradient.dense_shape)


def _of_any_rows(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor with an unknown number of rows: TensorFlow refuses another number than the boundary had."""
    return tf.placeholder_with_default(tensor, [None] + tensor.shape.as_list()[1:])


def of_all_micro_batches(rewrite: RewriteContext, tensor: tf.Tensor) -> List[tf.Tensor]:
    """The tensor of every micro batch."""
    return [rewrite.tf_graph.get_tensor_by_name(name) for name in _names_in_all_micro_batches(rewrite, tensor)]


def _names_in_all_micro_batches(rewrite: RewriteContext, tensor: tf.Tensor) -> List[str]:
    """The names of the tensor in every micro batch; M times the same for a tensor that they share."""
    if tensor.op.name not in rewrite.micro_batched:
        return [tensor.name] * rewrite.plan.num_micro_batch
    return [rewrite.micro_prefix(copy) + tensor.name for copy in range(rewrite.plan.num_micro_batch)]
