"""Sorts graph passes by their contracts; runs them, times them and counts the ops that they add.

EPL_SKIP_PASS=name,name    leaves out passes that do not change the numbers of the model
EPL_DUMP_GRAPH=folder      writes the GraphDef after each pass
EPL_VERIFY=1 or =last      checks the graph after each pass, or after the last one; and the contracts of passes
"""

import logging
import os
import time
from typing import TYPE_CHECKING, Callable, FrozenSet, List, NamedTuple, Sequence

from epl.ir.inserted_ops import OpOrigin
from epl.parallel.rewriting import verifier
from epl.utils import tf_compat
from epl.utils.errors import PlanError

if TYPE_CHECKING:
    from epl.parallel.rewriting.context import RewriteContext

logger = logging.getLogger("epl")

_NOTHING: FrozenSet[str] = frozenset()


class Pass(NamedTuple):
    """One pass over the graph.

    Attributes:
      name: name in reports.
      run: the function that changes the graph.
      decision: what asks for it: a configuration key, or a word for what the annotation says, such as "replicas".
      provides: attributes of the context that it sets; no other pass does.
      adds: collections of the context that it adds to, as other passes may.
      requires: attributes of the context that it reads, after all passes have provided them or added to them.
      after: names of passes that must change the graph before it, if they run.
      plain: whether it also runs on a graph of one replica on one device.
      optional: whether the model computes the same bits without it: it saves memory or time only.
    """

    name: str
    run: Callable[["RewriteContext"], None]
    decision: str
    provides: FrozenSet[str] = _NOTHING
    adds: FrozenSet[str] = _NOTHING
    requires: FrozenSet[str] = _NOTHING
    after: FrozenSet[str] = _NOTHING
    plain: bool = False
    optional: bool = False


def names(text: str) -> FrozenSet[str]:
    """The words of a text as a set, for contracts."""
    return frozenset(text.split())


class PassReport(NamedTuple):
    """The cost of a pass: CPU seconds, and ops added to the graph."""

    name: str
    cpu_s: float
    ops_added: int


def in_order(passes: Sequence[Pass]) -> List[Pass]:
    """Sorts passes: each after the passes in its `after` and the providers of its `requires`; else in the given order.

    Raises:
      ValueError: passes wait for each other.
    """
    waiting, result = list(passes), []
    while waiting:
        ready = next((p for p in waiting if not any(_goes_ahead(other, p) for other in waiting)), None)
        if ready is None:
            raise ValueError("Passes wait for each other: {}.".format(", ".join(repr(p.name) for p in waiting)))
        waiting.remove(ready)
        result.append(ready)
    return result


def _goes_ahead(one: Pass, other: Pass) -> bool:
    """Whether a pass has to run before another one."""
    return one is not other and (one.name in other.after or bool((one.provides | one.adds) & other.requires))


def _without_skipped(passes: Sequence[Pass]) -> List[Pass]:
    """The passes without those that EPL_SKIP_PASS names.

    Raises:
      PlanError: a name is no pass, or the numbers of the model depend on the pass.
    """
    skipped = {name.strip() for name in os.environ.get("EPL_SKIP_PASS", "").split(",")} - {""}
    known = {p.name: p for p in passes}
    for name in sorted(skipped):
        if name not in known or not known[name].optional:
            raise PlanError(
                "EPL_SKIP_PASS names {!r}, {}. Passes that can be skipped here: {}.".format(
                    name,
                    "without which the model would compute other numbers" if name in known else "which is no pass",
                    ", ".join(p.name for p in passes if p.optional),
                )
            )
    return [p for p in passes if p.name not in skipped]


def run_passes(passes: Sequence[Pass], rewrite: "RewriteContext") -> List[PassReport]:
    """Runs the passes in the given order, which `in_order` has made."""
    reports: List[PassReport] = []
    dump, verify = os.environ.get("EPL_DUMP_GRAPH"), os.environ.get("EPL_VERIFY")
    ordered = _without_skipped(passes)
    known = tf_compat.op_names(rewrite.tf_graph)
    for number, p in enumerate(ordered):
        start, ops = time.process_time(), tf_compat.num_nodes(rewrite.tf_graph)
        rewrite.running = p
        p.run(rewrite)
        rewrite.running = None
        report = PassReport(p.name, time.process_time() - start, tf_compat.num_nodes(rewrite.tf_graph) - ops)
        reports.append(report)
        if report.ops_added:
            names = tf_compat.op_names(rewrite.tf_graph)
            rewrite.graph.inserted.add(names - known, OpOrigin(p.decision, p.name))
            known = names
        if verify and (verify != "last" or p is ordered[-1]):
            verifier.check_rewrite(rewrite, [one.name for one in reports])
        logger.debug("pass %d %s: %.3f s CPU, %d ops added", number, report.name, report.cpu_s, report.ops_added)
        if dump:
            _dump(rewrite, dump, f"{rewrite.plan.name}_{number:02d}_{p.name}.pbtxt")
    return reports


def _dump(rewrite: "RewriteContext", folder: str, name: str) -> None:
    if not os.path.isdir(folder):
        os.makedirs(folder)
    with open(os.path.join(folder, name), "w") as out:
        out.write(str(tf_compat.full_graph_def(rewrite.tf_graph)))
