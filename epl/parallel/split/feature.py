"""`epl.split` as a feature: its work in tf.gradients, and its section of the plan."""

from typing import Any, Optional

import tensorflow.compat.v1 as tf

from epl.config.config import Config
from epl.env import Env
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import variable_name
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Feature, GradientsRequest
from epl.parallel.plan.sections import SplitSection
from epl.parallel.plan.unequal_scopes import split_taskgraphs
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.split.model import lower, split_of
from epl.utils.containers import as_list
from epl.utils.errors import NotAvailableError, PlanError


class SplitFeature(Feature):
    """Tensor parallelism."""

    origin = OpOrigin("epl.split", "split")

    def before_gradients(self, graph: Graph, request: GradientsRequest) -> GradientsRequest:
        """Lowers the splits of the model, and differentiates the lowered tensors in place of the user's."""
        arguments = request.arguments
        with graph.building_shards():
            ys, xs = lower(graph, arguments["ys"], arguments["xs"])
        _refuse_stops(graph, arguments.get("stop_gradients"))
        return request._replace(xs=as_list(xs), arguments=dict(arguments, ys=ys, xs=xs))

    def returned_gradient(self, graph: Graph, request: GradientsRequest, x: Any, gradient: Gradient) -> Gradient:
        """Rescales the gradient of the objective of all ranks to that of one rank's model."""
        split = split_of(graph)
        if split is None:
            return gradient
        name = variable_name(x)
        if name is not None:
            return split.reduced(name, gradient)
        return split.differentiated.by_tensor(request.asked_for, x, gradient) if request.is_outermost else gradient

    def note_gradient(self, graph: Graph, variable: str, gradient: Gradient) -> None:
        """Notes the gradient of a shard as a shard."""
        split = split_of(graph)
        if split is not None:
            split.note_gradient(variable, gradient)

    def refuse(self, graph: Graph, config: Config) -> None:
        """Raises NotAvailableError for a split over several devices that no tf.gradients has lowered."""
        cluster = Env.get().cluster
        assert cluster is not None
        total_devices = cluster.total_gpu_num
        for taskgraph in split_taskgraphs(graph):
            strategy = taskgraph.strategy
            if split_of(graph) is None and (strategy.device_count or total_devices) > 1 and total_devices > 1:
                raise NotAvailableError("epl.split", f"{strategy} cannot be lowered without tf.gradients yet.")

    def plan(self, rewrite: RewriteContext) -> Optional[SplitSection]:
        """The decision that was made when the model was differentiated."""
        return rewrite.graph.state_of(SplitSection)


def _refuse_stops(graph: Graph, tensors: Any) -> None:
    """Raises PlanError for tensors of a split: other tensors replace them, so TensorFlow would silently not stop."""
    split = split_of(graph)
    if split is None:
        return
    for tensor in as_list(tensors):
        if isinstance(tensor, tf.Tensor) and (
            split.local(tensor) is not tensor or split.differentiated.source(tensor) is not tensor
        ):
            raise PlanError(
                "tf.gradients was given {!r} in stop_gradients, which is computed inside of epl.split, or is the value "
                "of a variable of it, and lies on {} devices. Build tf.stop_gradient into the model, inside of "
                "epl.split, where it is taken.".format(tensor.name, split.ranks)
            )
