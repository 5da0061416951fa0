"""Finds the choices of all ops that together cost least, by a beam search over the ops in their order.

A state is the existing forms of the tensors that are still needed. Two states with the same forms have the same future,
so the search keeps the cheaper one, and of all others the cheapest `beam`. The cost is time: for what an op computes on
its shard, and for the bytes that resharding and composite ops move, forward and backward. A variable that stays
REPLICATED also costs its bytes, as each rank keeps, updates and saves all of it. All costs depend on the graph alone,
so processes with the same graph decide alike.

Where the ratio of a rank is 0, the scope is to be on the other ranks: work on that rank costs extra, and a variable
stays REPLICATED only if the rule of the first op that takes it has no shard for it.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

from epl.parallel.sharding.placements import REPLICATED, Placement, shares
from epl.parallel.sharding.rules.registry import Choice
from epl.parallel.split.batch_dims import batch_placement
from epl.parallel.split.program import ENTRY, VARIABLE, Program, Step, num_bytes
from epl.parallel.split.resharding_paths import (
    LINKS,
    Form,
    Link,
    Resharding,
    count_collectives,
    route,
    total_bytes,
    wanted_form,
)
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

BEAM = 24
_WIDER = 16  # times as many states, if given choices need one that is dear
# A byte of a variable that stays REPLICATED counts as this many bytes that are moved: every rank keeps it with its
# gradient and the slots of an optimizer, which a split is to avoid.
FULL_VARIABLE = 16.0
# A smaller variable counts less in proportion to its bytes: it is not worth a collective.
_LARGE_VARIABLE = 64 * 1024
# Seconds for a variable that stays REPLICATED although a rank is to have nothing of it: more than any step costs.
_ON_EVERY_RANK = 1e6
_LOOKUPS = frozenset(["Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"])
# A full copy gathered for use and kept for the backward pass is one of four: weight, gradient and two slots.
_GATHERED_VARIABLE = 0.25


class Decision(NamedTuple):
    """How a program is computed.

    Attributes:
      choices: for each step the number of its choice; -1: computed in full, with all tensors REPLICATED.
      seconds: the cost that the search has found; 0 for a decision of a loaded plan.
      given: numbers of the steps whose choices the annotations give.
    """

    choices: Tuple[int, ...]
    seconds: float
    given: Tuple[int, ...] = ()


# Number of a step -> the choices that it may have; a step that is not there may have any.
Limits = Mapping[int, Sequence[int]]

_Forms = Tuple[Form, ...]


class _State:
    """A decided prefix of the program."""

    __slots__ = ("cost", "forms", "key", "last")

    def __init__(self, cost: float, forms: Dict[int, _Forms], key: int, last: Optional[Tuple[Any, int]]) -> None:
        self.cost = cost
        self.forms = forms  # of the values that exist and are still needed
        self.key = key  # a hash of the forms
        self.last = last  # (last of the state before, choice)


class _Move(NamedTuple):
    choice: int
    cost: float
    kept: Dict[int, _Forms]
    gone: List[int]
    key: int


class _Candidate(NamedTuple):
    cost: float
    parent: _State
    move: _Move
    key: int


def search(
    program: Program,
    link: Link = LINKS["cpu"],
    full_variable: float = FULL_VARIABLE,
    beam: int = BEAM,
    limits: Optional[Limits] = None,
) -> Decision:
    """The choices that cost least.

    Args:
      program: the unsplit program of the region.
      link: the connection between the devices.
      full_variable: how many moved bytes a byte of a REPLICATED variable counts as.
      beam: states that the search keeps after each step.
      limits: choices that are given.

    Raises:
      PlanError: the given choices exclude each other.
    """
    made = _Search(program, link, full_variable, limits or {})
    return made.run(beam) or made.run(beam * _WIDER) or made.refuse()


def without_limit(step: Step) -> Sequence[int]:
    """All choices of a step, -1 among them."""
    return range(-1, len(step.choices))


def placements_of(step: Step, choice: int) -> Tuple[Tuple[Placement, ...], Tuple[Placement, ...]]:
    """The placements of the inputs and outputs of a choice; choice -1: all REPLICATED."""
    if choice >= 0:
        return step.choices[choice].inputs, step.choices[choice].outputs
    return (REPLICATED,) * len(step.inputs), (REPLICATED,) * len(step.outputs)


def native_placement(program: Program, number: int, wanted: Placement) -> Placement:
    """The first placement of a value: an entry has its own; a variable gets `wanted`, that of its first op."""
    value = program.values[number]
    return batch_placement(value.info) if value.kind == ENTRY else wanted


def output_form(program: Program, number: int) -> Optional[Form]:
    """The form in which ops outside take a region output: own rows, or the full tensor; None for other values."""
    return Form(batch_placement(program.values[number].info), False) if number in program.outputs else None


def variable_placements(program: Program, decision: Decision) -> Dict[int, Placement]:
    """Maps the number of each variable to its placement: the one in which the first op takes it."""
    found: Dict[int, Placement] = {}
    for step, choice in zip(program.steps, decision.choices):
        for number, placement in zip(step.inputs, placements_of(step, choice)[0]):
            if number >= 0 and program.values[number].kind == VARIABLE:
                found.setdefault(number, placement)
    return found


def can_be_cut(step: Step, number: int) -> bool:
    """Whether a step has a choice that takes a value as shards of known sizes."""
    return any(
        taken == number and placement.sizes is not None
        for choice in step.choices
        for taken, placement in zip(step.inputs, choice.inputs)
    )


def reshardings(program: Program, decision: Decision) -> List[List[Tuple[int, Resharding]]]:
    """The reshardings of each step, of its inputs and of the region outputs that it gives: (value, resharding)."""
    there: Dict[int, _Forms] = {}
    found = []
    for step, choice in zip(program.steps, decision.choices):
        into, out = placements_of(step, choice)
        wanted: List[Tuple[int, Form]] = []
        for number, placement in zip(step.inputs, into):
            if number >= 0:
                there.setdefault(number, (Form(native_placement(program, number, placement), False),))
                wanted.append((number, wanted_form(program.values[number], placement, choice >= 0)))
        for number, placement in zip(step.outputs, out):
            there[number] = (Form(placement, False),)
            form = output_form(program, number)
            wanted += [] if form is None else [(number, form)]
        made = []
        for number, form in wanted:
            path = route(program.values[number], program.ranks, there[number], form) or []
            there[number] += tuple(resharding.target for resharding in path)
            made += [(number, resharding) for resharding in path]
        found.append(made)
    return found


class _Search:
    """One search; it remembers the costs of reshardings."""

    def __init__(self, program: Program, link: Link, full_variable: float, limits: Limits) -> None:
        self._program = program
        self._limits = limits
        self._reached = 0
        self._link = link
        self._full_variable = full_variable
        self._last_use = _last_uses(program)
        self._weights = _of_variables(program)
        self._kept = {number for step in program.steps if step.kept for number in step.inputs}
        self._looked_up = {step.inputs[0] for step in program.steps if step.op.type in _LOOKUPS}
        self._routes: Dict[Tuple[int, _Forms, Form], Optional[Tuple[float, _Forms]]] = {}
        self._form_numbers: Dict[Form, int] = {}

    def run(self, beam: int) -> Optional[Decision]:
        """The cheapest decision; None if no state that was kept can take a given choice."""
        states = [_State(0.0, {}, 0, None)]
        for index, step in enumerate(self._program.steps):
            inputs = sorted({number for number in step.inputs if number >= 0})
            moves: Dict[Tuple[Optional[_Forms], ...], List[_Move]] = {}
            best: Dict[int, _Candidate] = {}
            for state in states:
                forms = tuple(state.forms.get(number) for number in inputs)
                if forms not in moves:
                    moves[forms] = self._moves(index, step, dict(zip(inputs, forms)))
                for move in moves[forms]:
                    cost, key = state.cost + move.cost, state.key ^ move.key
                    if key not in best or cost < best[key].cost:
                        best[key] = _Candidate(cost, state, move, key)
            if not best:
                self._reached = index
                return None
            chosen = sorted(best.values(), key=lambda candidate: candidate.cost)[:beam]
            states = [self._follow(candidate) for candidate in chosen]
        last, choices = states[0].last, []
        while last is not None:
            last, choice = last
            choices.append(choice)
        return Decision(tuple(reversed(choices)), states[0].cost)

    def refuse(self) -> NoReturn:
        """Raises PlanError for the step in which the last run found no way on."""
        step = self._program.steps[self._reached]
        asked = [placements_of(step, choice)[0] for choice in self._limits[self._reached]]
        raise PlanError(
            'split: with the choices that are given, {} "{}" ({}) would take its inputs as {}, and at least one of '
            "them cannot be had so: no op gives it, or it is a variable that cannot be cut so. Give fewer choices, or "
            "others.".format(
                step.op.type,
                step.op.name,
                user_line(step.op),
                " or ".join(dict.fromkeys(", ".join(map(str, inputs)) for inputs in asked)),
            )
        )

    def _moves(self, index: int, step: Step, before: Dict[int, Optional[_Forms]]) -> List[_Move]:
        """All moves in a step, given the existing forms of its inputs; None for inputs before their first use."""
        found = []
        for choice in self._limits.get(index, without_limit(step)):
            done = self._done(step, choice, before)
            if done is None:
                continue
            cost, after = done
            key, kept, gone = 0, {}, []
            for number, forms in after.items():
                key ^= self._hash(number, before.get(number))
                if self._last_use[number] > index:
                    key ^= self._hash(number, forms)
                    kept[number] = forms
                elif before.get(number) is not None:
                    gone.append(number)
            found.append(_Move(choice, cost, kept, gone, key))
        return found

    def _done(
        self, step: Step, choice: int, before: Dict[int, Optional[_Forms]]
    ) -> Optional[Tuple[float, Dict[int, _Forms]]]:
        """The cost of a choice, and the forms of inputs and outputs after it; None if its inputs cannot be made."""
        into, out = placements_of(step, choice)
        cost = self._compute(step, choice)
        after: Dict[int, _Forms] = {}
        for number, placement in zip(step.inputs, into):
            if number < 0:
                continue
            forms = after.get(number) or before[number]
            if forms is None:
                native = native_placement(self._program, number, placement)
                if self._is_illegal(number, native):
                    return None
                forms = (Form(native, False),)
                cost += self._variable_cost(number, native, step)
            found = self._reshard(number, forms, wanted_form(self._program.values[number], placement, choice >= 0))
            if found is None:
                return None
            cost += found[0]
            after[number] = found[1]
        for number, placement in zip(step.outputs, out):
            given = self._given_back(number, (Form(placement, False),))
            cost += given[0]
            after[number] = given[1]
        return cost, after

    def _follow(self, candidate: _Candidate) -> _State:
        forms = dict(candidate.parent.forms)
        forms.update(candidate.move.kept)
        for number in candidate.move.gone:
            del forms[number]
        return _State(candidate.cost, forms, candidate.key, (candidate.parent.last, candidate.move.choice))

    # ---- Costs, in seconds.

    def _compute(self, step: Step, choice: int) -> float:
        if choice < 0:
            sent = sum(num_bytes(self._program.values[number]) for number in step.outputs) if step.draws else 0
            drawn = self._link.latency + sent / self._link.bandwidth if step.draws else 0.0
            return step.seconds * (1.0 + step.info.ratios.count(0)) + drawn
        found: Choice = step.choices[choice]
        cut = [placement for placement in found.inputs + found.outputs if placement.is_shard]
        work = [max(some) for some in zip(*[shares(placement, self._program.ranks) for placement in cut])]
        if not cut:
            work = [1.0] * self._program.ranks
        wasted = sum(share for share, ratio in zip(work, step.info.ratios) if not ratio)
        moved = self._link.latency + found.moved / self._link.bandwidth if found.moved else 0.0
        return step.seconds * (max(work) + wasted) + moved

    def _reshard(self, number: int, forms: _Forms, wanted: Form) -> Optional[Tuple[float, _Forms]]:
        """The cost of resharding a tensor to another form, and the forms that exist then; None if it cannot be made."""
        known = (number, forms, wanted)
        if known not in self._routes:
            value = self._program.values[number]
            path = route(value, self._program.ranks, forms, wanted)
            if path is None:
                self._routes[known] = None
            else:
                count = count_collectives(path, value.trained)
                cost = count * self._link.latency + total_bytes(path) / self._link.bandwidth
                if number in self._weights and wanted.placement == REPLICATED and forms[0].placement != REPLICATED:
                    cost += _GATHERED_VARIABLE * self._whole_variable(number)
                self._routes[known] = (cost, forms + tuple(step.target for step in path))
        return self._routes[known]

    def _variable_cost(self, number: int, placement: Placement, step: Step) -> float:
        """The cost of the first placement of a value, given by the first step that takes it."""
        value = self._program.values[number]
        if value.kind != VARIABLE or placement.is_shard:
            return 0.0
        unwanted = 0 in step.info.ratios and number not in self._kept and can_be_cut(step, number)
        return self._whole_variable(number) + (_ON_EVERY_RANK if unwanted else 0.0)

    def _whole_variable(self, number: int) -> float:
        """The cost of a variable, or of a value computed from variables alone, in full on every rank."""
        size = num_bytes(self._program.values[number])
        beyond = (1 - 1 / self._program.ranks) * size * min(1.0, size / _LARGE_VARIABLE)
        return beyond * self._full_variable / self._link.bandwidth

    def _is_illegal(self, number: int, placement: Placement) -> bool:
        """Whether a variable would be PARTIAL, rows of a batch, or a shard though a kept op takes it in full.

        Tables may have no empty rows either: some optimizers for sparse gradients refuse them.
        """
        if self._program.values[number].kind != VARIABLE or placement == REPLICATED:
            return False
        if number in self._looked_up and placement.has_empty and placement.dim > 0:
            return True
        return not placement.is_shard or placement.sizes is None or number in self._kept

    def _given_back(self, number: int, forms: _Forms) -> Tuple[float, _Forms]:
        """The cost of resharding a value for ops outside, if it is a region output, and the forms that exist then."""
        wanted = output_form(self._program, number)
        found = None if wanted is None else self._reshard(number, forms, wanted)
        return found or (0.0, forms)

    def _hash(self, number: int, forms: Optional[_Forms]) -> int:
        if forms is None:
            return 0
        numbers = self._form_numbers
        return hash((number,) + tuple([numbers.setdefault(form, len(numbers)) for form in forms]))


def _of_variables(program: Program) -> Set[int]:
    """The numbers of variables, and of values computed from them and fixed values alone."""
    found = {number for number, value in enumerate(program.values) if value.kind == VARIABLE}
    for step in program.steps:
        taken = [number for number in step.inputs if number not in program.fixed]
        if taken and found.issuperset(taken):
            found.update(step.outputs)
    return found


def _last_uses(program: Program) -> List[int]:
    """The last step that takes each value; the step that computes it if none takes it; -1 without either."""
    last = [-1] * len(program.values)
    for index, step in enumerate(program.steps):
        for number in step.outputs + step.inputs:
            if number >= 0:
                last[number] = index
    return last
