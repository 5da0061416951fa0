"""The best plans of a search train a few real steps on the devices of this machine; the fastest is taken.

search --the N best by prediction--> a job for each, one after the other --seconds of a step--> the fastest

Each job is started as `epl.run` starts one, runs the script in the folder of the command, and ends after a few steps.
"""

import contextlib
import io
import os
import tempfile
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence

from epl.config.keys import env_name
from epl.launcher import run as launcher
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Strategy
from epl.planner.machine import quantities
from epl.planner.machine.machine import Machine
from epl.planner.search.comparison import Compared
from epl.planner.search.decision import SearchResult
from epl.planner.search.reasons import with_origins
from epl.planner.search.training_batches import TrainingBatches
from epl.planner.trials.worker import train_briefly
from epl.runtime.trial import TIMED, WARM_UP
from epl.utils import gpu_info
from epl.utils.errors import EplError, PlanError

_SECONDS = 600.0  # of a trial, with what the script does before its first step
_OF_A_SEARCH = ("auto.planner", "auto.trials", "auto.plan_file", "auto.explain")


class TriedPlan(NamedTuple):
    """A plan that was tried.

    Attributes:
      name: of the plan.
      strategy: the plan.
      predicted: seconds of a step by the simulator.
      measured: seconds of a step on this machine; None if it was not measured.
      refusal: why not; else "".
    """

    name: str
    strategy: Strategy
    predicted: float
    measured: Optional[float]
    refusal: str


def refuse_elsewhere(machine: Machine, workers: int, devices: int) -> None:
    """Raises PlanError if the devices of a job on a machine are not those of this computer."""
    if workers * devices == 1:
        raise PlanError("auto.trials compares plans of several devices, and the job has one. Leave it out.")
    if len(machine.nodes) > 1:
        raise PlanError(
            f"auto.trials trains on this computer, and the machine {machine.name} has {len(machine.nodes)}: a plan for "
            "them is tried by a job on them, `epl-launch -x EPL_AUTO_PLAN_FILE=plan.json`. Leave auto.trials out, or "
            "name a machine of one node, such as 2*cpu."
        )
    here = gpu_info.visible_gpu_count()
    are_gpus = any(device.type == "GPU" for device in machine.placed_devices()[: workers * devices])
    if are_gpus and here < workers * devices:
        raise PlanError(
            f"auto.trials trains on this computer, which has {here} GPU(s), and the job has {workers * devices} of the "
            f"machine {machine.name}. Leave auto.trials out, or run epl-plan where these devices are."
        )
    if here and not are_gpus:
        raise PlanError(
            f"auto.trials trains on this computer, whose {here} GPU(s) a job would take, and the machine "
            f"{machine.name} has CPUs. Name its GPUs, or hide them: CUDA_VISIBLE_DEVICES=."
        )


def refuse_several_runs(batches: TrainingBatches) -> None:
    """Raises PlanError for gradient accumulation: a trial times single runs, of which few exchange gradients."""
    if batches.runs > 1:
        raise PlanError(
            f"auto.trials times single runs, and an update takes {batches.runs} runs of this script "
            "(pipeline.num_micro_batch). Leave one of them out."
        )


def try_plans(
    search: SearchResult, count: int, script: str, arguments: Sequence[str], environ: Mapping[str, str]
) -> List[TriedPlan]:
    """Trains by the best plans of a search, one after the other.

    Args:
      search: what was compared.
      count: how many of the plans that fit are tried.
      script: its path.
      arguments: of the script.
      environ: variables of the jobs.
    """
    best = [one for one in search.in_order() if one.fits and one is not search.chosen]
    return [_try(one, search, script, arguments, environ) for one in [search.chosen, *best][:count]]


def _try(
    one: Compared, search: SearchResult, script: str, arguments: Sequence[str], environ: Mapping[str, str]
) -> TriedPlan:
    assert one.outcome is not None
    strategy = with_origins(one, search.compared)
    untried = TriedPlan(one.candidate.name, strategy, one.outcome.seconds, None, "")
    with tempfile.TemporaryDirectory(prefix="epl-trials-") as folder:
        path = os.path.join(folder, "plan.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(strategies.to_json(strategy))
        own = {name: value for name, value in environ.items() if name not in map(env_name, _OF_A_SEARCH)}
        own[env_name("auto.plan_file")] = path
        try:
            with _environment(own), contextlib.redirect_stdout(io.StringIO()):
                found = launcher.run(
                    train_briefly, strategy.workers, strategy.devices, (script, arguments), timeout=_SECONDS
                )
        except (EplError, TimeoutError) as error:
            return untried._replace(refusal=str(error).split("\n")[0])
    times = [seconds for seconds in found if seconds is not None]  # a worker with no stage of its own only serves
    if not times:
        return untried._replace(refusal=f"the script ended before it had trained {WARM_UP + TIMED} steps")
    return untried._replace(measured=max(times))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def fastest(trials: Sequence[TriedPlan]) -> TriedPlan:
    """The plan with the fastest steps.

    Raises:
      PlanError: none has trained; the message says why not.
    """
    timed = [one for one in trials if one.measured is not None]
    if not timed:
        reasons = "; ".join(f"{one.name}: {one.refusal}" for one in trials)
        raise PlanError(f"None of the {len(trials)} best plans could be tried: {reasons}")
    return min(timed, key=lambda one: one.measured or 0.0)


def describe(trials: Sequence[TriedPlan], chosen: TriedPlan) -> str:
    """Predictions and measured steps in a table, the fastest plan with a star."""
    seconds = quantities.SECONDS
    rows = [("", "plan", "predicted", "measured", "measured / predicted")]
    for one in trials:
        mark, predicted = "*" if one is chosen else " ", quantities.show(one.predicted, seconds)
        if one.measured is None:
            rows.append((mark, one.name, predicted, one.refusal, ""))
        else:
            ratio = f"{one.measured / one.predicted:.2f}"
            rows.append((mark, one.name, predicted, quantities.show(one.measured, seconds), ratio))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0])).rstrip() for row in rows]
    title = f"Trials on this computer: the median of {TIMED} training steps, * the plan that is taken"
    return "\n".join([title, *[f"  {line}".rstrip() for line in lines]])
