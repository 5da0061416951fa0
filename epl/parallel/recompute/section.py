"""What the plan says of recomputation, where EPL decides which segments there are."""

from typing import Dict, Sequence, Set, Tuple

from epl.ir.view import GraphView
from epl.parallel.costs.costs import Costs
from epl.parallel.plan.loaded import given, misfit
from epl.parallel.plan.sections import RecomputeSection, StageDivision
from epl.parallel.recompute.candidates import SegmentChoice, Starts, choose, divided, orders_of
from epl.parallel.recompute.segments import BackwardPass


def decide(
    view: GraphView,
    backward: BackwardPass,
    recomputable: Set[int],
    stages: Sequence[int],
    costs: Costs,
    budget: int,
    call: int,
    objective: str,
) -> SegmentChoice:
    """The segments: as the plan in use says, else those that `choose` finds best.

    Args:
      view, backward, recomputable, stages, costs, budget: as for `choose`.
      call: number of the call of tf.gradients, among those that train.
      objective: what it differentiates, as the plan names it.

    Raises:
      PlanError: the plan in use is that of another model, or a stage needs more than the budget.
    """
    section = given(RecomputeSection)
    if section is None:
        return choose(view, backward, recomputable, stages, costs, budget)
    planned = {one.stage: one for one in section.divisions if (one.call, one.objective) == (call, objective)}
    divisions: Dict[int, Starts] = {}
    for stage, order in orders_of(backward, recomputable, stages).items():
        if stage not in planned:
            raise misfit(f"stage {stage} has ops that may be recomputed for {objective}, and the plan divides no such")
        numbers = {view.nodes[node].name: node for node in order}
        missing = [name for name in planned[stage].starts if name not in numbers]
        if missing:
            raise misfit(f"a segment begins with {missing[0]!r} in the plan, and that may not be recomputed")
        divisions[stage] = Starts([numbers[name] for name in planned[stage].starts], planned[stage].whole)
    return divided(view, backward, recomputable, stages, divisions)


def divisions_of(view: GraphView, choice: SegmentChoice, call: int, objective: str) -> Tuple[StageDivision, ...]:
    """A choice by the names of ops, for the plan."""
    return tuple(
        StageDivision(call, objective, stage, tuple(view.nodes[node].name for node in found.starts), tuple(found.whole))
        for stage, found in choice.divisions.items()
    )
