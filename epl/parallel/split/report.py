"""Reports of a decision: the bytes that move, and the ops computed in full with the reason; refusals of variables."""

from typing import List, Tuple

from epl.parallel.sharding.placements import REPLICATED
from epl.parallel.sharding.rules.registry import RULES
from epl.parallel.split.given_choices import choice_of
from epl.parallel.split.program import Program, Step, Value, num_bytes
from epl.parallel.split.resharding_paths import collectives, is_half
from epl.parallel.split.search import Decision, is_trained, reshardings, variable_placements
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

# A split makes no sense if a variable of this many bytes has to stay REPLICATED.
REFUSED_BYTES = 16 * 1024 * 1024

_NO_WORK = frozenset(["Const", "Identity", "NoOp", "Assert"])


def moved_bytes(program: Program, decision: Decision) -> Tuple[float, float]:
    """Bytes that a rank sends in a step, forward and backward: (for resharding, inside of composite ops).

    An open batch counts with the size that the program assumes.
    """
    made = [resharding for step in reshardings(program, decision) for _, resharding in step]
    inside = sum(_inside(program, step, choice) for step, choice in zip(program.steps, decision.choices))
    return sum(resharding.forward + resharding.backward for resharding in made), inside


def _inside(program: Program, step: Step, choice: int) -> float:
    return step.choices[choice].moved(program.ranks, is_trained(program, step)) if choice >= 0 else 0.0


def table(program: Program, decision: Decision) -> str:
    """Lists the ops that are computed on shards or need resharding, and those computed in full for lack of a rule."""
    lines = [f"split over {program.ranks} devices: op, placements, bytes that a device sends in a step"]
    made_in = reshardings(program, decision)
    for number, (step, choice, made) in enumerate(zip(program.steps, decision.choices, made_in)):
        is_given = number in decision.given
        if choice >= 0 or made or is_given:
            arrow = choice_of(step, choice).text() + (" (given)" if is_given else "")
            lines.append(f"  {step.op.type} {step.op.name}: {arrow}")
        if _inside(program, step, choice):
            lines.append(f"      inside: {_inside(program, step, choice):,.0f}")
        for number, resharding in made:
            value = program.values[number]
            names = [_told(name, value) for name in collectives(resharding.kind, value.trained)]
            lines.append(
                "      {} to {}: {} {:,.0f} forward, {} {:,.0f} backward".format(
                    value.tensor.name,
                    resharding.target.placement,
                    names[0],
                    resharding.forward,
                    names[1],
                    resharding.backward,
                )
            )
    lines += _on_every_device(program, decision)
    converted, inside = moved_bytes(program, decision)
    lines.append(f"  in all {converted + inside:,.0f} bytes")
    for step in without_rule(program):
        lines.append(
            '  {} "{}" ({}) has no rule: computed in full on every device, {:.3g} ms'.format(
                step.op.type, step.op.name, user_line(step.op), step.seconds * 1e3
            )
        )
    return "\n".join(lines)


def _on_every_device(program: Program, decision: Decision) -> List[str]:
    """Names the variables that stay whole although a device has the ratio 0, with the op that takes them so."""
    lines = []
    for number, placement in variable_placements(program, decision).items():
        step = next(step for step in program.steps if number in step.inputs)
        if placement == REPLICATED and 0 in step.info.ratios:
            lines.append(
                '  variable "{}" of {:,} bytes stays whole on every device, those with the ratio 0 too: {} "{}" ({}) '
                "takes all of it".format(
                    program.values[number].tensor.op.name,
                    num_bytes(program.values[number]),
                    step.op.type,
                    step.op.name,
                    user_line(step.op),
                )
            )
    return lines


def _told(collective: str, value: Value) -> str:
    """The name of a collective, and the dtype in which it sends floats; "nothing" for none."""
    return collective + " as float16" if is_half(collective, value) else collective or "nothing"


def without_rule(program: Program) -> List[Step]:
    """The steps that are computed in full because their op types have no rule."""
    return [
        step
        for step in program.steps
        if not step.kept and step.op.type not in RULES and step.op.type not in _NO_WORK and step.outputs
    ]


def refuse_full_variables(program: Program, decision: Decision, limit: int = REFUSED_BYTES) -> None:
    """Raises PlanError if a variable of at least `limit` bytes stays REPLICATED for an op that cannot take a shard."""
    for number, placement in variable_placements(program, decision).items():
        value = program.values[number]
        if placement != REPLICATED or num_bytes(value) < limit:
            continue
        for step in program.steps:
            if number in step.inputs and not step.choices:
                reason = "is in a loop or a branch" if step.kept else "cannot be computed on parts"
                raise PlanError(
                    'split: the variable "{}" of {:,} bytes would stay whole on each of the {} devices: {} "{}" '
                    "({}), which takes it, {}. Build this layer outside of epl.split, or of other ops.".format(
                        value.tensor.op.name,
                        num_bytes(value),
                        program.ranks,
                        step.op.type,
                        step.op.name,
                        user_line(step.op),
                        reason,
                    )
                )
