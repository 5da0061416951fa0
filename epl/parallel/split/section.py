"""The section of the plan for a split: the choice of each op, and the placements of variables."""

from typing import Optional, Sequence

from epl.parallel.plan.loaded import given, misfit
from epl.parallel.plan.sections import ShardedVariable, SplitSection
from epl.parallel.plan.strategy import SplitChoices
from epl.parallel.sharding.placements import Placement
from epl.parallel.split.given_choices import ScopeChoices, annotated, choice_of, limits_of, of_strategy, planned
from epl.parallel.split.groups import SplitPlan
from epl.parallel.split.program import Program, Value, num_bytes
from epl.parallel.split.resharding_paths import Link
from epl.parallel.split.search import Decision, Limits, is_trained, search, variable_placements
from epl.utils.errors import PlanError


def section_of(plan: SplitPlan, program: Program, decision: Decision) -> SplitSection:
    """A decision as names and placements.

    Args:
      plan: the devices of the split.
      program: the unsplit program of its region.
      decision: how the program is computed.
    """
    ops = tuple(
        choice_of(step, choice, is_trained(program, step))._replace(given=number in decision.given)
        for number, (step, choice) in enumerate(zip(program.steps, decision.choices))
        if choice >= 0 or number in decision.given
    )
    variables = [
        _variable(program.values[number], placement)
        for number, placement in variable_placements(program, decision).items()
    ]
    return SplitSection(plan.groups, plan.ratios, ops, tuple(variables))


def decide(
    program: Program, link: Link, scopes: Sequence[ScopeChoices] = (), strategy: Optional[SplitChoices] = None
) -> Decision:
    """How a program is computed: by the plan in use, else by a search among the choices that are left.

    Args:
      program: the unsplit program of the region.
      link: the connection between the devices.
      scopes: the choices that annotations give.
      strategy: those of the strategy by which the model is trained, if there is one.

    Raises:
      PlanError: an op cannot be computed as it is given, or the plan in use belongs to another model.
    """
    texts = annotated(program, scopes)
    limits = limits_of(program, texts)
    if strategy is not None:
        limits = _both(program, limits, of_strategy(program, strategy))
    section = given(SplitSection)
    decision = search(program, link, limits=limits) if section is None else _decision_of(section, program, limits)
    return decision._replace(given=tuple(sorted(texts)))


def _both(program: Program, by_scope: Limits, of_file: Limits) -> Limits:
    """The choices that both leave."""
    found = {**by_scope, **of_file}
    for number in set(by_scope).intersection(of_file):
        found[number] = [one for one in of_file[number] if one in by_scope[number]]
        if not found[number]:
            raise PlanError(
                "split: the choices of the scope of {!r} and the strategy of auto.plan_file give other placements for "
                "it. Leave it out of the choices, so that the strategy decides, or make a strategy of this "
                "script.".format(program.steps[number].op.name)
            )
    return found


def _decision_of(section: SplitSection, program: Program, limits: Limits) -> Decision:
    """The decision in the section of a loaded plan; of choices with the same placements, that which moves least."""
    choices = []
    for number, (step, alike) in enumerate(zip(program.steps, planned(program, section))):
        if number in limits and not set(alike).intersection(limits[number]):
            raise misfit(f"the scope of {step.op.name!r} gives other placements for it")
        moved = [step.choices[choice].moved(program.ranks, True) if choice >= 0 else 0.0 for choice in alike]
        choices.append(alike[moved.index(min(moved))])
    return Decision(tuple(choices), 0.0)


def _variable(value: Value, placement: Placement) -> ShardedVariable:
    return ShardedVariable(value.tensor.op.name, num_bytes(value), placement.dim, placement.sizes or ())
