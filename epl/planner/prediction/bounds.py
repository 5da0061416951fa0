"""What no schedule of a strategy's work can beat: the work over all speeds, the bubble, and the bytes."""

from typing import Dict, NamedTuple, Sequence, Set

from epl.parallel.plan.schedule_simulator import bubble_bound
from epl.planner.prediction.layout import StrategyLayout
from epl.planner.prediction.program_builder import COMMUNICATES, LoweredStep
from epl.planner.prediction.rank_classes import RankClass
from epl.planner.simulator.model_costs import ModelCosts


class StepBound(NamedTuple):
    """Lower bounds of the time of a step, in seconds.

    Attributes:
      compute: the forward and backward pass of all rows, divided among the devices by their speeds: the sum of the
        FLOPs over the sum of the speeds that they reach.
      bubble: that a pipeline of equal stages waits in addition.
      traffic: of the messages and collectives that pass over the busiest link, one after the other.
      flops: of the forward and backward pass of all rows, each counted once.
      peak: FLOP/s of matmuls on all devices together, by their data sheets; 0 if matmuls of one have no rate.
    """

    compute: float
    bubble: float
    traffic: float
    flops: float
    peak: float

    @property
    def seconds(self) -> float:
        """The largest: communication may overlap with all of the rest."""
        return max(self.compute + self.bubble, self.traffic)


def find_bound(
    layout: StrategyLayout, costs: ModelCosts, classes: Sequence[RankClass], lowered: LoweredStep, dtype: str
) -> StepBound:
    """The bounds of a step, whose contractions compute in `dtype`."""
    rows = sum(layout.rows) * layout.micro_batches
    speed = flops = 0.0  # speed: batches per second of all devices together
    peaks = []  # (of a device, devices that compute together)
    counted: Set[int] = set()  # cores
    for one in classes:
        for kind, cores in zip(one.kinds, one.cores):
            count = float(len(one.ranks))
            if cores is not None:
                count = 0.0 if cores.number in counted else 1.0 / cores.workers
                counted.add(cores.number)
            found = costs.at(rows, kind)  # of all rows at once: in fewer runs no device does them sooner
            seconds = sum(found.forward) + sum(found.backward)
            flops = sum(found.forward_flops) + sum(found.backward_flops)
            peaks.append((kind.peak(dtype), count))
            speed += count * kind.threads / seconds if seconds else float("inf")
    compute = 1.0 / speed
    # While a stage that shares its cores is idle, another one computes with them.
    shared = any(cores is not None and cores.devices > 1 for one in classes for cores in one.cores)
    share = 0.0 if shared else bubble_bound(len(layout.stages), layout.micro_batches)
    carried: Dict[int, float] = {}
    first_of = {op: ranks[0] for ranks in lowered.program.collectives for op in ranks}
    for number, (op, told) in enumerate(zip(lowered.program.ops, lowered.ops)):
        if told.kind in COMMUNICATES and first_of.get(number, number) == number:
            carried[op.pool] = carried.get(op.pool, 0.0) + op.seconds
    peak = sum(one * count for one, count in peaks) if all(one for one, _ in peaks) else 0.0
    return StepBound(compute, compute * share / (1 - share), max(carried.values(), default=0.0), flops, peak)
