"""Pipelines that are cut for their devices: stages x replicas x devices x micro batches, in the memory that there is.

    stages, and devices of each     the layout says on which devices each stage of each replica would be
      micro batches                 what is saved where memory is short: nothing, ZeRO, recomputation, both
        cuts                        the best ones (`stage_cuts.py`), with the speeds, links and memory of these devices

    epl.replicate(1) x 2 stages on 4 devices     stage 0: 0, 2    stage 1: 1, 3     a replica is on neighbours
    epl.replicate(2) x 2 stages                  stage 0: 0, 1    stage 1: 2, 3     so is a stage

Stages on faster devices get more work, and stages that hold more micro batches, or are on smaller devices, fewer bytes.
The memory of a stage is computed from below, without what ops need for a moment. So cuts that come near a limit are
simulated, and found anew with what the simulator says that each stage takes beyond that, until they fit.
"""

import itertools
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from epl.env import Env
from epl.parallel.plan.hierarchy import costs_of_job
from epl.parallel.plan.strategy import Block, Strategy
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import decided, lay_out
from epl.planner.prediction.prediction import predict
from epl.planner.search.candidates import MICRO_BATCHES, PLANNER, PlanCandidate, in_stages, with_settings
from epl.planner.search.stage_costs import ChainCosts, PipelinePlace, Saving, place_pipeline
from epl.planner.search.stage_cuts import ChainCuts, best_cuts
from epl.planner.simulator.model_costs import ModelCosts
from epl.utils.errors import EplError

_MOST_POINTS = 32  # of a chain that is searched in one go
_POINTS_OF_STAGE = 4  # else it is searched with so many points for each stage, and once more near the cuts
_NEAR = 24  # points that may be near a cut
_SURE = 0.7  # of the memory of a device: a stage that holds no more fits
_ROUNDS = 4  # of cuts that the simulator corrects
_OF_EACH = 2  # candidates for a number of stages
_MOST_TRIED = 8  # pipelines with a number of stages that do not fit

# Whether a strategy trains on the batches of the script.
IsAllowed = Callable[[Strategy], bool]


class _Pipeline(NamedTuple):
    """A pipeline that has no cuts yet.

    Attributes:
      strategy: with its settings, and with blocks that only say how many stages there are, each with its devices.
      place: where its stages are.
      saving: what saves memory.
      name: for people.
    """

    strategy: Strategy
    place: PipelinePlace
    saving: Saving
    name: str


class _Divided(NamedTuple):
    """A pipeline with the points of its chain where stages start.

    Attributes:
      seconds: of a step, as `stage_cuts.py` has it.
      pipeline: the pipeline.
      starts: of each stage.
      others: the same with less memory.
    """

    seconds: float
    pipeline: _Pipeline
    starts: Tuple[int, ...]
    others: Tuple[_Pipeline, ...]


