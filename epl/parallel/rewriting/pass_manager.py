"""Runs graph passes in order: checks their contracts first, then times them and counts ops."""

import logging
import os
import time
from typing import TYPE_CHECKING, Callable, FrozenSet, List, NamedTuple, Sequence, Set

from epl.parallel.rewriting import verifier
from epl.utils import tf_compat

if TYPE_CHECKING:
    from epl.parallel.rewriting.context import Rewrite

logger = logging.getLogger("epl")


class Pass(NamedTuple):
    """One rewrite of the graph.

    Attributes:
      name: for reports.
      run: does it.
      requires: what passes before it must have provided.
      provides: what holds afterwards.
      bitwise: whether replica 0 computes the same bits as before, given the same inputs and variables.
    """

    name: str
    run: Callable[["Rewrite"], None]
    requires: FrozenSet[str]
    provides: FrozenSet[str]
    bitwise: bool


class PassReport(NamedTuple):
    """What a pass cost: CPU seconds, and ops added to the graph."""

    name: str
    cpu_s: float
    ops_added: int


def check_contracts(passes: Sequence[Pass]) -> None:
    """Raises ValueError for a pass that stands before what it requires."""
    provided: Set[str] = set()
    for p in passes:
        missing = p.requires - provided
        if missing:
            raise ValueError(f"Pass {p.name!r} requires {sorted(missing)}, which no pass before it provides.")
        provided |= p.provides


def run_passes(passes: Sequence[Pass], rewrite: "Rewrite") -> List[PassReport]:
    """Runs the passes. EPL_DUMP_GRAPH=folder writes the GraphDef there after each one; EPL_VERIFY=1 checks it."""
    check_contracts(passes)
    reports: List[PassReport] = []
    provided: FrozenSet[str] = frozenset()
    dump = os.environ.get("EPL_DUMP_GRAPH")
    for number, p in enumerate(passes):
        start, ops = time.process_time(), tf_compat.num_nodes(rewrite.tf_graph)
        p.run(rewrite)
        report = PassReport(p.name, time.process_time() - start, tf_compat.num_nodes(rewrite.tf_graph) - ops)
        reports.append(report)
        provided |= p.provides
        if os.environ.get("EPL_VERIFY"):
            verifier.check_rewrite(rewrite, p.name, provided)
        logger.debug("pass %d %s: %.3f s CPU, %d ops added", number, report.name, report.cpu_s, report.ops_added)
        if dump:
            _dump(rewrite, dump, f"{rewrite.plan.name}_{number:02d}_{p.name}.pbtxt")
    return reports


def _dump(rewrite: "Rewrite", folder: str, name: str) -> None:
    if not os.path.isdir(folder):
        os.makedirs(folder)
    with open(os.path.join(folder, name), "w") as out:
        out.write(str(tf_compat.full_graph_def(rewrite.tf_graph)))
