"""The plan of a script with what the simulator says of it, for `epl-plan`: as text, as JSON and as a trace."""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Strategy
from epl.parallel.strategy.record import ForwardPass, has_made_blocks
from epl.planner.costs.row_exchanges import BATCH_NORMS
from epl.planner.machine import quantities
from epl.planner.machine.machine import to_plain
from epl.planner.prediction import describe, plain
from epl.planner.prediction.prediction import Prediction, predict
from epl.planner.prediction.schedule_grid import draw_grid, find_grid
from epl.planner.report import feature_gains
from epl.planner.report.feature_gains import FeatureGain, find_gains
from epl.planner.report.plan_files import FORMAT, VERSION
from epl.planner.search import capacity, comparison
from epl.planner.search.decision import SearchResult
from epl.planner.search.planned_model import PlannedModel, planned_model
from epl.planner.search.reasons import STAGES, Reason, describe_reason, find_reasons
from epl.planner.search.search_time import SearchTime
from epl.planner.search.split_choices import is_over_all
from epl.profiler.origins import GraphOrigins, find_origins
from epl.utils.errors import EplError

_SPLIT_OVER_ALL = (
    "More devices were not tried, as a split over all devices is cut anew for them: name a larger machine."
)
_SEARCH = 'Other decisions may: auto.planner "search" looks for them.'


class SimulatedPlan(NamedTuple):
    """A plan, and a step of it as the simulator sees it.

    Attributes:
      strategy: the plan.
      model: what it is simulated with; None if that is not known.
      prediction: the step; None if it cannot be simulated.
      refusal: why not; else "".
      search: what it has been compared with; None without a search.
      reasons: of its decisions.
      gains: what each of its features buys.
      origins: of the ops of the rewritten graph.
      remedy: if it does not fit: how many devices would do for the same decisions, in a sentence; else "".
    """

    strategy: Strategy
    model: Optional[PlannedModel]
    prediction: Optional[Prediction]
    refusal: str
    search: Optional[SearchResult]
    reasons: Tuple[Reason, ...] = ()
    gains: Tuple[FeatureGain, ...] = ()
    origins: Optional[GraphOrigins] = None
    remedy: str = ""

    @property
    def fits(self) -> bool:
        """Whether no device is known to lack memory."""
        return self.prediction is None or self.prediction.fits

    @property
    def blocks_from(self) -> str:
        """Where the blocks come from."""
        return next((one.origin for one in self.reasons if one.decision == STAGES), self.strategy.blocks_origin)

    @property
    def uncounted(self) -> List[str]:
        """What the times of candidates leave out, in sentences."""
        known = [] if self.model is None or self.search is None else self.model.costs.exchanges
        late = sorted({one.decision for one in known} - {BATCH_NORMS})
        words = "candidates were simulated without the collectives of {}, which are decided after the search"
        return [words.format(one) for one in late]

    def lacking(self) -> str:
        """What the devices lack, and what would do, in sentences."""
        devices = [] if self.prediction is None else self.prediction.devices
        lacks = [
            f"each device of {one.name} lacks {quantities.show(one.memory.lacks, quantities.BYTES)} of memory"
            for one in devices
            if one.memory.lacks
        ]
        return " ".join([f"{', '.join(lacks)}.", self.remedy]).rstrip()

    def model_assumptions(self) -> List[str]:
        """What is assumed of the machine, the rows, and the times of ops."""
        if self.model is None:
            return []
        profile = self.model.profile
        return [*self.model.assumptions, *([] if profile is None else profile.notes())]

    def describe(self) -> List[str]:
        """The simulation in lines for a person."""
        if self.model is None or self.prediction is None:
            return [f"not simulated: {self.refusal}"]
        lines = describe.describe(self.prediction)
        lines += [self.remedy] if self.remedy else []
        grid = find_grid(self.prediction)
        if grid is not None:
            lines += ["", "schedule of a replica, as simulated: passes by stage and time, F forward, B backward"]
            lines += ["  " + line for line in draw_grid(grid)]
        if self.gains:
            lines += ["", "what each feature buys: the plan without it"]
            lines += ["  " + line for line in feature_gains.describe_gains(self.gains, self.prediction)]
        lines += ["", *self.model.machine.describe().split("\n")]
        lines += [f"assumed: {words}" for words in self.model_assumptions()]
        if self.search is not None:
            lines += ["", "candidates, * the one that was taken:"]
            lines += comparison.describe(self.search.compared, self.search.chosen)
            lines += [f"searched by blocks: {self.search.by_blocks}"] if self.search.by_blocks else []
            lines += [self.search.left_out] if self.search.left_out else []
            lines += self.uncounted
        compared = [one for one in self.reasons if one.runner_up is not None]
        if compared:
            lines += ["", "why, and what it would cost to decide one thing otherwise:"]
            lines += ["  " + describe_reason(one) for one in compared]
        return lines

    def to_json(self) -> str:
        """All that is told, as JSON; times in seconds, sizes in bytes."""
        found: Dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "strategy": json.loads(strategies.to_json(self.strategy)),
            "refusal": self.refusal,
            "remedy": self.remedy,
            "origins": plain.plain(self.origins),
            "decisions": [plain.plain(one) for one in self.reasons],
        }
        if self.model is not None:
            found.update(
                machine=to_plain(self.model.machine), rows=self.model.rows, assumptions=self.model_assumptions()
            )
        if self.prediction is not None:
            found["simulation"] = plain.to_plain(self.prediction)
            grid = find_grid(self.prediction)
            found["schedule"] = [] if grid is None else [plain.plain(one) for one in grid.passes]
            found["features"] = [plain.plain(one) for one in self.gains]
        if self.search is not None:
            found["candidates"] = [_candidate(one, one is self.search.chosen) for one in self.search.compared]
            found["left_out"] = self.search.left_out
            found["uncounted"] = self.uncounted
        return json.dumps(found, indent=1) + "\n"


