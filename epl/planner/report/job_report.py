"""Tells the plan of a graph: `epl-plan` prints it, and a job with `auto.explain` does when its graph is rewritten.

auto.explain    "text"                    on standard error
                path.html or path.json    to that file, written whole or not at all
"""

import logging
import os
import sys
from typing import Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan import strategy as strategies
from epl.parallel.strategy import record
from epl.planner.report import page
from epl.planner.report.simulated_plan import SimulatedPlan, simulate_plan
from epl.profiler import explanation_report
from epl.utils.slow import told_when_slow
from epl.utils.whole_file import write_whole

logger = logging.getLogger("epl")

TEXT = "text"
_KEY = "auto.explain"
_OTHER_MEMORY = "on the machine below; the estimate of memory above knows neither its speed nor auto.rows"


def describe_job(graph: Graph, plan: SimulatedPlan) -> str:
    """All that is told of a rewritten graph and its plan, as text."""
    parts = [
        explanation_report.describe_rewritten(graph),
        _titled("Strategy:", strategies.describe(plan.strategy, plan.blocks_from)),
        _titled("Simulation:", ([_OTHER_MEMORY] if plan.prediction else []) + plan.describe()),
    ]
    return "\n\n".join(parts)


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
