"""What the stages of a pipeline cost, wherever they are cut: the chain of the model, and where its stages would be.

    op           x   w0  MatMul  w1  MatMul  loss
    place        0   1     1     2     2      3        between two places the chain may be cut
    point          1          2          3             bytes of forward and backward transfers at each

Seconds and bytes of the ops between two points are differences of running sums, for the rows and the kind of device of
each rank of a stage; the slowest rank counts, as the ranks of a stage meet in its all-reduce.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from epl.parallel.plan.schedule_generators import in_flight_bound
from epl.parallel.plan.strategy import Strategy
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.machine import Device
from epl.planner.machine.routes import Channel
from epl.planner.prediction.facts import Output, find_facts
from epl.planner.prediction.layout import StrategyLayout, decided
from epl.planner.search.stage_cuts import StageTimes
from epl.planner.simulator.model_costs import ModelCosts

_SMALL = 1.0  # bytes of a collective that show its latency

Load = Tuple[int, Device]  # rows of a micro batch, and the kind of device


class _Sums(NamedTuple):
    """Running sums over the places of a chain, for some rows on a kind of device; [places + 1].

    Attributes:
      forward, backward: seconds of a micro batch.
      once: seconds of ops that do not depend on data.
      kept: bytes that stay until the backward pass.
    """

    forward: np.ndarray
    backward: np.ndarray
    once: np.ndarray
    kept: np.ndarray


class _Crossing(NamedTuple):
    """Bytes that cross each point, for some rows; [places + 1].

    Attributes:
      data: of each micro batch.
      kept: those of them that the backward pass reads.
      once: what does not depend on data.
      gradients: that come back for each micro batch.
    """

    data: np.ndarray
    kept: np.ndarray
    once: np.ndarray
    gradients: np.ndarray


class PipelinePlace(NamedTuple):
    """Where the stages of a pipeline are, whatever they compute.

    Attributes:
      loads: of each stage, those that differ of its ranks.
      channels: what the messages from each stage to the next get, and those back.
      reductions: of each stage, seconds of an all-reduce: without bytes, and of each byte.
      ranks: of each stage.
      micro_batches: of a step.
      in_flight: micro batches in flight in each stage.
    """

    loads: Tuple[Tuple[Load, ...], ...]
    channels: Tuple[Tuple[Tuple[Channel, ...], Tuple[Channel, ...]], ...]
    reductions: Tuple[Tuple[float, float], ...]
    ranks: int
    micro_batches: int
    in_flight: Tuple[int, ...]


class ChainCosts:
    """The costs of a model as a chain.

    Attributes:
      places: how many there are.
    """

    def __init__(self, strategy: Strategy, costs: ModelCosts, place_of: Sequence[int]) -> None:
        """Takes a model.

        Args:
          strategy: of the model; where its blocks are does not count.
          costs: of the model.
          place_of: by op, its place in the chain.
        """
        self._costs = costs
        self._place_of = np.asarray(place_of, int)
        self.places = int(self._place_of.max()) + 1
        facts = find_facts(strategy, costs, [0] * len(strategy.blocks))
        self._from_data = np.asarray(facts.from_data, bool)
        self._has_gradient = facts.has_gradient
        own = np.asarray([op.variable_bytes for op in costs.ops], float)
        is_trained = np.asarray([op.is_trained for op in costs.ops], bool)
        self._weights = self._running(np.where(is_trained, own, 0.0))
        self._others = self._running(np.where(is_trained, 0.0, own))
        dense = np.zeros(len(own))
        for variable in facts.variables:
            if not variable.rows:
                dense[variable.op] = variable.bytes
        self._gradients = self._running(dense)
        self._last_place = self._last_places()
        self._sums: Dict[Load, _Sums] = {}
        self._crossing: Dict[Load, _Crossing] = {}

    def points(self, load: Load, most: int) -> np.ndarray:
        """Points where cuts may be best, with both ends: in each of `most` parts of the time that with fewest bytes.

        Between two of them time passes, for the rows and device of `load`.
        """
        sums, crossing = self._sums_of(load), self._crossing_of(load)
        passed = sums.forward + sums.backward
        inner = np.flatnonzero((passed > 0) & (passed < passed[-1]))
        sizes = (crossing.data + crossing.gradients + crossing.once)[inner]
        times = np.unique(passed[inner], return_inverse=True)[1]
        if len(inner) and times[-1] >= most:
            times = (passed[inner] / passed[-1] * most).astype(int)
        first = np.lexsort((sizes, times))
        chosen = first[np.flatnonzero(np.diff(times[first], prepend=-1))]
        return np.concatenate([[0], np.sort(inner[chosen]), [self.places]])

    def least_step(self, place: PipelinePlace) -> float:
        """A lower bound of a step: the period as if ops were divided among the stages by speed, and all on the fastest.

        For any weights of the stages the period is at least the mean of the seconds of the stages with these weights.
        """
        seconds = []
        for loads in place.loads:
            sums = [self._sums_of(load) for load in loads]
            seconds.append(np.max([np.diff(one.forward + one.backward) for one in sums], axis=0))
        weights = 1.0 / np.maximum(1e-30, [one.sum() for one in seconds])
        period = np.min(np.asarray(seconds) * weights[:, None], axis=0).sum() / weights.sum()
        return float((place.micro_batches - 1) * period + np.min(seconds, axis=0).sum())

    def stage_times(
        self, place: PipelinePlace, stage: int, points: Tuple[np.ndarray, np.ndarray], saving: "Saving", bias: float
    ) -> StageTimes:
        """What a stage takes between any of its starts and ends.

        Args:
          place: of the pipeline.
          stage: its number.
          points: where it may start, and where it may end.
          saving: what saves memory.
          bias: bytes that it takes beyond what is computed here.
        """
        starts, ends = points
        is_last = stage == len(place.loads) - 1
        forward, backward, once = np.zeros((3, len(starts), len(ends)))
        for load in place.loads[stage]:
            sums = self._sums_of(load)
            own = _between(sums.forward, starts, ends)
            forward = np.maximum(forward, own)
            backward = np.maximum(backward, _between(sums.backward, starts, ends) + own * saving.recomputes)
            once = np.maximum(once, _between(sums.once, starts, ends))
        fits = ends[None, :] > starts[:, None]
        for limit, held in self.memory(place, stage, points, saving):
            if limit is not None:
                fits &= held + bias <= limit
        weights = _between(self._weights, starts, ends)
        latency, of_byte = place.reductions[stage]
        reduced = latency + of_byte * _between(self._gradients, starts, ends) if place.ranks > 1 else 0.0
        kinds = [kind for _, kind in place.loads[stage]]
        slots = sum(self._costs.slots.values())
        share = place.ranks if saving.shards else 1
        updated = weights / share * (3.0 + 2.0 * slots) / min(kind.bandwidth.reached for kind in kinds)
        sent, returned = np.zeros((2, len(ends)))
        if not is_last:
            crossing = [self._crossing_of(load) for load in place.loads[stage]]
            forth, back = place.channels[stage]
            sent = _slowest(forth, np.max([one.data[ends] for one in crossing], axis=0))
            returned = _slowest(back, np.max([one.gradients[ends] for one in crossing], axis=0))
            with_once = _slowest(forth, np.max([(one.data + one.once)[ends] for one in crossing], axis=0))
            once = once + (with_once - sent)[None, :]
        return StageTimes(
            np.where(fits, forward, np.inf),
            backward,
            np.maximum(0.0, reduced - backward) + updated,
            once,
            sent,
            returned,
            place.in_flight[stage],
        )

    def memory(
        self, place: PipelinePlace, stage: int, points: Tuple[np.ndarray, np.ndarray], saving: "Saving"
    ) -> List[Tuple[Optional[int], np.ndarray]]:
        """Of each load of a stage, the bytes of its device, and those that it holds at least, [starts, ends]."""
        starts, ends = points
        weights = _between(self._weights, starts, ends)
        state = weights * (1.0 + sum(self._costs.slots.values())) / (place.ranks if saving.shards else 1)
        state += _between(self._others, starts, ends) + _between(self._gradients, starts, ends)
        state += weights if saving.shards else 0.0
        in_flight = min(place.in_flight[stage], place.micro_batches)
        found = []
        for load in place.loads[stage]:
            received = self._crossing_of(load).kept[starts][:, None] if stage else 0.0
            kept = 0.0 if saving.recomputes else _between(self._sums_of(load).kept, starts, ends)
            found.append((load[1].memory, state + in_flight * (kept + received)))
        return found

    # ---- Sums over the chain.

    def _running(self, values: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(np.bincount(self._place_of, values, self.places))])

    def _sums_of(self, load: Load) -> _Sums:
        if load not in self._sums:
            costs = self._costs.at(*load)
            forward = np.asarray(costs.forward, float)
            kept = np.minimum(costs.kept_bytes, costs.output_bytes)
            self._sums[load] = _Sums(
                self._running(np.where(self._from_data, forward, 0.0)),
                self._running(np.asarray(costs.backward, float)),
                self._running(np.where(self._from_data, 0.0, forward)),
                self._running(np.where(self._from_data, kept, 0.0)),
            )
        return self._sums[load]

    def _last_places(self) -> Dict[Output, int]:
        """The last place that takes an output, of those that are taken in another place than their own."""
        found: Dict[Output, int] = {}
        for number, op in enumerate(self._costs.ops):
            place = int(self._place_of[number])
            for taken in op.inputs:
                if self._place_of[taken[0]] < place:
                    found[taken] = max(place, found.get(taken, 0))
        return found

    def _crossing_of(self, load: Load) -> _Crossing:
        if load not in self._crossing:
            kept = self._costs.at(*load).kept_bytes
            change = np.zeros((4, self.places + 2))
            for (op, output), last in self._last_place.items():
                size = self._costs.tensor_bytes(load[0], op, output)
                rows: Set[int] = {0 if self._from_data[op] else 2}
                if self._from_data[op] and kept[op]:
                    rows.add(1)
                if self._has_gradient[op]:
                    rows.add(3)
                for row in rows:
                    change[row, self._place_of[op] + 1] += size
                    change[row, last + 1] -= size
            self._crossing[load] = _Crossing(*np.maximum(0.0, np.cumsum(change, axis=1)[:, :-1]))
        return self._crossing[load]


class Saving(NamedTuple):
    """What saves memory.

    Attributes:
      recomputes: whether activations are computed a second time.
      shards: whether each rank has a shard of weights and slots (ZeRO).
    """

    recomputes: bool
    shards: bool


def place_pipeline(
    strategy: Strategy, layout: StrategyLayout, links: CollectiveCosts, gradients: float
) -> PipelinePlace:
    """Where the stages of a strategy are.

    Args:
      strategy: its schedule counts.
      layout: of the strategy.
      links: of the machine.
      gradients: bytes of all of them; a stage is taken to have about its part of them.
    """
    kinds = links.machine.placed_devices()
    stages = layout.stages
    loads = []
    for devices in stages:
        loads.append(tuple(dict.fromkeys((rows, kinds[device]) for rows, device in zip(layout.rows, devices))))
    channels = []
    for source, target in zip(stages, stages[1:]):
        both = [tuple(sorted(links.routes.channels(list(zip(*pair))))) for pair in ((source, target), (target, source))]
        channels.append((both[0], both[1]))
    size = max(1.0, gradients / len(stages))
    reductions = []
    for devices in stages:
        latency = links.cost("all-reduce", devices, _SMALL).seconds if layout.ranks > 1 else 0.0
        whole = links.cost("all-reduce", devices, size).seconds if layout.ranks > 1 else 0.0
        reductions.append((latency, max(0.0, whole - latency) / size))
    schedule = str(decided(strategy)["pipeline.strategy"]).lower()
    in_flight = in_flight_bound(len(stages), 1 if schedule == "preferbackwardoptimizer" else 0)
    if schedule == "preferforward":
        in_flight = (layout.micro_batches,) * len(stages)
    return PipelinePlace(
        tuple(loads), tuple(channels), tuple(reductions), layout.ranks, layout.micro_batches, in_flight
    )


def _between(sums: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, sums[ends][None, :] - sums[starts][:, None])


def _slowest(channels: Sequence[Channel], sizes: np.ndarray) -> np.ndarray:
    """Seconds of messages of some bytes each."""
    return np.max([channel.latency + sizes / channel.bandwidth for channel in channels], axis=0)
