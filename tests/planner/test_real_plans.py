"""Simulated steps against steps of real kernels (`real_plans.py`): in relation to one device, and the order of plans.

The devices are two cores of this machine, calibrated as devices of one thread; ops are measured each by itself.
"""

import statistics

import pytest
import scipy.stats

from epl.planner.calibration.calibrate import calibrate
from epl.planner.machine import files
from tests.planner.harness import told
from tests.planner.real_plans import MODELS, ONE, PLANS

FEWEST_ROUNDS, MOST_ROUNDS = 3, 8
NOISE = 0.05  # by which the two fastest rounds of a plan may differ: then nothing has disturbed them

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(3600)]


def measured_seconds(model):
    """Plan -> seconds of a step, of the fastest round: all plans in turn, until two rounds of each agree."""
    found = {plan: [] for plan in PLANS}
    for count in range(1, MOST_ROUNDS + 1):
        for plan, rounds in found.items():
            rounds.append(statistics.median(told("real_plans", "measure", model, plan, timeout=600)))
        fastest = [sorted(rounds)[:2] for rounds in found.values()]
        if count >= FEWEST_ROUNDS and all(second <= (1 + NOISE) * first for first, second in fastest):
            break
    return {plan: min(rounds) for plan, rounds in found.items()}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Model -> plan -> seconds of a step (simulated, measured)."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "machine.json").write_text(files.to_json(calibrate("here", 2, 1)))
    found = {}
    for model in MODELS:
        simulated = {plan: told("real_plans", "predict", model, plan, str(folder), timeout=600) for plan in PLANS}
        measured = measured_seconds(model)
        found[model] = {plan: (simulated[plan], measured[plan]) for plan in PLANS}
        for plan, (guess, ran) in found[model].items():
            ratios = guess / simulated[ONE], ran / measured[ONE]
            print(
                f"{model}, {plan}: simulated {1e3 * guess:.0f} ms, ran {1e3 * ran:.0f} ms; of one device "
                f"{ratios[0]:.3f} and {ratios[1]:.3f}, {ratios[0] / ratios[1] - 1:+.0%}",
                flush=True,
            )
    return found


def test_plans_take_the_simulated_part_of_the_step_of_one_device(table):
    gaps = [
        abs(simulated / plans[ONE][0] / (measured / plans[ONE][1]) - 1)
        for plans in table.values()
        for plan, (simulated, measured) in plans.items()
        if plan != ONE
    ]
    print(f"{len(gaps)} plans: median {statistics.median(gaps):.0%}, worst {max(gaps):.0%}")
    assert statistics.median(gaps) <= 0.15


@pytest.mark.parametrize("model", MODELS)
def test_plans_are_in_the_simulated_order(table, model):
    tau = scipy.stats.kendalltau(*zip(*table[model].values())).correlation
    print(f"{model}: tau {tau:.2f}")
    assert tau >= 0.8
