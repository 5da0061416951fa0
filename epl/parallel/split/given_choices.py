"""Choices that are given by op: some by the annotation of a scope, all by a plan that was loaded.

    epl.split(2, choices={"fc1/MatMul": "shard(1)", "block_*/add": "full, full -> full"})
                          pattern of op names        placements of the outputs, or of inputs and outputs, as text

Texts are those of a printed plan: "full", "partial", "shard(1)", or with sizes "shard(1: 3+1)". For each op with a text
the search takes only the choices that fit it, and searches around them.
"""

import difflib
import fnmatch
from typing import Dict, List, NamedTuple, Sequence, Tuple

from epl.ir.colocation import taskgraph_index
from epl.parallel.plan.loaded import misfit
from epl.parallel.plan.sections import InsideExchange, OpChoice, SplitSection
from epl.parallel.plan.strategy import SplitChoices
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.rules.common import assumed_bytes
from epl.parallel.split.program import Program, Step
from epl.parallel.split.search import Limits, placements_of, without_limit
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

_NEAREST = 3  # names that a message gives


class ScopeChoices(NamedTuple):
    """The choices that the annotation of a split TaskGraph gives.

    Attributes:
      taskgraph: its index.
      scope: for messages.
      choices: (pattern of op names, placements as text).
    """

    taskgraph: int
    scope: str
    choices: Tuple[Tuple[str, str], ...]


def annotated(program: Program, scopes: Sequence[ScopeChoices]) -> Dict[int, List[str]]:
    """Maps numbers of steps to the texts that are given for them.

    Raises:
      PlanError: a pattern matches no op that its scope computes.
    """
    found: Dict[int, List[str]] = {}
    for scope in scopes:
        steps = {op.name: step for op, step in program.steps_of_ops().items() if taskgraph_index(op) == scope.taskgraph}
        for pattern, text in scope.choices:
            matched = {step for name, step in steps.items() if fnmatch.fnmatchcase(name, pattern)}
            if not matched:
                raise _no_op(scope, pattern, list(steps))
            for step in matched:
                found.setdefault(step, []).append(text)
    return found


def of_strategy(program: Program, strategy: SplitChoices) -> Dict[int, List[int]]:
    """Maps numbers of steps to their choices in a strategy; steps that it does not name are not among them.

    Raises:
      PlanError: an op cannot be computed so.
    """
    found = {}
    for number, step in enumerate(program.steps):
        text = strategy.placements.get(step.op.name)
        if text is not None:
            found[number] = [one for one in without_limit(step) if fits(step, one, text)] if text else [-1]
            if not found[number]:
                raise PlanError(
                    'split: the strategy of auto.plan_file has {!r} for {} "{}" ({}), and it cannot be computed so. It '
                    "can be computed as {}. Make another strategy.".format(
                        text, step.op.type, step.op.name, user_line(step.op), _told(step)
                    )
                )
    return found


def limits_of(program: Program, texts: Dict[int, List[str]]) -> Limits:
    """Maps numbers of steps to their choices that fit all texts given for them.

    Raises:
      PlanError: a step has no such choice.
    """
    limits = {}
    for number, asked in texts.items():
        step = program.steps[number]
        limits[number] = [choice for choice in without_limit(step) if all(fits(step, choice, one) for one in asked)]
        if not limits[number]:
            raise PlanError(
                'split: the choices give {} for {} "{}" ({}), and it cannot be computed so. It can be computed as {}.'
                .format(" and ".join(map(repr, asked)), step.op.type, step.op.name, user_line(step.op), _told(step))
            )  # fmt: skip
    return limits


def planned(program: Program, section: SplitSection) -> List[List[int]]:
    """For each step, its choices with the placements of a loaded plan.

    Raises:
      PlanError: the plan belongs to another model.
    """
    ops = {choice.op: choice for choice in section.ops}
    found = []
    for step in program.steps:
        choice = ops.pop(step.op.name, None)
        text = None if choice is None else choice.text()
        found.append([-1] if text is None else [one for one in without_limit(step) if fits(step, one, text)])
        if not found[-1]:
            raise misfit(f"{step.op.name!r} cannot be computed as {text}")
    if ops:
        raise misfit(f"the split has no op {min(ops)!r}, which the plan computes on shards")
    return found


def choice_of(step: Step, choice: int, trained: bool = False) -> OpChoice:
    """A choice of a step as names, placements and collectives, those of its gradient too if it is trained."""
    inputs, outputs = (tuple(map(str, placements)) for placements in placements_of(step, choice))
    inside = []
    for one in step.choices[choice].built(trained) if choice >= 0 else ():
        result = step.info.outputs[0]
        whole = max(assumed_bytes(result.shape, result.dtype.size), 1.0)
        held = one.nbytes if one.held is None else one.held
        inside.append(InsideExchange(one.collective, one.is_backward, one.nbytes / whole, held / whole))
    return OpChoice(step.op.name, inputs, outputs, inside=tuple(inside))


def fits(step: Step, choice: int, text: str) -> bool:
    """Whether a choice of a step has the placements of a text; without inputs, it may name the first outputs alone."""
    inputs, outputs = placements_of(step, choice)
    before, arrow, after = text.replace(" ", "").rpartition("->")
    wanted = _parts(after)
    if not arrow:
        return bool(wanted) and len(wanted) <= len(outputs) and all(map(_is_so, wanted, outputs))
    return _are_so(_parts(before), inputs) and _are_so(wanted, outputs)


def _parts(text: str) -> List[str]:
    return text.split(",") if text else []


def _are_so(texts: Sequence[str], placements: Sequence[Placement]) -> bool:
    return len(texts) == len(placements) and all(map(_is_so, texts, placements))


def _is_so(text: str, placement: Placement) -> bool:
    return text in [str(one).replace(" ", "") for one in (placement, placement._replace(sizes=None))]


def _told(step: Step) -> str:
    """The choices of a step, for a message."""
    return " | ".join(dict.fromkeys(repr(choice_of(step, choice).text()) for choice in without_limit(step)))


def _no_op(scope: ScopeChoices, pattern: str, names: List[str]) -> PlanError:
    nearest = difflib.get_close_matches(pattern, names, _NEAREST, 0.0)
    return PlanError(
        "split: the choices of {} are for {!r}, and the scope has no op of that name to compute: variables and "
        "constants do not count. The nearest names are {}.".format(scope.scope, pattern, ", ".join(map(repr, nearest)))
    )
