"""Finds the choices of all ops that together cost least, by a beam search over the ops in their order.

A state is the existing forms of the tensors that are still needed. Two states with the same forms have the same future,
so the search keeps the cheaper one, and of all others the cheapest `beam`. Where a model repeats a block, the states
before it are soon those before the block before, but for the cost that all have in common: what follows is known.

The cost is time: for what an op computes on its shard, and for the bytes that resharding and composite ops move,
forward and backward. A variable that stays REPLICATED also costs its bytes, as each rank keeps, updates and saves all
of it. All costs depend on the graph alone, so processes with the same graph decide alike.

Where the ratio of a rank is 0, the scope is to be on the other ranks: work on that rank costs extra, and a variable
stays REPLICATED only if the rule of the first op that takes it has no shard for it.
"""

from typing import Dict, Hashable, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

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
_UNITS = 2.0**40  # of a second; costs are whole numbers of them


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

# A decided prefix of the program: what it costs more than the cheapest one, and of each value that is still needed the
# number of its existing forms.
_State = Tuple[float, Tuple[int, ...]]


class _Move(NamedTuple):
    """A choice for a step, what it costs, and the numbers of the forms that are needed after it."""

    choice: int
    cost: float
    forms: Tuple[int, ...]


class _Beam:
    """The states after a step.

    Attributes:
      states: the cheapest first.
      known: what follows from them by a step, by what counts of the step.
    """

    __slots__ = ("known", "states")

    def __init__(self, states: Tuple[_State, ...]) -> None:
        self.states = states
        self.known: Dict[Hashable, Optional[_Transition]] = {}


class _Transition(NamedTuple):
    """What follows from the states before a step.

    Attributes:
      beam: the states after it.
      cost: what the cheapest of them costs more than the cheapest before.
      sources: of each state after it, the position of the one before, and the choice.
    """

    beam: _Beam
    cost: float
    sources: Tuple[Tuple[int, int], ...]


class _Needed(NamedTuple):
    """The values that a step meets.

    Attributes:
      taken: its inputs.
      places: where these are among the values that are needed before it; -1 for one that is taken first here.
      untouched: where those are that are needed after it, and that it does not take.
      following: its inputs and outputs that are needed after it.
    """

    taken: Tuple[int, ...]
    places: Tuple[int, ...]
    untouched: Tuple[int, ...]
    following: Tuple[int, ...]


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