def simulate_plan(graph: Graph, strategy: Strategy, may_stop: bool = False) -> SimulatedPlan:
    """The plan of a graph, simulated.

    Args:
      graph: that was recorded.
      strategy: that it is trained by.
      may_stop: whether Ctrl-C ends a search for enough devices alone, in place of the process.
    """
    search = graph.state_of(SearchResult)
    found = graph.state_of(ForwardPass)
    assert found is not None
    reasons = tuple(_reasons(graph, strategy, search))
    told = SimulatedPlan(strategy, None, None, "", search, reasons, origins=find_origins(graph))
    try:
        told = told._replace(model=planned_model(graph, found))
        assert told.model is not None
        model = told.model
        told = told._replace(prediction=predict(strategy, model.costs, model.machine, model.rows))
        assert told.prediction is not None
        remedy = "" if told.fits else _enough_devices(strategy, model, may_stop)
        return told._replace(gains=tuple(find_gains(strategy, told.prediction, model)), remedy=remedy)
    except EplError as error:
        return told._replace(refusal=str(error))


def _enough_devices(strategy: Strategy, model: PlannedModel, may_stop: bool) -> str:
    """How many devices would do for a strategy that does not fit, all else as decided."""

    if any(map(is_over_all, strategy.blocks)):
        return f"{_SPLIT_OVER_ALL} {_SEARCH}"

    def find(larger: PlannedModel) -> Optional[str]:
        is_enough = capacity.fits(larger.strategy, larger, larger.machine)
        return "the same decisions" if is_enough else None

    is_rows_set = bool(Env.get().config.auto.rows)
    model = model._replace(strategy=strategy)
    searched = capacity.find_capacity(model, is_rows_set, find, SearchTime(None, may_stop))
    words = capacity.in_words(searched, model.machine)
    return words if searched.enough is not None else f"{words} {_SEARCH}".strip()


def _reasons(graph: Graph, strategy: Strategy, search: Optional[SearchResult]) -> List[Reason]:
    if search is not None:
        return find_reasons(strategy, search.compared, search.chosen)
    path = Env.get().config.auto.plan_file
    return find_reasons(strategy, source=f"auto.plan_file {path!r}" if path and has_made_blocks(graph) else "")


def _candidate(one: comparison.Compared, is_chosen: bool) -> Dict[str, Any]:
    outcome = one.outcome
    return {
        "name": one.candidate.name,
        "chosen": is_chosen,
        "seconds": None if outcome is None else outcome.seconds,
        "lacks": [] if outcome is None else [list(pair) for pair in outcome.lacks],
        "refusal": one.refusal,
        "has_other_batches": one.has_other_batches,
    }
