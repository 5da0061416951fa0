"""The choices of a program that cost least, by an integer program that CBC solves: what the beam search is held to.

    x[s, c]    whether step s takes choice c
    y[v, k]    whether all steps together treat value v in way k: the placement in which it comes, and the forms in
               which each step takes it, in their order

The forms of a value, and so the cost of its reshardings, follow from what its producer and its consumers do with it, so
the cost is a sum over the x and the y. For each step the y of a value agree with the x of the step; integer x then
leave one y of each value. Shards are equal here, and nothing is computed from variables alone.
"""

import itertools
from typing import Any, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

import pulp

from epl.parallel.sharding.placements import REPLICATED, Placement, shares
from epl.parallel.split.program import VARIABLE, Program, Step, num_bytes
from epl.parallel.split.resharding_paths import Form, Link, count_collectives, route, total_bytes, wanted_form
from epl.parallel.split.search import is_trained, native_placement, output_form, placements_of, without_limit

_LARGE_VARIABLE = 64 * 1024  # bytes, below which a variable that each rank has in full costs less than its bytes
_GATHERED = 0.25  # of what a variable in full costs: for one that is gathered where it is used


class Treatment(NamedTuple):
    """What one step does with one value.

    Attributes:
      given: the placement in which the step computes it; None if it does not.
      taken: the placements in which it takes it, and whether as a part of a computation on shards.
    """

    given: Optional[Placement]
    taken: Tuple[Tuple[Placement, bool], ...]


class SplitCosts:
    """The costs of the choices of a program: the seconds that the module of the search describes."""

    def __init__(self, program: Program, link: Link, full_variable: float) -> None:
        self.program, self._link, self._full_variable = program, link, full_variable
        self.users: Dict[int, List[int]] = {}  # value -> the steps that compute or take it, in their order
        for index, step in enumerate(program.steps):
            assert not step.draws and not any(step.info.ratios), step.op.name
            for number in dict.fromkeys(step.inputs + step.outputs):
                self.users.setdefault(number, []).append(index)

    def decision(self, choices: Sequence[int]) -> float:
        """The seconds of a decision."""
        steps = self.program.steps
        found = sum(self.step(step, choice) for step, choice in zip(steps, choices))
        for number, users in self.users.items():
            cost = self.value(number, [self.treatment(number, steps[user], choices[user]) for user in users])
            assert cost is not None, number
            found += cost
        return found

    def step(self, step: Step, choice: int) -> float:
        """The seconds in which a rank computes, and moves what a composite op moves."""
        if choice < 0:
            return step.seconds
        found = step.choices[choice]
        cut = [placement for placement in found.inputs + found.outputs if placement.is_shard]
        work = max([max(shares(placement, self.program.ranks)) for placement in cut], default=1.0)
        inside = found.built(is_trained(self.program, step))
        sent = sum(one.sent(self.program.ranks) for one in inside)
        return step.seconds * work + len(inside) * self._link.latency + sent / self._link.bandwidth

    def treatment(self, number: int, step: Step, choice: int) -> Treatment:
        """What a step does with a value."""
        into, out = placements_of(step, choice)
        given = [placement for other, placement in zip(step.outputs, out) if other == number]
        taken = tuple((placement, choice >= 0) for other, placement in zip(step.inputs, into) if other == number)
        return Treatment(given[0] if given else None, taken)

    def value(self, number: int, treatments: Sequence[Treatment]) -> Optional[float]:
        """The seconds of a value: of its copies and of all its reshardings; None if one of them cannot be made."""
        value, cost = self.program.values[number], 0.0
        forms: Tuple[Form, ...] = ()
        for given, taken in treatments:
            wanted = []
            if given is not None:
                forms = (Form(given, False),)
                wanted += [form for form in [output_form(self.program, number)] if form is not None]
            for placement, of_part in taken:
                if not forms:
                    native = native_placement(self.program, number, placement)
                    if value.kind == VARIABLE and native != REPLICATED and self._must_be_full(number, native):
                        return None
                    forms = (Form(native, False),)
                    cost += self._full(number) if value.kind == VARIABLE and native == REPLICATED else 0.0
                wanted.append(wanted_form(value, placement, of_part))
            for form in wanted:
                path = route(value, self.program.ranks, forms, form)
                if (
                    path is None and given is not None
                ):  # a region output that its ops cannot have: they take it as it is
                    continue
                if path is None:
                    return None
                cost += count_collectives(path, value.trained) * self._link.latency
                cost += total_bytes(path) / self._link.bandwidth
                if path and value.kind == VARIABLE and form.placement == REPLICATED != forms[0].placement:
                    cost += _GATHERED * self._full(number)
                forms += tuple(one.target for one in path)
        return cost

    def _must_be_full(self, number: int, native: Placement) -> bool:
        is_kept = any(step.kept and number in step.inputs for step in self.program.steps)
        return is_kept or not native.is_shard or native.sizes is None

    def _full(self, number: int) -> float:
        size = num_bytes(self.program.values[number])
        beyond = (1 - 1 / self.program.ranks) * size * min(1.0, size / _LARGE_VARIABLE)
        return beyond * self._full_variable / self._link.bandwidth


def solve(costs: SplitCosts, scale: float) -> Tuple[int, ...]:
    """The choices that cost least.

    Args:
      costs: of a program.
      scale: about the seconds of the best decision, for numbers that CBC takes well.
    """
    problem = pulp.LpProblem("split", pulp.LpMinimize)
    steps = costs.program.steps
    x = {
        (index, choice): pulp.LpVariable(f"x_{index}_{choice + 1}", cat="Binary")
        for index, step in enumerate(steps)
        for choice in without_limit(step)
    }
    seconds: List[Any] = [costs.step(steps[index], choice) / scale * one for (index, choice), one in x.items()]
    for index, step in enumerate(steps):
        problem += pulp.lpSum(x[index, choice] for choice in without_limit(step)) == 1
    for number, users in costs.users.items():
        of_user: List[Dict[Hashable, List[Any]]] = []  # treatment -> the x that lead to it
        for user in users:
            made: Dict[Hashable, List[Any]] = {}
            for choice in without_limit(steps[user]):
                made.setdefault(costs.treatment(number, steps[user], choice), []).append(x[user, choice])
            of_user.append(made)
        ways: Dict[Tuple[int, Hashable], List[Any]] = {(at, one): [] for at, made in enumerate(of_user) for one in made}
        for way, treatments in enumerate(itertools.product(*of_user)):
            cost = costs.value(number, treatments)
            if cost is None:
                continue
            y = pulp.LpVariable(f"y_{number}_{way}", 0, 1)
            seconds.append(cost / scale * y)
            for at, one in enumerate(treatments):
                ways[at, one].append(y)
        for (at, one), ys in ways.items():
            problem += pulp.lpSum(ys) == pulp.lpSum(of_user[at][one])
    problem += pulp.lpSum(seconds)
    problem.solve(pulp.PULP_CBC_CMD(msg=False, gapRel=0.0, threads=1, timeLimit=120))
    assert pulp.LpStatus[problem.status] == "Optimal"
    taken = {index: choice for (index, choice), one in x.items() if one.value() > 0.5}
    return tuple(taken[index] for index in range(len(steps)))
