"""Ops outside of a split take what a rank computes in place of the user's tensors.

| the user's tensor | what the op takes |
| --- | --- |
| has rows of a batch | the rows of this rank's own batch |
| has no batch | the full tensor, the same on all ranks |
| is taken by a gradient function in the split (loop, branch, tf.custom_gradient) | the rows of all ranks |
"""

from typing import Callable, Container, ContextManager, Dict, Sequence

import tensorflow.compat.v1 as tf

from epl.ir.colocation import in_taskgraph, phase_of, taskgraph_index
from epl.ir.taskgraph import Phase
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.split.bridges import out_of_split
from epl.parallel.split.lowering import Lowering
from epl.parallel.split.program import Program
from epl.parallel.split.region import Region
from epl.utils import tf_compat


class RegionOutputs:
    """The tensors of one rank's program of a split, as ops outside of it take them.

    Attributes:
      outputs: tensor of the user -> what replicate code takes in its place.
    """

    def __init__(
        self,
        region: Region,
        program: Program,
        lowering: Lowering,
        resharder: Resharder,
        taskgraphs: Container[int],
        building: Callable[[], ContextManager[None]],
        is_own: Callable[[tf.Operation], bool],
    ) -> None:
        """Redirects the ops that take outputs of the region.

        Args:
          region: of the split.
          program: its values.
          lowering: of this rank.
          resharder: of this rank.
          taskgraphs: indices of those that are split.
          building: marks new ops as not the user's.
          is_own: whether an op is no op of the user.
        """
        self._region = region
        self._inside = frozenset(region.ops)
        self._program = program
        self._lowering = lowering
        self._resharder = resharder
        self._taskgraphs = taskgraphs
        self._building = building
        self._is_own = is_own
        self.outputs: Dict[tf.Tensor, tf.Tensor] = {}
        for tensor in region.outputs:
            self._give(tensor, tensor.consumers())

    def redirect(self, new: Sequence[tf.Operation]) -> None:
        """Redirects ops that were built since then; `new` may have some that are not the user's."""
        for op in new:
            for tensor in set(op.inputs):
                if self._program.result(tensor) is not None:
                    self._give(tensor, [op], full=self._differentiates(op, tensor))
        self._redirect_controls()

    def output(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor as replicate code takes it: with the rows of this rank's batch, or whole."""
        if tensor not in self.outputs:
            value = self._program.values[self._program.number[tensor]]
            with self._building(), in_taskgraph(tensor.graph, taskgraph_index(tensor.op)):
                own = self._lowering.local_rows(tensor)
                if value.info.batch is None:
                    own = self._resharder.enter(own)
                self.outputs[tensor] = out_of_split(own, self._resharder)
        return self.outputs[tensor]

    def full(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor with the rows of all ranks."""
        with self._building(), in_taskgraph(tensor.graph, taskgraph_index(tensor.op)):
            return self._lowering.whole(tensor)

    def _differentiates(self, op: tf.Operation, tensor: tf.Tensor) -> bool:
        """Whether an op is of a gradient inside of the split that takes a tensor of the user, and not a rank's part.

        The gradients of a loop, of a branch and of the user (tf.custom_gradient) do: they compute with full tensors.
        """
        inside = tensor.op in self._region.kept or taskgraph_index(op) in self._taskgraphs
        return inside and phase_of(op) == Phase.BACKWARD

    def _redirect_controls(self) -> None:
        """Ops that wait for an op of the split wait for what computes in its place."""
        for op in self._inside - self._region.kept:
            instead = {self._lowering.tensors[t][0].op for t in op.outputs if t in self._lowering.tensors}
            for waiting in tf_compat.control_outputs(op):
                if waiting not in self._inside and not self._is_own(waiting):
                    controls = [one for one in waiting.control_inputs if one is not op]
                    tf_compat.remove_control_inputs(waiting)
                    tf_compat.add_control_inputs(waiting, controls + sorted(instead, key=tf_compat.op_id))

    def _give(self, tensor: tf.Tensor, consumers: Sequence[tf.Operation], full: bool = False) -> None:
        if tf_compat.is_reference(tensor.dtype):
            return  # to a variable, which a branch writes
        for consumer in consumers:
            if consumer in self._inside or self._is_own(consumer):
                continue
            instead = self.full(tensor) if full else self.output(tensor)
            for position, taken in enumerate(consumer.inputs):
                if taken is tensor and taken is not instead:
                    tf_compat.set_input(consumer, position, instead)
