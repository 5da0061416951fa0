"""The loss of all rows as a feature."""

from typing import List, Optional

from epl.config.config import Config
from epl.ir.control_flow import run_order
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.ir.view import GraphView
from epl.parallel.feature import Feature, GradientsRequest, RunRequest
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.sections import WholeBatchSection
from epl.parallel.plan.stages import stages_of_nodes
from epl.parallel.plan.whole_batch_refusals import not_proved_with
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.row_markers import find_markers
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.parallel.whole_batch import markers, objective, synchronise
from epl.parallel.whole_batch.objective import KEY, WholeBatch
from epl.utils.errors import NotAvailableError, PlanError


class WholeBatchFeature(Feature):
    """The model means the batch of all replicas."""

    origin = OpOrigin("replicate.batch", "all rows")
    passes = (synchronise.PASS,)

    def before_gradients(self, graph: Graph, request: GradientsRequest) -> GradientsRequest:
        """Puts the losses of all rows in place of those of a replica's rows."""
        return objective.lower(graph, request)

    def after_gradients(
        self, graph: Graph, request: GradientsRequest, gradients: List[Optional[Gradient]]
    ) -> List[Optional[Gradient]]:
        """Lets the gradients wait for the loss: its collectives run in each training step, whoever fetches it."""
        return objective.after_losses(request, gradients)

    def missing_after_plan(self, graph: Graph, config: Config) -> str:
        """Losses are lowered before the graph is planned."""
        return "on the loss of each replica's rows" if config.replicate.batch == "all" else ""

    def complete(self, graph: Graph) -> None:
        """Connects ops that were built beside the loss, such as summaries of it."""
        if graph.state_of(WholeBatch) is not None:
            objective.connect(graph)

    def rewrite_run(self, graph: Graph, request: RunRequest) -> RunRequest:
        """Fetches what is computed from all rows in place of what is not."""
        if graph.state_of(WholeBatch) is None:
            return request
        objective.refuse_fed(graph, request.feeds)
        return request._replace(fetches=[graph.restored(one) for one in request.fetches])

    def plan(self, rewrite: RewriteContext) -> Optional[WholeBatchSection]:
        """Which markers take values of all replicas."""
        if rewrite.world_size == 1 or rewrite.config.replicate.batch != "all":
            return None
        _refuse(rewrite)
        view = GraphView(rewrite.tf_graph)
        gradients = boundary_nodes(view, [call for call in rewrite.graph.gradient_calls if call.boundaries])
        writes = find_training_writes(rewrite.tf_graph, view, view.writes(), gradients)
        trained = view.ancestors(gradients | writes)
        found = trained.intersection(find_markers(view, *markers.FORWARD))
        rows = found.intersection(find_markers(view, markers.ROWS))
        ops = tuple(view.nodes[node].name for node in run_order(view) if node in found)
        of_nodes = stages_of_nodes(view, rewrite.plan.stages)
        stages = sorted({of_nodes[node] for node in found})
        return WholeBatchSection(ops, len(rows), tuple(stages)) if ops else None


def _refuse(rewrite: RewriteContext) -> None:
    """Raises an EplError for what a loss of all rows is not proved with."""
    graph, config = rewrite.graph, rewrite.config
    beside = {
        "batch_norm.sync": config.batch_norm.sync,
        'communication.gradients_reduce_method "sum"': rewrite.plan.reduce_method == "sum",
    }
    asked = not_proved_with(replica_groups(graph) is not None, config.zero.level, bool(config.offload.level))
    asked += [what for what, is_asked in beside.items() if is_asked]
    if asked:
        raise NotAvailableError(f"{KEY} with {asked[0]}", "Leave one of the two out.")
    state = graph.state_of(WholeBatch)
    if state is None:
        raise NotAvailableError(
            f"{KEY} without tf.gradients", "Differentiate the loss by tf.gradients, or by minimize with a tensor."
        )
    now = objective.sources_now(graph, state)
    changed = sorted(name for name, flow in state.sources if now.get(name, flow) != flow)
    if changed:
        raise PlanError(
            f"{changed[0]} was taken to {'hold rows of a batch' if now[changed[0]].is_same else 'hold no rows'} when "
            "the loss was differentiated, and not now. Call epl.keep_whole before tf.gradients or minimize."
        )
