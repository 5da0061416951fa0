"""Plans that compute the blocks of a model in different ways on the same devices, and the strategies that they are.

    block        0      1      2      3
    way          rows   rows   split  split     two devices: rows of the batch on each; shards; all of it on the first
    strategy     outside of a scope   epl.split(2)

Further ways are of a part of the devices of a group; `further_ways` says which of them can be worth it.

A strategy can say more than one change of the ways only in scopes that each ask for all devices, epl.replicate(2) next
to epl.split(2), or with `cluster.colocate_split_and_replicate`. Devices of one epl.replicate(n) divide what they read,
so that the first needs a batch that is fed.
"""

import itertools
import math
import re
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.row_shares import reduced
from epl.parallel.plan.strategy import OUTSIDE, Block, PlannedChoice, Strategy
from epl.planner.machine.machine import Device, Machine
from epl.planner.search.candidates import PLANNER, with_settings
from epl.planner.search.equal_devices import EqualDevices
from epl.planner.search.model_blocks import ModelBlocks
from epl.planner.search.split_choices import FAST, SMALL, Ratios, SplitChooser
from epl.utils.errors import PlanError


class Way:
    """How a block is computed."""

    ROWS = "rows"  # each device its rows of the batch
    SPLIT = "split"  # shards on the devices of a group, to be fast: as large as the devices of each place are fast
    SMALL = "small split"  # equal shards, with as much of the variables in shards as can be
    FIRST = "first"  # all of it on the first device of each group


WAYS = (Way.ROWS, Way.SPLIT, Way.SMALL, Way.FIRST)
_FINE = 8  # parts of the shard of the slowest device
_DEVICE, _OVER = "device ", "split over "
_SIZES = re.compile(r": ([0-9+]+)\)")


def on_device(place: int) -> str:
    """The way of a block that one device of each group computes, by its place in the group."""
    return f"{_DEVICE}{place}" if place else Way.FIRST


def split_over(devices: int) -> str:
    """The way of a block in shards on so many devices of each group, the fastest, then those of most memory."""
    return f"{_OVER}{devices}"


def further_ways(group: int, are_equal: bool, can_mix: bool, has_branches: bool, is_short: bool) -> Tuple[str, ...]:
    """The ways beyond WAYS by which a plan can be faster or smaller than all plans without them.

    devices that differ          all: a block is on the device, or the devices, that are fast, or that have the memory
    equal, branches              other devices: they compute at the same time what needs nothing of each other
    equal, too little memory     all: blocks share the devices so that each holds less, with fewer exchanges than split
    equal, else                  none: a chain is computed on one device at a time, and a split over all of them is as
                                 fast as one over fewer, as its collectives are of all devices in any case
    equal, one way next to rows  none: which of the devices it is of changes nothing

    Args:
      group: devices of a group.
      are_equal: whether its devices are.
      can_mix: whether a plan may have several ways next to each other, and rows after them.
      has_branches: whether there are blocks that need nothing of each other.
      is_short: whether one device lacks memory for all blocks.
    """
    devices = tuple(map(on_device, range(1, group)))
    splits = tuple(split_over(2**power) for power in range(1, group.bit_length()) if 2**power < group)
    if not are_equal or (can_mix and is_short):
        return devices + splits
    return devices if can_mix and has_branches else ()


def place_of(way: str) -> Optional[int]:
    """The place of the device that computes all of a block; None: several do."""
    if way == Way.FIRST:
        return 0
    return int(way[len(_DEVICE) :]) if way.startswith(_DEVICE) else None


class BlockPlan(NamedTuple):
    """A plan.

    Attributes:
      ways: of each block, constants of Way.
      group: devices of a group; without a split it means nothing.
      checkpoint: whether activations are recomputed.
      zero: `zero.level`.
    """

    ways: Tuple[str, ...]
    group: int
    checkpoint: bool = False
    zero: str = ""

    def describe(self) -> str:
        """The plan in words."""
        runs = []
        for way, members in itertools.groupby(enumerate(self.ways), key=lambda one: one[1]):
            numbers = [number for number, _ in members]
            runs.append(f"{way} {numbers[0]}" + (f"-{numbers[-1]}" if len(numbers) > 1 else ""))
        words = [f"blocks by {', '.join(runs)}"] if len(runs) > 1 else [f"all blocks by {self.ways[0]}"]
        if set(self.ways) != {Way.ROWS}:
            words.append(f"groups of {self.group}")
        if self.zero:
            words.append(f"ZeRO {self.zero}")
        if self.checkpoint:
            words.append("gradient checkpoint")
        return ", ".join(words)


