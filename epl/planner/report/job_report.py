"""Tells the plan of a graph: `epl-plan` prints it, and a job with `auto.explain` does when its graph is rewritten.

auto.explain    "text"                    on standard error
                path.html or path.json    to that file, written whole or not at all
"""

import logging
import os
import sys
from typing import Dict, Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.plan import strategy as strategies
from epl.parallel.strategy import record
from epl.planner.prediction.layout import lay_out
from epl.planner.report import page
from epl.planner.report.simulated_plan import SimulatedPlan, simulate_plan
from epl.profiler import explanation_report
from epl.utils.slow import told_when_slow
from epl.utils.whole_file import write_whole

logger = logging.getLogger("epl")

TEXT = "text"
_KEY = "auto.explain"
_OTHER_MEMORY = "on the machine below; the estimate of memory above does not know its speed"


def describe_job(graph: Graph, plan: SimulatedPlan) -> str:
    """All that is told of a rewritten graph and its plan, as text."""
    parts = [
        explanation_report.describe_rewritten(graph, _fed_shapes(graph, plan)),
        _titled("Strategy:", strategies.describe(plan.strategy, plan.blocks_from)),
        _titled("Simulation:", ([_OTHER_MEMORY] if plan.prediction else []) + plan.describe()),
    ]
    return "\n\n".join(parts)


def _fed_shapes(graph: Graph, plan: SimulatedPlan) -> Dict[tf.Tensor, tf.TensorShape]:
    """What this process would feed of the rows that are simulated; {} where more is open than their number."""
    rewrite, model = graph.rewritten, plan.model
    if rewrite is None or model is None or plan.prediction is None:
        return {}
    layout = lay_out(plan.strategy, model.machine, model.rows)
    owners = rewrite.plan.owners
    rows = layout.micro_batches * sum(
        one for one, owner in zip(layout.rows, owners) if owner == rewrite.cluster.worker_index
    )
    found: Dict[tf.Tensor, tf.TensorShape] = {}
    for op in model.costs.ops:
        if op.type in op_types.PLACEHOLDERS and op.by_rows and not op.inputs:
            tensor = graph.tf_graph.get_tensor_by_name(f"{op.name}:0")
            sizes = [None] if tensor.shape.ndims is None else tensor.shape.as_list()
            if None in sizes[1:] or not sizes:
                return {}
            if sizes[0] is None:
                found[tensor] = tf.TensorShape([rows, *sizes[1:]])
    return found


def _titled(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *[f"  {line}".rstrip() for line in lines]])


def tell_at_first_run(tf_graph: tf.Graph) -> None:
    """Tells the plan of a rewritten graph as `auto.explain` asks, once after each epl.init, by worker 0.

    The training does not need it: what goes wrong is a warning.
    """
    env, graph = Env.get(), Graph.of(tf_graph)
    wanted = env.config.auto.explain
    assert env.cluster is not None and graph is not None
    if env.cluster.worker_index or record.is_recording() or not env.says_first(f"{_KEY} {env.inits}"):
        return
    try:
        with told_when_slow(f"explaining the plan ({_KEY})"), tf_graph.as_default():
            plan = simulate_plan(graph, record.strategy_of(graph))
            _tell(graph, plan, wanted)
    except Exception as error:
        logger.warning("EPL could not tell the plan, %s %r: %r. The training goes on without it.", _KEY, wanted, error)


def _tell(graph: Graph, plan: SimulatedPlan, wanted: str) -> None:
    if wanted == TEXT:
        sys.stderr.write(describe_job(graph, plan) + "\n")
        return
    is_page = wanted.lower().endswith(".html")
    write_whole(wanted, page.page(plan, os.path.basename(sys.argv[0]) or "plan") if is_page else plan.to_json())
    sys.stderr.write(f"EPL: {wanted}: the plan ({_KEY})\n")