class StageSearch:
    """The search for the pipelines of one model on one machine."""

    def __init__(self, base: Strategy, costs: ModelCosts, machine: Machine, rows: int, place_of: Sequence[int]) -> None:
        """Takes a model.

        Args:
          base: the strategy of the script as it is.
          costs: of its model.
          machine: with the devices of the job, and with the memory that may be used.
          rows: of the global batch.
          place_of: by op of the strategy, its place in a chain that may be cut between any two places.
        """
        self._base, self._costs, self._machine, self._rows = base, costs, machine, rows
        self._place_of = place_of
        self._micro_batches = int(decided(base)["pipeline.num_micro_batch"])  # of the script
        asked = Env.get().config.communication.hierarchy
        self._links = costs_of_job(machine, base.workers, base.devices, asked)
        self._chain = ChainCosts(base, costs, place_of)
        self._weights = float(sum(op.variable_bytes for op in costs.ops if op.is_trained))

    def depths(self) -> List[int]:
        """The numbers of stages that divide the devices."""
        devices = self._base.workers * self._base.devices
        return [count for count in range(2, devices + 1) if devices % count == 0]

    def candidates(self, is_allowed: IsAllowed, counts: Optional[Sequence[int]] = None) -> List[PlanCandidate]:
        """The best pipelines of each number of stages that fit the memory, or are the last that were tried.

        ZeRO may also save time, as each rank updates a part: so the best cuts stand there with it, too.

        Args:
          is_allowed: asked of strategies whose blocks only say how many stages there are.
          counts: numbers of stages; all that divide the devices, if None.
        """
        devices = self._base.workers * self._base.devices
        found: Dict[Strategy, str] = {}
        for count in counts or self.depths():
            if devices % count == 0 and count > 1:
                best = self._best_of(count, is_allowed)
                for one in [*best, *map(_in_shards, best[:1])]:
                    if one is not None:
                        found.setdefault(self._strategy_of(one), one.pipeline.name)
        return [PlanCandidate(name, strategy) for strategy, name in found.items()]

    def _best_of(self, count: int, is_allowed: IsAllowed) -> List[_Divided]:
        """The fastest pipelines of a number of stages that fit, or the first one that was tried if none does."""
        bounded: List[Tuple[float, int, List[_Pipeline]]] = []
        for group in self._pipelines(count, is_allowed):
            bounded.append((self._chain.least_step(group[0].place), len(bounded), group))
        fitting: List[_Divided] = []
        others: List[_Divided] = []
        for least, _, group in sorted(bounded):
            longest = fitting[-1].seconds if len(fitting) == _OF_EACH else np.inf
            if least >= longest or len(others) == _MOST_TRIED:
                break
            divided = self._first_that_fits(group)
            if divided is not None and divided.seconds < longest:
                divided, fits = self._fitting(divided)
                if fits:
                    fitting = sorted([*fitting, divided], key=lambda one: one.seconds)[:_OF_EACH]
                else:
                    others.append(divided)
        return fitting or others[:1]

    # ---- The space.

    def _pipelines(self, count: int, is_allowed: IsAllowed) -> Iterator[List[_Pipeline]]:
        """Pipelines of a number of stages, those that only differ in what saves memory together."""
        devices = self._base.workers * self._base.devices // count
        for micro_batches in dict.fromkeys((self._micro_batches, *(count * each for each in MICRO_BATCHES))):
            known: Dict[PipelinePlace, None] = {}
            for of_stage in range(1, devices + 1):
                if devices % of_stage:
                    continue
                group = []
                for saving in self._savings(devices):
                    pipeline = self._pipeline(count, of_stage, micro_batches, saving, is_allowed)
                    if pipeline is not None:
                        group.append(pipeline)
                if group and group[0].place not in known:
                    known[group[0].place] = None
                    yield group

    def _savings(self, ranks: int) -> List[Saving]:
        found = [Saving(recomputes, shards) for recomputes, shards in itertools.product((False, True), (False, True))]
        return [one for one in found if ranks > 1 or not one.shards]

    def _pipeline(
        self, count: int, of_stage: int, micro_batches: int, saving: Saving, is_allowed: IsAllowed
    ) -> Optional[_Pipeline]:
        """A pipeline; None if the user, the layout or the rows rule it out."""
        settings: Dict[str, object] = {"pipeline.num_micro_batch": micro_batches}
        words = [f"{count} stages" + (f" of {of_stage} devices" if of_stage > 1 else ""), "cut for their devices"]
        if micro_batches != self._micro_batches:
            words.append(f"{micro_batches} micro batches")
        if saving.shards:
            settings["zero.level"] = "v1"
            words.append("ZeRO v1")
        if saving.recomputes:
            settings["gradient_checkpoint.type"] = "auto"
            words.append("gradient checkpoint")
        base = with_settings(self._base, settings)
        if base is None:
            return None
        blocks = (Block("replicate", of_stage, 0, (), ()),) * count
        strategy = base._replace(blocks_origin=PLANNER, blocks=blocks)
        if not is_allowed(strategy):
            return None
        try:
            layout = lay_out(strategy, self._machine, self._rows)
        except EplError:
            return None
        if len(layout.stages) != count:
            return None
        values = decided(strategy)
        saving = Saving(values["gradient_checkpoint.type"] == "auto", bool(values["zero.level"]) and layout.ranks > 1)
        place = place_pipeline(strategy, layout, self._links, self._weights)
        return _Pipeline(strategy, place, saving, ", ".join(words))

    # ---- The cuts of a pipeline.

    def _first_that_fits(self, pipelines: Sequence[_Pipeline]) -> Optional[_Divided]:
        """The best cuts of the first pipeline that fits: those that save more memory take more time."""
        for number, pipeline in enumerate(pipelines):
            divided = self._divide(pipeline, (0.0,) * len(pipeline.place.loads))
            if divided is not None:
                return divided._replace(others=tuple(pipelines[number + 1 :]))
        return None

    def _divide(self, pipeline: _Pipeline, bias: Sequence[float]) -> Optional[_Divided]:
        """The best cuts; None if no cuts fit. With many points near the best cuts between a part of them."""
        count = len(pipeline.place.loads)
        load = pipeline.place.loads[0][0]
        every = self._chain.points(load, self._chain.places + 1)
        if len(every) <= count:
            return None
        points = self._chain.points(load, max(_MOST_POINTS, _POINTS_OF_STAGE * count))
        is_all = len(points) == len(every)
        divided = self._cut(pipeline, bias, [points[:1]] + [points[1:-1]] * (count - 1) + [points[-1:]])
        if divided is None or is_all:
            return divided
        near = [_near(every, points, start) for start in divided.starts[1:]]
        return self._cut(pipeline, bias, [points[:1], *near, points[-1:]]) or divided

    def _cut(self, pipeline: _Pipeline, bias: Sequence[float], points: Sequence[np.ndarray]) -> Optional[_Divided]:
        """The best cuts at points that are given for the start of each stage, and for the end of the last."""
        stages = [
            self._chain.stage_times(pipeline.place, stage, (points[stage], points[stage + 1]), pipeline.saving, own)
            for stage, own in enumerate(bias)
        ]
        cuts: Optional[ChainCuts] = best_cuts(stages, pipeline.place.micro_batches)
        if cuts is None:
            return None
        starts = tuple(int(own[at]) for own, at in zip(points, cuts.points))
        return _Divided(cuts.seconds, pipeline, starts, ())

    def _strategy_of(self, divided: _Divided) -> Strategy:
        """The strategy with its ops in the blocks of the cuts."""
        stage_of_place = np.searchsorted(divided.starts, np.arange(self._chain.places), side="right") - 1
        stage_of_op = [int(stage_of_place[place]) for place in self._place_of]
        strategy = divided.pipeline.strategy
        return in_stages(strategy, stage_of_op, len(divided.starts), strategy.blocks[0].devices)

    # ---- Memory.

    def _fitting(self, divided: _Divided) -> Tuple[_Divided, bool]:
        """Cuts that fit by the simulator, of a pipeline that saves more memory if need be; the last ones if none do.

        Also whether they fit, as far as the simulator says.
        """
        while True:
            for _ in range(_ROUNDS):
                bias = self._missing_memory(divided)
                if bias is None:
                    return divided, True
                following = self._divide(divided.pipeline, bias)
                if following is None or following.starts == divided.starts:
                    break
                divided = following._replace(others=divided.others)
            saving = self._first_that_fits(divided.others)
            if saving is None:
                return divided, False
            divided = saving

    def _missing_memory(self, divided: _Divided) -> Optional[List[float]]:
        """By stage, the bytes that it holds beyond those computed here; None if all stages fit, or nothing says so."""
        computed, is_sure = self._held(divided)
        if is_sure:
            return None
        try:
            found = predict(self._strategy_of(divided), self._costs, self._machine, self._rows)
        except EplError:
            return None
        if found.fits:
            return None
        peaks = [0.0] * len(computed)
        for one in found.devices:
            peaks[one.stage] = max(peaks[one.stage], float(one.memory.peak))
        return [peak - own for peak, own in zip(peaks, computed)]

    def _held(self, divided: _Divided) -> Tuple[List[float], bool]:
        """By stage, the bytes that a device holds at least; whether all are far below what their devices have."""
        ends = [*divided.starts[1:], self._chain.places]
        computed, is_sure = [], True
        for stage, (start, end) in enumerate(zip(divided.starts, ends)):
            points = np.asarray([start]), np.asarray([end])
            most = 0.0
            for limit, held in self._chain.memory(divided.pipeline.place, stage, points, divided.pipeline.saving):
                most = max(most, float(held[0, 0]))
                is_sure = is_sure and (limit is None or float(held[0, 0]) <= _SURE * limit)
            computed.append(most)
        return computed, is_sure


def _in_shards(divided: _Divided) -> Optional[_Divided]:
    """The same cuts with ZeRO; None if they have it, or may not."""
    recomputes = divided.pipeline.saving.recomputes
    for pipeline in divided.others:
        if pipeline.saving == Saving(recomputes, True):
            return divided._replace(pipeline=pipeline, others=())
    return None


def _near(every: np.ndarray, points: np.ndarray, start: int) -> np.ndarray:
    """Of all points those between the neighbours of one of `points`; the nearest ones if they are many."""
    at = int(np.searchsorted(points, start))
    between = every[(every > points[at - 1]) & (every < points[at + 1])]
    nearest = np.argsort(np.abs(between - start), kind="stable")[:_NEAR]
    return np.sort(between[nearest])
