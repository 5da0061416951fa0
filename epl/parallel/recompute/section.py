"""Recomputation's section of the plan: the segments, with `gradient_checkpoint.type` "auto"."""

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
    """The segments: those of the loaded plan, else those that `choose` finds.

    Args:
      view, backward, recomputable, stages, costs, budget: see `choose`.
      call: number of the call of tf.gradients, among those that train.
      objective: names of the tensors that it differentiates, as in the plan.

    Raises:
      PlanError: the loaded plan belongs to another model, or a stage needs more than the budget.
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
    """A choice of segments, by the names of ops, for the plan."""
    return tuple(
        StageDivision(call, objective, stage, tuple(view.nodes[node].name for node in found.starts), tuple(found.whole))
        for stage, found in choice.divisions.items()
    )
