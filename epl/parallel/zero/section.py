"""What the plan says of ZeRO."""

from typing import Dict, Optional, Sequence

from epl.ir.graph import Graph
from epl.parallel.plan.sections import ShardedVariable, ZeroSection
from epl.parallel.sharding.placements import Layout
from epl.parallel.zero.partition import Candidate


def note(graph: Graph, level: str, stages: int, candidates: Sequence[Candidate], layouts: Dict[str, Layout]) -> None:
    """Adds variables to what was decided.

    Args:
      graph: the annotated model.
      level: of ZeRO.
      stages: how many the model has.
      candidates: the variables that are about to be trained.
      layouts: of those that are cut.
    """
    before = graph.state_of(ZeroSection) or ZeroSection(level, stages, ())
    variables = {one.variable: one for one in before.variables}
    variables.update((one.name, _variable(one, layouts.get(one.name))) for one in candidates)
    graph.keep(ZeroSection, before._replace(variables=tuple(variables.values())))


def _variable(candidate: Candidate, layout: Optional[Layout]) -> ShardedVariable:
    if layout is None:
        return ShardedVariable(candidate.name, candidate.bytes, -1, ())
    return ShardedVariable(candidate.name, candidate.bytes, layout.dim, layout.sizes or ())
