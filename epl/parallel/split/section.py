"""The section of the plan for a split: the choice of each op, and the placements of variables."""

from typing import Optional

from epl.parallel.plan.loaded import given, misfit
from epl.parallel.plan.sections import OpChoice, ShardedVariable, SplitSection
from epl.parallel.sharding.placements import Placement
from epl.parallel.split.groups import SplitPlan
from epl.parallel.split.program import Program, Step, Value, num_bytes
from epl.parallel.split.resharding_paths import Link
from epl.parallel.split.search import Decision, placements_of, search, variable_placements


def section_of(plan: SplitPlan, program: Program, decision: Decision) -> SplitSection:
    """A decision as names and placements.

    Args:
      plan: the devices of the split.
      program: the unsplit program of its region.
      decision: how the program is computed.
    """
    ops = tuple(_of_step(step, choice) for step, choice in zip(program.steps, decision.choices) if choice >= 0)
    variables = [
        _variable(program.values[number], placement)
        for number, placement in variable_placements(program, decision).items()
    ]
    return SplitSection(plan.groups, plan.ratios, ops, tuple(variables))


def decide(program: Program, link: Link) -> Decision:
    """How a program is computed: by the plan in use, else by a search.

    Args:
      program: the unsplit program of the region.
      link: the connection between the devices.

    Raises:
      PlanError: the plan in use belongs to another model.
    """
    section = given(SplitSection)
    return search(program, link) if section is None else decision_of(section, program)


def decision_of(section: SplitSection, program: Program) -> Decision:
    """The decision in a section: the inverse of `section_of`.

    Raises:
      PlanError: the section belongs to another program.
    """
    planned = {choice.op: choice for choice in section.ops}
    choices = tuple(_number(step, planned.pop(step.op.name, None)) for step in program.steps)
    if planned:
        raise misfit(f"the split has no op {min(planned)!r}, which the plan computes on shards")
    return Decision(choices, 0.0)


def _number(step: Step, planned: Optional[OpChoice]) -> int:
    """The choice of a step that has the placements of the plan, -1 without one; of several, that which moves least."""
    if planned is None:
        return -1
    alike = [number for number in range(len(step.choices)) if _of_step(step, number) == planned]
    if not alike:
        raise misfit(
            "{!r} cannot be computed as {} -> {}".format(
                planned.op, ", ".join(planned.inputs), ", ".join(planned.outputs)
            )
        )
    return min(alike, key=lambda number: step.choices[number].moved)


def _of_step(step: Step, choice: int) -> OpChoice:
    inputs, outputs = (tuple(map(str, placements)) for placements in placements_of(step, choice))
    return OpChoice(step.op.name, inputs, outputs)


def _variable(value: Value, placement: Placement) -> ShardedVariable:
    return ShardedVariable(value.tensor.op.name, num_bytes(value), placement.dim, placement.sizes or ())
