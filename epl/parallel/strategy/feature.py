"""The strategy of a model as a feature: it is the first, as all others follow what it decides."""

from typing import Any, List, Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.gradient_boundary import variable_name
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.feature import Feature, GradientsRequest, Run, RunRequest
from epl.parallel.plan.strategy import Strategy, strategy_key
from epl.parallel.strategy import record
from epl.parallel.strategy.replay import use_file, use_found
from epl.utils.errors import PlanError


class StrategyFeature(Feature):
    """Uses a strategy when the model is first differentiated by its variables, or records one.

    It is that of `auto.plan_file`, or that which the planner finds, for `auto.planner` and `auto.balance`.
    """

    origin = OpOrigin("auto.plan_file", "strategy")

    def annotate(self, ys: Any, xs: Sequence[Any]) -> None:
        """Annotates and configures the model of the default graph."""
        env = Env.get()
        path, trials = env.config.auto.plan_file, env.config.auto.trials
        if trials and not record.is_recording():
            raise PlanError(
                f"auto.trials is {trials}, and a job tries no plans. Try them before it, and train by the fastest: "
                f"epl-plan --search --trials {trials} --save plan.json script.py, then epl-launch -x "
                "EPL_AUTO_PLAN_FILE=plan.json script.py."
            )
        if not strategy_key(env.config) or all(variable_name(x) is None for x in xs):
            return
        graph = Graph.of(tf.get_default_graph(), may_create=True)
        assert graph is not None
        if graph.rewritten is not None or graph.state_of(Strategy) is not None:
            return
        graph.refuse_earlier_model()
        if path and env.config.auto.planner == "search":
            raise PlanError(
                f'auto.plan_file is {path!r} and auto.planner is "search": a model is trained by the strategy of the '
                "file, or by what the search finds. Leave one of them out."
            )
        if path:
            use_file(graph, ys, path)
        else:
            assert env.find_strategy is not None
            use_found(graph, ys, xs, env.find_strategy)

    def before_gradients(self, graph: Graph, request: GradientsRequest) -> GradientsRequest:
        """Notes the forward pass, if a strategy is recorded, or told by `auto.explain`."""
        if _is_noted() and any(variable_name(x) is not None for x in request.xs):
            record.note_forward_pass(graph, request.asked_for, request.xs)
        return request

    def changes_runs(self, graph: Graph) -> bool:
        """Whether the first run ends the script."""
        return record.is_recording()

    def around_run(self, graph: Graph, request: RunRequest, run: Run) -> List[Any]:
        """Ends a script that is recorded, when it would train."""
        if record.is_recording() and graph.rewritten is not None:
            record.end_script(graph.tf_graph)
        return run(request)


def _is_noted() -> bool:
    env = Env.get()
    is_told = bool(env.config.auto.explain) and env.cluster is not None and env.cluster.worker_index == 0
    return record.is_recording() or is_told
