"""What tf.gradients differentiates in place of a split's tensors, and by what.

tf.gradients(loss, [x, v])    =>    tf.gradients(own rows of the loss, [x, shard of v])
"""

from typing import Any, Callable, ContextManager, Dict, Set

import tensorflow.compat.v1 as tf

from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import times
from epl.ir.graph import first_tensor
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.split.bridges import objective_of_split
from epl.parallel.split.lowering import Lowering
from epl.parallel.split.program import Program
from epl.parallel.split.region import Dependence, batch_dimension
from epl.parallel.split.region_outputs import RegionOutputs
from epl.utils.errors import PlanError


class Differentiated:
    """The objectives of one rank, and what they are differentiated by.

    Attributes:
      rows: tensor of the user that was differentiated -> this rank's rows of it.
    """

    def __init__(
        self,
        program: Program,
        lowering: Lowering,
        outputs: RegionOutputs,
        resharder: Resharder,
        values: Dict[tf.Tensor, tf.Tensor],
        building: Callable[[], ContextManager[None]],
        full_inputs: Set[tf.Tensor],
    ) -> None:
        """Starts with nothing differentiated.

        Args:
          program: of the split.
          lowering: of this rank.
          outputs: of this rank.
          resharder: of this rank.
          values: tensor of the user -> what has its value now; objectives without a batch are added.
          building: marks new ops as not the user's.
          full_inputs: what comes into the model and holds no rows of a batch.
        """
        self._program, self._lowering, self._outputs, self._resharder = program, lowering, outputs, resharder
        self._values, self._building, self._full_inputs = values, building, full_inputs
        self.rows: Dict[tf.Tensor, tf.Tensor] = {}

    def objective(self, y: Any) -> Any:
        """What is differentiated in place of `y`."""
        if y not in self._program.number:
            return y
        value = self._program.values[self._program.number[y]]
        if value.info.batch is None:
            if y not in self._values:
                self._values[y] = self._outputs.full(y)
            return self._values[y]
        if y not in self.rows:
            with self._building(), in_taskgraph(y.graph, taskgraph_index(y.op)):
                self.rows[y] = objective_of_split(self._lowering.local_rows(y), self._resharder)
        return self.rows[y]

    def source(self, x: Any) -> Any:
        """By what is differentiated in place of `x`.

        Raises:
          PlanError: `x` is computed inside of the split.
        """
        if not isinstance(x, tf.Tensor):
            return x
        if self._program.result(x) is not None:
            raise PlanError(
                "tf.gradients was asked for the gradient of {!r}, which is computed inside of epl.split and lies on {} "
                "devices. Differentiate by variables, or by what goes into the split.".format(
                    x.name, self._resharder.ranks
                )
            )
        return self._values.get(x, x)

    def by_tensor(self, ys: Any, x: Any, gradient: Gradient) -> Gradient:
        """What is given back as the gradient of `ys` by `x`, which is no variable.

        All ranks differentiate the same objective of the split, so the gradient is multiplied by the rank's share.

        Raises:
          PlanError: some of `ys` are of the split, and others are not.
        """
        inside = [self._program.result(y) is not None for y in tf.nest.flatten(ys)]
        if not any(inside) or batch_dimension(x, Dependence(beside=self._full_inputs)) is None:
            return gradient
        if not all(inside):
            raise PlanError(
                "tf.gradients was asked for the gradient by {!r} of tensors of which some are computed inside of "
                "epl.split, from the rows of all {} devices, and others outside, from those of one device. Call it for "
                "each of them by itself.".format(x.name, self._resharder.ranks)
            )
        return times(gradient, self._resharder.share(first_tensor(gradient).dtype))
