"""ZeRO's section of the plan: which variables are sharded, and how."""

from typing import Dict, List, Optional, Sequence

from epl.ir.graph import Graph
from epl.parallel.plan.loaded import given, misfit
from epl.parallel.plan.sections import ShardedVariable, ZeroSection
from epl.parallel.plan.zero_decisions import Candidate, choose_placements
from epl.parallel.sharding.placements import Placement, shard


def note(
    graph: Graph, level: str, stages: int, candidates: Sequence[Candidate], placements: Dict[str, Placement]
) -> None:
    """Adds variables to the section.

    Args:
      graph: the annotated model.
      level: `zero.level`.
      stages: number of stages of the model.
      candidates: the variables that are about to be trained.
      placements: the placements of the sharded ones, by variable.
    """
    before = graph.state_of(ZeroSection) or ZeroSection(level, stages, ())
    variables = {one.variable: one for one in before.variables}
    variables.update((one.name, _variable(one, placements.get(one.name))) for one in candidates)
    graph.keep(ZeroSection, before._replace(variables=tuple(variables.values())))


def decide(candidates: Sequence[Candidate], surplus: List[float]) -> Dict[str, Placement]:
    """The placements of the variables to shard, by name: those of the loaded plan, else those of `choose_placements`.

    Args:
      candidates: the variables that are about to be trained.
      surplus: see `choose_placements`.

    Raises:
      PlanError: the loaded plan belongs to another model.
    """
    section = given(ZeroSection)
    if section is None:
        return choose_placements(candidates, surplus)
    planned = {one.variable: one for one in section.variables}
    missing = sorted(one.name for one in candidates if one.name not in planned)
    if missing:
        raise misfit(f"the variable {missing[0]!r} is trained, and the plan does not know it")
    return {one.name: _placement(one, planned[one.name], len(surplus)) for one in candidates if planned[one.name].sizes}


def _placement(candidate: Candidate, planned: ShardedVariable, ranks: int) -> Placement:
    """The placement of a variable in the loaded plan."""
    size = candidate.shape[planned.dim] if planned.dim < len(candidate.shape) else 0
    if sum(planned.sizes) != size or len(planned.sizes) != ranks:
        raise misfit(
            f"the variable {candidate.name!r} of the shape {list(candidate.shape)} lies on {ranks} ranks, and the plan "
            f"cuts dimension {planned.dim} into {list(planned.sizes)}"
        )
    return shard(planned.dim, planned.sizes)


def _variable(candidate: Candidate, placement: Optional[Placement]) -> ShardedVariable:
    if placement is None:
        return ShardedVariable(candidate.name, candidate.bytes, -1, ())
    return ShardedVariable(candidate.name, candidate.bytes, placement.dim, placement.sizes or ())
