"""What the plan says of a split: which choice the search has made for each op, and how variables lie on the ranks."""

from epl.parallel.plan.sections import OpChoice, ShardedVariable, SplitSection
from epl.parallel.sharding.placements import Layout
from epl.parallel.split.groups import SplitPlan
from epl.parallel.split.program import Program, Value, num_bytes
from epl.parallel.split.search import Decision, layouts_of, variable_layouts


def section_of(plan: SplitPlan, program: Program, decision: Decision) -> SplitSection:
    """A decision as names and layouts.

    Args:
      plan: what the split is over.
      program: of its region.
      decision: how that is computed.
    """
    ops = []
    for step, choice in zip(program.steps, decision.choices):
        if choice >= 0:
            inputs, outputs = (tuple(map(str, layouts)) for layouts in layouts_of(step, choice))
            ops.append(OpChoice(step.op.name, inputs, outputs))
    variables = [
        _variable(program.values[number], layout) for number, layout in variable_layouts(program, decision).items()
    ]
    return SplitSection(plan.groups, plan.ratios, tuple(ops), tuple(variables))


def _variable(value: Value, layout: Layout) -> ShardedVariable:
    return ShardedVariable(value.tensor.op.name, num_bytes(value), layout.dim, layout.sizes or ())
