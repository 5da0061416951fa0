"""An explanation as tables for a terminal; `epl.explain()` and EPL_EXPLAIN=1 print it."""

import logging
import re
import sys
from typing import Any, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.taskgraph import Phase
from epl.parallel.plan import explain as plan_line
from epl.parallel.plan import plan as plans
from epl.parallel.plan import schedule as schedules
from epl.parallel.plan import schedule_simulator
from epl.parallel.plan.plan import Plan
from epl.parallel.replication.replica_rows import describe_rows
from epl.profiler import output_files, tables
from epl.profiler.estimate import report
from epl.profiler.explanation import Explanation, explanation
from epl.profiler.origins import describe_origins

logger = logging.getLogger("epl")

_WIDTH = 120  # columns of a picture
_MOST_DEVICES = 4  # in a cell


def print_explanation(fetches: Any = None, feed_dict: Optional[Dict[Any, Any]] = None) -> None:
    """Prints the explanation of a step on standard output, on worker 0; arguments and errors as `explanation`."""
    text = describe(explanation(fetches, feed_dict))
    graph = Graph.get()
    assert graph is not None
    graph.says_first(plan_line.TABLES)  # so the first run does not print them again
    if output_files.is_first_worker():
        print(text, flush=True)


def print_at_first_run(tf_graph: tf.Graph) -> None:
    """Prints the explanation of a rewritten graph on standard error, if EPL_EXPLAIN asks for it and nothing did yet.

    If it cannot be made, the plan is printed, with a warning.
    """
    graph = Graph.of(tf_graph)
    assert graph is not None and graph.rewritten is not None
    if graph.says_first(plan_line.TABLES) and plan_line.wants_tables(graph.rewritten.cluster):
        sys.stderr.write(describe_rewritten(graph) + "\n")


def describe_rewritten(graph: Graph, feed_dict: Optional[Dict[Any, Any]] = None) -> str:
    """The explanation of a rewritten graph in tables; its plan, with a warning, if the step cannot be explained.

    Args:
      graph: the graph.
      feed_dict: what this process would feed, or its shapes; None: nothing is known of it.
    """
    rewrite = graph.rewritten
    assert rewrite is not None
    try:
        with graph.tf_graph.as_default():
            return describe(explanation(feed_dict=feed_dict))
    except Exception as error:  # the training does not need it
        logger.warning("EPL cannot explain the model (%r): call epl.explain(train_op, feed_dict) in the script.", error)
        return f"EPL: {plan_line.summary(rewrite.plan, rewrite.cluster)}\n\n{plans.describe(rewrite.plan)}"


def describe(found: Explanation) -> str:
    """The explanation in tables; sizes in MB of 10^6 bytes, FLOPs in GFLOPs of 10^9."""
    plan = found.plan
    parts = [
        [f"EPL: {found.title}"],
        _titled("TaskGraphs, on one replica; GFLOPs of a step:", _taskgraphs(found)),
        report.describe(found.memory).splitlines(),
        _schedule(plan),
        _titled("Tensors between devices in a step, on one replica:", _transfers(found)),
        _titled("Collectives of a step, on one rank:", _collectives(found)),
        _titled("Gradients and outputs:", plans.describe_gradients(plan)),
        _titled("What is not that of one device on all rows:", describe_rows(found.own_rows)),
        _titled("Where ops come from:", describe_origins(found.origins)),
        _titled("Features:", plans.describe_batches(plan) + plans.describe_features(plan)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _titled(title: str, lines: Sequence[str]) -> List[str]:
    return [title] + ["  " + line for line in lines] if lines else []


def _taskgraphs(found: Explanation) -> List[str]:
    rows: List[Sequence[str]] = [
        ("", "strategy", "stage", "devices", "ops", "parameters", "MB", "forward", "backward", "update")
    ]
    for one in found.taskgraphs:
        flops = [one.flops.get(phase, 0.0) / 1e9 for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.APPLY)]
        numbers = [f"{one.ops:,}", f"{one.parameters:,}", f"{one.bytes / 1e6:.3f}"] + [f"{n:.6f}" for n in flops]
        rows.append([str(one.index), one.strategy, str(one.stage), _devices(one.devices)] + numbers)
    return tables.aligned(rows, left=(0, 1, 3))


def _devices(names: Sequence[str]) -> str:
    shown = [device_title(name) for name in names[:_MOST_DEVICES]]
    more = [f"... ({len(names)})"] if len(names) > _MOST_DEVICES else []
    return ", ".join(shown + more)


def device_title(device: str) -> str:
    """A device for people, that of a host too: `CPU:0`, in a job of several workers `worker 1 CPU:0`."""
    match = re.match(r"(.*?)( \(host\))?$", device)
    assert match is not None
    return output_files.title_of_device(match.group(1)) + (match.group(2) or "")


def _schedule(plan: Plan) -> List[str]:
    """The picture of a pipeline's schedule."""
    if not plan.schedule:
        return []
    schedule = schedules.from_text(plan.schedule)
    idle = schedule_simulator.simulate(schedule, 1.0, 2.0).bubble
    title = (
        f"Schedule {schedule.name}, {plan.num_micro_batch} micro batches; with equal stages, whose backward pass takes "
        f"twice the time, devices are idle {100 * sum(idle) / len(idle):.0f}% of a step:"
    )
    picture = schedule_simulator.draw(schedule).splitlines()
    return _titled(title, [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in picture])


def _transfers(found: Explanation) -> List[str]:
    if not found.transfers:
        return []
    rows: List[Sequence[str]] = [("from", "to", "tensors", "MB")]
    for one in found.transfers:
        source, target = device_title(one.source), device_title(one.target)
        rows.append((source, target, str(one.tensors), f"{one.bytes / 1e6:.3f}"))
    return tables.aligned(rows, left=(0, 1))


def _collectives(found: Explanation) -> List[str]:
    if not found.collectives:
        return []
    rows: List[Sequence[str]] = [("kind", "communicator", "ranks", "calls", "MB", "MB sent")]
    for one in found.collectives:
        size, sent = f"{one.bytes / 1e6:.3f}", f"{one.sent / 1e6:.3f}"
        rows.append((one.kind.replace("_", "-"), one.communicator, str(one.ranks), str(one.calls), size, sent))
    total = sum(one.sent for one in found.collectives)
    rows.append(("total", "", "", str(sum(one.calls for one in found.collectives)), "", f"{total / 1e6:.3f}"))
    return tables.aligned(rows, left=(0, 1))