class BlockPlans:
    """The plans of one model on one job.

    Attributes:
      base: the strategy of the script as it is.
      blocks: of the model.
      kinds: of the device of each rank.
    """

    def __init__(
        self,
        base: Strategy,
        blocks: ModelBlocks,
        machine: Machine,
        devices: Sequence[int],
        seconds: Callable[[Device], float],
        chooser: SplitChooser,
        are_cut: bool,
        colocates: bool,
    ) -> None:
        """Takes a model.

        Args:
          base: the strategy of the script as it is, which is data parallel.
          blocks: of the model.
          machine: of the job.
          devices: of each rank, its number in the machine.
          seconds: that the model takes on a kind of device.
          chooser: of its choices.
          are_cut: whether a plan may cut the rows of a run as it likes.
          colocates: `cluster.colocate_split_and_replicate`.
        """
        self.base, self.blocks = base, blocks
        self.kinds = tuple(machine.placed_devices()[device] for device in devices)
        self._equal = EqualDevices(machine, devices)
        self._seconds = seconds
        self._chooser, self._are_cut, self._colocates = chooser, are_cut, colocates
        self._whole: Dict[Tuple[str, int], Dict[int, PlannedChoice]] = {}
        self._reasons: Dict[Tuple[str, int], PlanError] = {}
        self._cuts: Dict[Tuple[str, int], Ratios] = {}

    def strategy(self, plan: BlockPlan) -> Strategy:
        """The strategy of a plan, with the choices that its ops have where the whole model is split.

        Raises:
          PlanError: no strategy says that, or the model cannot be split.
        """
        strategy, ratios = self._without_choices(plan)
        choices = []
        for place in ratios:
            choice = self._of_whole(plan.ways[self.blocks.of_op[place]], plan.group).get(place)
            if choice is not None:
                choices.append(choice)
        return strategy._replace(choices=tuple(sorted(choices)))

    def further_ways(self, group: int, is_short: bool) -> Tuple[str, ...]:
        """`further_ways` for groups of this job.

        Args:
          group: devices of a group.
          is_short: whether the first device of a group lacks memory for all blocks.
        """
        are_equal = len({self.kinds[place::group] for place in range(group)}) == 1
        return further_ways(group, are_equal, self._can_mix(group), self.blocks.has_branches, is_short)

    def renamed(self, plan: BlockPlan) -> BlockPlan:
        """The same for all plans that differ in the names of equal devices alone: one of them."""
        ways = dict.fromkeys(plan.ways)
        places = {way: place for way, place in ((way, place_of(way)) for way in ways) if place is not None}
        if not any(places.values()):
            return plan
        others = [self._ratios(way, plan.group) for way in ways if way not in places and way != Way.ROWS]
        shares = list(zip(*[one for one in others if one])) or [()] * plan.group
        names = self._equal.names(plan.group, list(places.values()), shares)
        new = {way: on_device(names[place]) for way, place in places.items()}
        return plan._replace(ways=tuple(new.get(way, way) for way in plan.ways))

    def refuse(self, plan: BlockPlan) -> None:
        """Raises PlanError for a plan that no strategy says."""
        if set(plan.ways) != {Way.ROWS}:
            self._scopes(plan)

    def choice(self, way: str, group: int, place: int) -> Optional[str]:
        """The placements of an op where all blocks are computed in a way other than rows; None: in full.

        Raises:
          PlanError: the model cannot be split.
        """
        choice = self._of_whole(way, group).get(place)
        return None if choice is None else choice.placements

    def parts(self, way: str, group: int) -> Tuple[int, ...]:
        """The places of a group whose devices have a part of a block; () for all."""
        places = tuple(place for place, ratio in enumerate(self._ratios(way, group)) if ratio)
        return () if len(places) == group else places

    def bare(self, plan: BlockPlan) -> Strategy:
        """The strategy of a plan without choices, to name it where it has none."""
        return self._without_choices(plan)[0]

    def exact(self, plan: BlockPlan) -> List[Strategy]:
        """The strategies of a plan that can be trained: with choices for exactly its split blocks, and with others.

        Raises:
          PlanError: there is none.
        """
        strategy, ratios = self._without_choices(plan)
        if len(set(plan.ways)) == 1:
            return [self.strategy(plan)]
        given = {one.op: one.placements for one in self.strategy(plan).choices}
        found: Dict[Strategy, None] = {}
        reason: Optional[PlanError] = None
        weight = min(_weight(way) for way in plan.ways if way != Way.ROWS)
        for limit in (given, None):
            try:
                choices = self._chooser.choose(ratios, plan.group, weight, limit)
            except PlanError as error:
                reason = error
            else:
                found[strategy._replace(choices=choices)] = None
        if not found and reason is not None:
            raise reason
        return list(found)

    def _of_whole(self, way: str, group: int) -> Dict[int, PlannedChoice]:
        """The choice of each op where all blocks are computed in a way."""
        key, place = (way, group), place_of(way)
        if key in self._reasons:
            raise self._reasons[key]
        if key not in self._whole and place:  # the same as on the first device, with the parts of the two exchanged
            first = self._of_whole(Way.FIRST, group)
            self._whole[key] = {op: one._replace(placements=_moved(one.placements, place)) for op, one in first.items()}
        if key not in self._whole:
            ratios = {place: self._ratios(way, group) for place in range(len(self.base.ops))}
            try:
                found = self._chooser.choose(ratios, group, _weight(way))
            except PlanError as error:
                self._reasons[key] = error
                raise
            self._whole[key] = {one.op: one for one in found}
        return self._whole[key]

    def _without_choices(self, plan: BlockPlan) -> Tuple[Strategy, Dict[int, Ratios]]:
        """The strategy without choices, and the ratios of the ops that are in splits."""
        settings: Dict[str, object] = {}
        if plan.checkpoint:
            settings["gradient_checkpoint.type"] = "auto"
        if plan.zero:
            settings["zero.level"] = plan.zero
        base = with_settings(self.base, settings)
        assert base is not None  # the space of a search has no other values of keys that the user has set
        if set(plan.ways) == {Way.ROWS}:
            return base, {}
        ratios = {
            place: self._ratios(plan.ways[block], plan.group)
            for place, block in enumerate(self.blocks.of_op)
            if plan.ways[block] != Way.ROWS
        }
        scopes, of_block = self._scopes(plan)
        names: List[List[str]] = [[] for _ in scopes]
        ops = []
        for op, block in zip(base.ops, self.blocks.of_op):
            ops.append(op._replace(block=of_block[block]))
            if of_block[block] != OUTSIDE:
                names[of_block[block]].append(op.name)
        blocks = tuple(one._replace(scopes=strategies.scopes_of(own)) for one, own in zip(scopes, names))
        return base._replace(blocks_origin=PLANNER, blocks=blocks, ops=tuple(ops)), ratios

    def _scopes(self, plan: BlockPlan) -> Tuple[List[Block], List[int]]:
        """The blocks of the strategy, and that of each block of the model.

        Raises:
          PlanError: no strategy says that.
        """
        runs = [
            (cut, len(list(members)))
            for cut, members in itertools.groupby(None if way == Way.ROWS else self._ratios(way, plan.group)
                                                  for way in plan.ways)
        ]  # fmt: skip
        if len(runs) <= 2 and runs[-1][0] is not None and (len(runs) == 1 or runs[0][0] is None):
            before = runs[0][1] if len(runs) == 2 else 0
            block = Block("split", plan.group, 0, runs[-1][0], ())
            return [block], [OUTSIDE] * before + [0] * (len(plan.ways) - before)
        devices = self.base.workers * self.base.devices
        if not self._can_mix(plan.group):
            raise PlanError(
                f"{len(runs)} scopes would share devices. They do so if all are over all devices of the job and the "
                "batch is fed, or with cluster.colocate_split_and_replicate."
            )
        scopes, of_block = [], []
        for number, (cut, count) in enumerate(runs):
            if cut is None:
                scopes.append(Block("replicate", 1 if self._colocates else devices, 0, (), ()))
            else:
                scopes.append(Block("split", plan.group, 0, cut, ()))
            of_block += [number] * count
        return scopes, of_block

    def _can_mix(self, group: int) -> bool:
        """Whether there are scopes for plans with more than one change of the ways."""
        return self._colocates or (group == self.base.workers * self.base.devices and self._are_cut)

    def _ratios(self, way: str, group: int) -> Ratios:
        """The shards of a way in relation to each other; () for equal ones."""
        key = way, group
        if key not in self._cuts:
            self._cuts[key] = self._new_ratios(way, group)
        return self._cuts[key]

    def _new_ratios(self, way: str, group: int) -> Ratios:
        place = place_of(way)
        if place is not None:
            return tuple(int(one == place) for one in range(group))
        is_equal = len(set(self.kinds)) == 1
        if way == Way.SMALL or (way == Way.SPLIT and is_equal):
            return ()
        slowest = [max(self._seconds(kind) for kind in set(self.kinds[place::group])) for place in range(group)]
        count = int(way[len(_OVER) :]) if way.startswith(_OVER) else group
        memory = [min(kind.memory or math.inf for kind in self.kinds[place::group]) for place in range(group)]
        taken = sorted(range(group), key=lambda place: (slowest[place], -memory[place]))[:count]
        least = max(slowest[place] for place in taken)
        parts = {place: 1 if is_equal else round(_FINE * least / slowest[place]) for place in taken}
        return reduced([parts.get(place, 0) for place in range(group)])


def _weight(way: str) -> float:
    return SMALL if way == Way.SMALL else FAST


def _moved(text: str, place: int) -> str:
    """A choice of one device in the words of another one: "shard(1: 4+0+0)" on place 2 is "shard(1: 0+0+4)"."""

    def swapped(match: "re.Match[str]") -> str:
        sizes = match.group(1).split("+")
        sizes[0], sizes[place] = sizes[place], sizes[0]
        return ": {})".format("+".join(sizes))

    return _SIZES.sub(swapped, text)


def group_sizes(base: Strategy) -> Sequence[int]:
    """The numbers of devices that groups may have: those of a worker, and all of the job."""
    return sorted({base.devices, base.workers * base.devices} - {1})