def is_trained(program: Program, step: Step) -> bool:
    """Whether a gradient goes through a step to its first input."""
    ends = [step.inputs[:1], step.outputs]
    return all(any(number >= 0 and program.values[number].trained for number in some) for some in ends)


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
        self._kinds = [self._kind_of(number) for number in range(len(program.values))]
        self._routes: Dict[Tuple[Hashable, _Forms, Form], Optional[Tuple[float, _Forms]]] = {}
        self._forms: List[_Forms] = []
        self._form_numbers: Dict[_Forms, int] = {}
        self._step_kinds: Dict[Hashable, int] = {}

    def run(self, beam: int) -> Optional[Decision]:
        """The cheapest decision; None if no state that was kept can take a given choice."""
        beams: Dict[Tuple[_State, ...], _Beam] = {}
        here = _Beam(((0.0, ()),))
        needed: List[int] = []  # the values that are needed, in the order of their forms in a state
        seconds, sources = 0.0, []
        for index, step in enumerate(self._program.steps):
            met = self._met(index, step, needed)
            key = self._step_kind(index, step, met), met.places, met.untouched
            if key not in here.known:
                here.known[key] = self._transition(here, index, step, met, beam, beams)
            transition = here.known[key]
            if transition is None:
                self._reached = index
                return None
            seconds += transition.cost
            sources.append(transition.sources)
            here = transition.beam
            needed = [needed[place] for place in met.untouched] + list(met.following)
        at, choices = 0, []
        for of_step in reversed(sources):
            at, choice = of_step[at]
            choices.append(choice)
        return Decision(tuple(reversed(choices)), seconds)

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

    def _met(self, index: int, step: Step, needed: Sequence[int]) -> _Needed:
        place_of = {number: place for place, number in enumerate(needed)}
        taken = tuple(dict.fromkeys(number for number in step.inputs if number >= 0))
        return _Needed(
            taken,
            tuple(place_of.get(number, -1) for number in taken),
            tuple(place for number, place in place_of.items() if number not in taken),
            tuple(number for number in (*taken, *step.outputs) if self._last_use[number] > index),
        )

    def _step_kind(self, index: int, step: Step, met: _Needed) -> int:
        """Two steps have the same number if they cost the same from the same forms of their inputs."""
        place = {number: at for at, number in enumerate((*met.taken, *step.outputs))}
        key = (
            tuple((choice.inputs, choice.outputs, choice.inside) for choice in step.choices),
            tuple(self._limits.get(index, ())),
            index in self._limits,
            step.seconds,
            step.draws,
            step.info.ratios,
            tuple(place.get(number, -1) for number in step.inputs),
            tuple(self._kinds[number] for number in place),
            tuple(place[number] for number in met.following),
        )
        return self._step_kinds.setdefault(key, len(self._step_kinds))

    def _kind_of(self, number: int) -> Hashable:
        """Two values have the same kind if they cost the same in the same forms."""
        value = self._program.values[number]
        return (
            value.kind,
            value.info.batch,
            value.info.dtype,
            num_bytes(value),
            value.differentiable,
            value.trained,
            value.in_half,
            number in self._weights,
            number in self._kept,
            number in self._looked_up,
            number in self._program.outputs,
        )

    def _transition(
        self, here: _Beam, index: int, step: Step, met: _Needed, beam: int, beams: Dict[Tuple[_State, ...], _Beam]
    ) -> Optional[_Transition]:
        """What follows from some states by a step; None if none of them can take a given choice."""
        moves: Dict[Tuple[int, ...], List[_Move]] = {}
        rests: Dict[Tuple[int, ...], int] = {}
        best: Dict[Tuple[int, Tuple[int, ...]], Tuple[float, int, int]] = {}
        for at, (before, forms) in enumerate(here.states):
            taken = tuple(-1 if place < 0 else forms[place] for place in met.places)
            if taken not in moves:
                moves[taken] = self._moves(index, step, met, taken)
            rest = rests.setdefault(tuple(forms[place] for place in met.untouched), len(rests))
            for choice, more, after in moves[taken]:
                cost, key = before + more, (rest, after)
                if key not in best or cost < best[key][0]:
                    best[key] = cost, at, choice
        if not best:
            return None
        chosen = sorted(best.items(), key=lambda one: one[1][0])[:beam]
        least, untouched = chosen[0][1][0], list(rests)
        states = tuple((cost - least, untouched[rest] + after) for (rest, after), (cost, _, _) in chosen)
        following = beams.setdefault(states, _Beam(states))
        return _Transition(following, least, tuple((at, choice) for _, (_, at, choice) in chosen))

    def _moves(self, index: int, step: Step, met: _Needed, taken: Sequence[int]) -> List[_Move]:
        """All moves in a step, given the numbers of the existing forms of its inputs; -1 before the first use."""
        before = {number: None if form < 0 else self._forms[form] for number, form in zip(met.taken, taken)}
        found = []
        for choice in self._limits.get(index, without_limit(step)):
            done = self._done(step, choice, before)
            if done is not None:
                cost, after = done
                forms = tuple(self._number_of(after[number]) for number in met.following)
                # In whole picoseconds, nearly: sums are exact, so that the same differences are the same numbers.
                found.append(_Move(choice, round(cost * _UNITS) / _UNITS, forms))
        return found

    def _number_of(self, forms: _Forms) -> int:
        if forms not in self._form_numbers:
            self._form_numbers[forms] = len(self._forms)
            self._forms.append(forms)
        return self._form_numbers[forms]

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
        built = found.built(is_trained(self._program, step))
        moved = sum(self._link.latency + one.sent(self._program.ranks) / self._link.bandwidth for one in built)
        return step.seconds * (max(work) + wasted) + moved

    def _reshard(self, number: int, forms: _Forms, wanted: Form) -> Optional[Tuple[float, _Forms]]:
        """The cost of resharding a tensor to another form, and the forms that exist then; None if it cannot be made."""
        known = (self._kinds[number], forms, wanted)
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
