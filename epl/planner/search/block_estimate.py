"""Estimates of plans by blocks of large models, thousands a second: the full simulator then looks at the best alone.

    once      of each way: seconds, bytes and gradients of each block; what blocks of two ways exchange between them
    a plan    forward   block 0, 1, ... one after the other, exchanges between them
              backward  the same in the opposite order; gradients are all-reduced meanwhile, in buckets
              memory    variables, slots, activations that are kept so far and gradients, at the worst block

Blocks on different devices are computed at the same time, up to the next exchange of the group: a chain has the seconds
that all devices of a group have computed, and by place those that some are behind.

Two chains, so a plan that differs from the one before in some blocks is estimated from the first of them on; what the
chains have before it stays.
"""

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from epl.env import Env
from epl.parallel.costs.op_times import OpTimes
from epl.parallel.costs.ops import OpCost
from epl.parallel.sharding.placements import REPLICATED, Placement, shard
from epl.parallel.split.resharding_paths import Form, route, wanted_form
from epl.planner.machine.machine import Device, Machine
from epl.planner.machine.op_kinds import Kind
from epl.planner.prediction.facts import Output, source_of
from epl.planner.prediction.layout import decided
from epl.planner.prediction.prediction import KnownParts
from epl.planner.prediction.rank_classes import contention
from epl.planner.prediction.split_work import (
    SplitExchange,
    exchanges_of,
    find_split_work,
    parse_placement,
    tensor_value,
)
from epl.planner.search.block_plans import BlockPlan, BlockPlans, Way
from epl.planner.search.comparison import PlanOutcome
from epl.planner.simulator.model_costs import ModelCosts

_BYTES_OF_ELEMENT = 4
_NEVER = 1e6  # seconds in place of those of an exchange that cannot be made: no such plan is taken
_ROWS = shard(0, None)


_Late = Tuple[Tuple[int, float], ...]  # (place in a group, seconds that its devices are behind the others)


class WayCosts(NamedTuple):
    """All blocks computed in one way, on the device that has most to do; by block, as plain numbers, which add faster.

    Attributes:
      places: in a group, of the devices that have a part; () for all.
      waits: whether the devices of a group wait for each other inside of the block: forward, backward.
      others: the same of the devices that have no part; None: there are none.
      forward, backward: seconds, with exchanges inside of the block.
      kept, outputs: bytes of activations that the backward pass reads, and of all.
      whole, held: bytes of variables whose gradients all ranks reduce, and of shards, which their holders reduce.
      updates: seconds in which the holders update the shards.
    """

    forward: List[float]
    backward: List[float]
    kept: List[float]
    outputs: List[float]
    whole: List[float]
    held: List[float]
    updates: List[float]
    places: Tuple[int, ...]
    waits: Tuple[List[bool], List[bool]]
    others: Optional["WayCosts"]


class _Chain(NamedTuple):
    """The backward pass after some blocks: seconds so far, of the links, bytes of the open bucket, updates to do.

    Those of a bucket begin when it is reduced; `updated` is when all of reduced buckets are done. `late` and
    `late_updates` are what single places have to do beyond the others.
    """

    seconds: float
    links: float
    open: float
    open_held: float
    updates: float
    open_updates: float = 0.0
    updated: float = 0.0
    late: _Late = ()
    late_updates: _Late = ()


