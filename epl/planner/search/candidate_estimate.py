"""How long a step of a candidate takes, roughly: so that a search simulates the most promising first.

    step = (micro batches - 1) x longest stage + all stages + longest all-reduce

Milliseconds for each candidate, where a simulation takes up to seconds. Nothing is decided by it but the order.
"""

from typing import Dict, Tuple

import numpy as np

from epl.parallel.plan.strategy import OUTSIDE, Strategy
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.machine import Device
from epl.planner.prediction.layout import decided, lay_out
from epl.planner.search.speed_balance import is_open, with_balance
from epl.planner.simulator.model_costs import ModelCosts


class CandidateEstimate:
    """Estimates the candidates of one model on one machine."""

    def __init__(self, costs: ModelCosts, links: CollectiveCosts, rows: int) -> None:
        """Takes a model.

        Args:
          costs: of it.
          links: of the machine.
          rows: of the global batch.
        """
        self._costs, self._links, self._rows = costs, links, rows
        self._kinds = links.machine.placed_devices()
        self._arrays: Dict[Tuple[int, Device], np.ndarray] = {}
        self._variables = np.asarray([op.variable_bytes if op.is_trained else 0.0 for op in costs.ops], float)

    def __call__(self, strategy: Strategy) -> Tuple[bool, float]:
        """Whether devices lack memory for what stays from step to step and for activations, and seconds of a step.

        Raises:
          PlanError, LayoutError, MachineError, NotAvailableError: as `lay_out`.
        """
        if is_open(strategy):
            strategy = with_balance(strategy, "even")
        layout, values = lay_out(strategy, self._links.machine, self._rows), decided(strategy)
        again = bool(values["gradient_checkpoint.type"])
        stages, runs = len(layout.stages), layout.micro_batches
        stage_of_op = [0 if op.block == OUTSIDE else layout.stage_of_block[op.block] for op in strategy.ops]
        weights = np.bincount(stage_of_op, self._variables, stages)
        state = weights * (1.0 + sum(self._costs.slots.values()))
        state /= layout.ranks if values["zero.level"] else 1
        seconds, reduced, lacks = np.zeros(stages), np.zeros(stages), False
        for stage, devices in enumerate(layout.stages):
            in_flight = min(runs, stages - stage)
            for load in {(rows, self._kinds[device]) for rows, device in zip(layout.rows, devices)}:
                forward, backward, kept = (np.bincount(stage_of_op, one, stages)[stage] for one in self._of(*load))
                seconds[stage] = max(seconds[stage], forward + backward + again * forward)
                held = state[stage] + weights[stage] + (0.0 if again else in_flight * kept)
                lacks |= load[1].memory is not None and held > load[1].memory
            if layout.ranks > 1 and weights[stage]:
                reduced[stage] = self._links.cost("all-reduce", devices, weights[stage]).seconds
        return bool(lacks), float((runs - 1) * seconds.max() + seconds.sum() + reduced.max())

    def _of(self, rows: int, kind: Device) -> np.ndarray:
        """By op: seconds forward and backward, and bytes that stay between the two; [3, ops]."""
        if (rows, kind) not in self._arrays:
            costs = self._costs.at(rows, kind)
            kept = np.minimum(costs.kept_bytes, costs.output_bytes)
            self._arrays[rows, kind] = np.asarray([costs.forward, costs.backward, kept], float)
        return self._arrays[rows, kind]