class BlockEstimate:
    """Estimates the plans of one model on one machine.

    It is one class because the chains and the tables that they are made from are kept from plan to plan.

    Attributes:
      computed: blocks whose part of a chain was computed so far.
    """

    def __init__(self, plans: BlockPlans, costs: ModelCosts, machine: Machine, rows: int, known: KnownParts) -> None:
        """Takes a model.

        Args:
          plans: of the model.
          costs: of it.
          machine: of the job.
          rows: of the global batch.
          known: the parts that predictions have in common.
        """
        self._plans, self._costs, self._machine, self._links = plans, costs, machine, known.links
        self._base = plans.base
        self._ranks = self._base.workers * self._base.devices
        self._micro_batches = int(decided(self._base)["pipeline.num_micro_batch"])
        self._rows = max(1, rows // (self._ranks * self._micro_batches))
        self._facts = known.facts(self._base, [0] * len(self._base.blocks))
        self._of_op = np.asarray(plans.blocks.of_op)
        self._count = len(plans.blocks)
        self._half = bool(Env.get().config.communication.fp16)
        self._max_splits = max(1, Env.get().config.communication.max_splits)
        self._slots = sum(costs.slots.values())
        self._ways: Dict[Tuple[str, int], WayCosts] = {}
        self._shared: Dict[int, Tuple[int, int]] = {}
        self._crossing = self._find_crossing()
        self._between: Dict[Tuple[int, int, str, str, int], Tuple[float, float]] = {}
        self._last_consumer = [max([at for at, own in self._crossing.items() if block in own] or [block])
                               for block in range(self._count)]  # fmt: skip
        self._of_update = {kind: self._update_of_byte(kind) for kind in machine.devices}
        self._slowest_update = max(self._of_update.values())
        self._memories: Dict[int, List[Optional[Tuple[int, str]]]] = {}
        self._plan: Optional[BlockPlan] = None
        self._buckets = 0.0
        self._forward: List[Tuple[float, float, _Late]] = []  # seconds after each block, of devices and links
        self._backward: List[_Chain] = []  # after each block, from the last on
        self.computed = 0

    def __call__(self, plan: BlockPlan) -> PlanOutcome:
        """The seconds of a plan, and what it lacks on the kind of device that lacks most.

        Raises:
          PlanError: the plan cannot be made.
        """
        self._plans.refuse(plan)
        buckets = self._bucket_bytes(plan)
        first, last = self._changed(plan, buckets)
        self._plan = None  # an error leaves nothing half made
        del self._forward[first:]
        del self._backward[self._count - 1 - last :]
        for block in range(first, self._count):
            self._forward.append(self._forward_until(plan, block))
        for block in range(last, -1, -1):
            self._backward.append(self._backward_until(plan, block, buckets))
        self._plan, self._buckets = plan, buckets
        seconds = self._forward[-1][0] + _most(self._forward[-1][2]) + self._end(self._backward[-1])
        return PlanOutcome(seconds, self._lacks(plan))

    def _changed(self, plan: BlockPlan, buckets: float) -> Tuple[int, int]:
        """The first block whose forward pass changes, and the last whose backward pass does."""
        before = self._plan
        if before is None or before._replace(ways=plan.ways) != plan or self._buckets != buckets:
            return 0, self._count - 1
        changed = [at for at, (mine, other) in enumerate(zip(plan.ways, before.ways)) if mine != other]
        if not changed:
            return self._count, -1
        return changed[0], max(self._last_consumer[at] for at in changed)

    # ---- The chains.

    def _forward_until(self, plan: BlockPlan, block: int) -> Tuple[float, float, _Late]:
        self.computed += 1
        seconds, links, late = self._forward[-1] if self._forward else (0.0, 0.0, ())
        own = self._way(plan.ways[block], plan.group)
        if plan.zero:  # the links gather weights one block after the other
            links += self._micro_batches * self._gather(own.whole[block])
            seconds = max(seconds, links)
        exchanged = self._exchanged(plan, block)[0]
        if late and (exchanged or own.waits[0][block]):
            seconds, late = seconds + _most(late), ()
        idle = own if own.waits[0][block] or own.others is None else own.others
        seconds += self._micro_batches * (idle.forward[block] + exchanged)
        if idle is not own:
            late = _added(late, own.places, self._micro_batches * (own.forward[block] - idle.forward[block]))
        return seconds, links, late

    def _backward_until(self, plan: BlockPlan, block: int, buckets: float) -> _Chain:
        self.computed += 1
        before = self._backward[-1] if self._backward else _Chain(0.0, 0.0, 0.0, 0.0, 0.0)
        own = self._way(plan.ways[block], plan.group)
        exchanged = self._exchanged(plan, block)[1]
        seconds, late = before.seconds, before.late
        waits = own.waits[1][block]
        if late and waits:
            seconds, late = seconds + _most(late), ()
        idle = own if waits or own.others is None else own.others
        runs_again = plan.checkpoint and block < self._count - 1
        computed = idle.backward[block] + (idle.forward[block] if runs_again else 0.0)
        seconds += self._micro_batches * computed
        if idle is not own:
            busy = own.backward[block] + (own.forward[block] if runs_again else 0.0)
            late = _added(late, own.places, self._micro_batches * (busy - computed))
        if exchanged:  # it waits for the links
            seconds, late = seconds + _most(late) + self._micro_batches * exchanged, ()
            seconds = max(seconds, before.links + self._micro_batches * exchanged)
        links = max(before.links, seconds) if exchanged else before.links
        whole, held = before.open + own.whole[block], before.open_held + own.held[block]
        of_whole = self._update(own.whole[block] / (self._ranks if plan.zero else 1))
        in_bucket, updated = before.open_updates + of_whole + own.updates[block], before.updated
        if whole + held >= buckets or not block:
            links = max(links, seconds + _most(late) if late else seconds) + self._reduce(plan, whole, held)
            updated = max(updated, links) + in_bucket
            whole, held, in_bucket = 0.0, 0.0, 0.0
        idle = own.others or own
        updates = before.updates + of_whole + idle.updates[block]
        late_updates = before.late_updates
        if idle is not own:
            late_updates = _added(late_updates, own.places, own.updates[block])
        return _Chain(seconds, links, whole, held, updates, in_bucket, updated, late, late_updates)

    def _end(self, chain: _Chain) -> float:
        late = chain.late
        for place, seconds in chain.late_updates:
            late = _added(late, (place,), seconds)
        return max(chain.seconds + chain.updates + _most(late), chain.updated)

    def _bucket_bytes(self, plan: BlockPlan) -> float:
        """The bytes after which a bucket of gradients is reduced; a power of two, so that few changes change it."""
        found = 0.0
        for block, way in enumerate(plan.ways):
            own = self._way(way, plan.group)
            found += own.whole[block] + own.held[block]
        return float(2.0 ** round(math.log2(max(1.0, found / self._max_splits))))

    # ---- Seconds.

    def _exchanged(self, plan: BlockPlan, block: int) -> Tuple[float, float]:
        """Seconds forward and backward of what a block takes from others."""
        forward = backward = 0.0
        for other in self._crossing.get(block, ()):
            ways = plan.ways[other], plan.ways[block]
            if ways != (Way.ROWS, Way.ROWS):
                key = (other, block, *ways, plan.group)
                if key not in self._between:
                    self._between[key] = self._find_between(other, block, ways, plan.group)
                forward += self._between[key][0]
                backward += self._between[key][1]
        return forward, backward

    def _reduce(self, plan: BlockPlan, whole: float, held: float) -> float:
        name = "reduce-scatter" if plan.zero in ("v1", "v2") else "all-reduce"
        seconds = self._links.cost(name, range(self._ranks), whole).seconds if whole else 0.0
        if held and plan.group < self._ranks:
            holders = range(0, self._ranks, plan.group)
            seconds += self._links.cost("all-reduce", holders, held).seconds * self._sharing(plan.group)[1]
        return seconds

    def _exchange(self, exchange: SplitExchange, group: int, nbytes: float) -> float:
        """Seconds of the exchange of a tensor of so many bytes in each group, all at the same time."""
        collective = self._links.cost(exchange.collective, range(group), nbytes * exchange.fraction).seconds
        copying = max(exchange.copy_seconds(kind, nbytes) for kind in self._machine.devices)
        return collective * self._sharing(group)[0] + copying

    def _sharing(self, group: int) -> Tuple[int, int]:
        """How many groups, and how many rings of the holders of one shard, divide the busiest link."""
        if group not in self._shared:
            ranks = range(self._ranks)
            groups = [ranks[first : first + group] for first in ranks[::group]]
            holders = [ranks[place::group] for place in range(group)]
            self._shared[group] = max(contention(self._links, groups)), max(contention(self._links, holders))
        return self._shared[group]

    def _gather(self, nbytes: float) -> float:
        return self._links.cost("all-gather", range(self._ranks), nbytes).seconds if nbytes else 0.0

    def _update(self, nbytes: float) -> float:
        """Seconds in which all ranks update as many bytes each: those of the slowest."""
        return nbytes * self._slowest_update

    def _update_of_byte(self, kind: Device) -> float:
        flops = 1.0 / _BYTES_OF_ELEMENT * 2.0 * (1.0 + self._slots)
        cost = OpCost(Kind.ELEMENTWISE, flops, 3.0 + 2.0 * self._slots, 0)
        return OpTimes(kind).work_seconds(cost)

    def _lacks(self, plan: BlockPlan) -> Tuple[Tuple[str, float], ...]:
        own = {way: self._way(way, plan.group) for way in plan.ways}
        least: Dict[Tuple[bool, ...], Tuple[int, str]] = {}  # by which ways have a part on a place
        for place, limit in enumerate(self._limits(plan.group)):
            if limit is not None:
                has = tuple(not one.places or place in one.places for one in own.values())
                least[has] = min(limit, least.get(has, limit))
        most: Tuple[str, float] = ("", 0.0)
        for has, (size, name) in least.items():
            here = {way: one if there else one.others or one for (way, one), there in zip(own.items(), has)}
            most = max(most, (name, self._peak(plan, [here[way] for way in plan.ways]) - size), key=lambda one: one[1])
        return (most,) if most[1] > 0 else ()

    def _limits(self, group: int) -> List[Optional[Tuple[int, str]]]:
        """By place, the least memory of its devices, and its kind."""
        if group not in self._memories:
            kinds = self._plans.kinds
            self._memories[group] = [
                min(((one.memory, one.name) for one in kinds[place::group] if one.memory is not None), default=None)
                for place in range(group)
            ]
        return self._memories[group]

    def _peak(self, plan: BlockPlan, ways: Sequence[WayCosts]) -> float:
        """The bytes of a device at its worst block, by what it has of each block."""
        zero = self._ranks if plan.zero else 1
        part = 1.0 if not plan.checkpoint else self._sqrt()
        gradients = [own.whole[block] + own.held[block] for block, own in enumerate(ways)]
        state = sum(own.whole[block] / zero + own.held[block] for block, own in enumerate(ways)) * (1.0 + self._slots)
        kept, made, most = 0.0, sum(gradients), 0.0
        for block, own in enumerate(ways):  # what is kept up to a block, and the gradients from there on
            kept += part * own.kept[block]
            most = max(most, kept + made + own.outputs[block])
            made -= gradients[block]
        return state + most

    def _sqrt(self) -> float:
        """The part of the activations that recomputation keeps: two square roots of the blocks."""
        return min(1.0, 2.0 / float(np.sqrt(self._count)))

    # ---- Tables.

    def _way(self, way: str, group: int) -> WayCosts:
        key = way, 0 if way == Way.ROWS else group
        if key not in self._ways:
            self._ways[key] = self._find_way(way, group)
        return self._ways[key]

    def _find_way(self, way: str, group: int) -> WayCosts:
        if way == Way.ROWS:
            alone = np.ones(len(self._of_op))
            return self._summed([(self._rows, alone, alone, alone > 1)], {}, np.zeros([2, self._count]), 0, ())
        whole = self._plans.strategy(BlockPlan((way,) * self._count, group))
        rows = self._rows * group
        found = find_split_work(
            whole, self._facts, [0], group, lambda op, output: self._costs.exchanged_bytes(rows, op, output), self._half
        )
        inside = np.zeros([2, self._count])
        for one in found.exchanges:
            if self._of_op[one.at] == self._of_op[one.source[0]]:
                seconds = self._exchange(one, group, self._costs.exchanged_bytes(rows, *one.source))
                inside[int(one.is_backward), self._of_op[one.at]] += seconds
        places = [(rows, work, held, found.of_group) for work, held in zip(found.work, found.held)]
        parts = self._plans.parts(way, group)
        return self._summed(places, found.variables, inside, group, parts)

    def _summed(
        self,
        places: Sequence[Tuple[int, np.ndarray, np.ndarray, np.ndarray]],
        shares: Dict[int, Tuple[float, ...]],
        inside: np.ndarray,
        group: int,
        parts: Tuple[int, ...],
    ) -> WayCosts:
        """Sums by block; of the places in a group and the kinds of their devices the one that takes longest counts."""
        whole, in_parts = np.zeros(self._count), np.zeros([len(places), self._count])
        for variable in self._facts.variables:
            own = shares.get(variable.op, (1.0,))
            block = self._of_op[variable.op]
            if set(own) == {1.0}:
                whole[block] += variable.bytes
            else:
                in_parts[:, block] += variable.bytes * np.asarray(own)
        candidates: Dict[bool, List[List[np.ndarray]]] = {True: [], False: []}
        for place, (rows, work, held, of_group) in enumerate(places):
            for kind in dict.fromkeys(self._plans.kinds[place :: group or 1]):
                found = []
                for name, share in (
                    ("forward", work),
                    ("backward", work),
                    ("kept_bytes", held),
                    ("output_bytes", held),
                ):
                    found.append(self._of_blocks(kind, rows, name, share, of_group))
                found.append(in_parts[place] * self._of_update[kind])
                candidates[not parts or place in parts].append(found)
        waits = (inside[0] > 0).tolist(), (inside[1] > 0).tolist()

        def costs(found: List[List[np.ndarray]], held: np.ndarray, others: Optional[WayCosts]) -> WayCosts:
            most = [np.max([one[at] for one in found], axis=0) for at in range(5)]
            of_blocks = [most[0] + inside[0], most[1] + inside[1], most[2], most[3], whole, held, most[4]]
            forward, backward, kept, outputs, of_all, of_some, updates = [one.tolist() for one in of_blocks]
            places = parts if others else ()
            return WayCosts(forward, backward, kept, outputs, of_all, of_some, updates, places, waits, others)

        held_bytes = in_parts.max(axis=0)
        others = costs(candidates[False], 0.0 * held_bytes, None) if parts else None
        return costs(candidates[True], held_bytes, others)

    def _of_blocks(self, kind: Device, rows: int, name: str, share: np.ndarray, of_group: np.ndarray) -> np.ndarray:
        own = np.asarray(getattr(self._costs.at(self._rows, kind), name), float)
        if of_group.any():
            own = np.where(of_group, np.asarray(getattr(self._costs.at(rows, kind), name), float) * share, own)
        return np.bincount(self._of_op, weights=own, minlength=self._count)

    # ---- What blocks exchange.

    def _find_crossing(self) -> Dict[int, Dict[int, Dict[Output, Tuple[int, int]]]]:
        """Block -> earlier block -> the outputs of it that the block takes -> the first op that does, and its input."""
        found: Dict[int, Dict[int, Dict[Output, Tuple[int, int]]]] = {}
        for number, op in enumerate(self._facts.ops):
            for at, taken in enumerate(op.inputs):
                source = source_of(self._facts.ops, taken)
                mine, other = int(self._of_op[number]), int(self._of_op[source[0]])
                if mine != other:
                    found.setdefault(mine, {}).setdefault(other, {}).setdefault(source, (number, at))
        return found

    def _find_between(self, other: int, block: int, ways: Tuple[str, str], group: int) -> Tuple[float, float]:
        seconds = [0.0, 0.0]
        for source, (number, at) in self._crossing[block][other].items():
            size = self._costs.exchanged_bytes(self._rows * group, *source)
            value = tensor_value(self._facts, source, size, self._half)
            has = Form(self._given(source, ways[0], group), False)
            placement, of_part = self._wanted(source, number, at, ways[1], group)
            path = route(value, group, (has,), wanted_form(value, placement, of_part))
            if path is None:
                return _NEVER, _NEVER
            for step in path:
                for one in exchanges_of(self._facts, number, source, value, step, size, group):
                    seconds[int(one.is_backward)] += self._exchange(one, group, size)
        return seconds[0], seconds[1]

    def _given(self, source: Output, way: str, group: int) -> Placement:
        """The placement of an output where its op is computed in a way."""
        op = self._facts.ops[source[0]]
        if way == Way.ROWS or not op.inputs:
            return self._outside(source)
        text = self._plans.choice(way, group, source[0])
        return REPLICATED if text is None else parse_placement(text.partition(" -> ")[2].split(",")[source[1]], group)

    def _wanted(self, source: Output, number: int, at: int, way: str, group: int) -> Tuple[Placement, bool]:
        """The placement in which an op takes an input, and whether it computes on shards then."""
        if way == Way.ROWS:
            return self._outside(source), False
        text = self._plans.choice(way, group, number)
        if text is None:
            return REPLICATED, False
        return parse_placement(text.partition(" -> ")[0].split(",")[at], group), True

    def _outside(self, source: Output) -> Placement:
        return _ROWS if self._facts.ops[source[0]].by_rows else REPLICATED


def _added(late: _Late, places: Sequence[int], seconds: float) -> _Late:
    """`late` with further seconds of some places."""
    found = dict(late)
    for place in places:
        found[place] = found.get(place, 0.0) + seconds
    return tuple(found.items())


def _most(late: _Late) -> float:
    """The seconds for which all wait for the last place."""
    return max([seconds for _, seconds in late], default=0.0)
