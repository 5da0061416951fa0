"""What the planner predicts for this machine: times of strategies against one device, predicted and measured.

The script of a contender is simulated by `epl-plan` on the preset `cpu`, and on the machine that `epl-plan --calibrate`
has measured for its workers and devices; then the contenders take turns.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Callable, Dict, List

from benchmarks import environment, groups, harness
from benchmarks.workers.planned import CASES

ONE = "one device"
_FAR = 0.15  # of a predicted ratio from the measured one, at most
_PLAN = os.path.join(environment.ROOT, "epl_plan.py")
_SCRIPT = os.path.join(environment.ROOT, "benchmarks", "workers", "planned.py")


def run(quick: bool) -> harness.Result:
    """Measures seconds per step of each strategy, and compares their ratios with the predicted ones."""
    models = {"dense": ["256", "64"]} if quick else {"dense": ["1024", "128"], "convolutions": ["32", "32"]}
    rounds, steps = (2, 1) if quick else (15, 3)
    missing: List[str] = []
    rows: List[harness.Row] = []
    details: Dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        machines = {"preset": dict.fromkeys(CASES, "2*cpu")}
        if not quick:
            machines["calibrated"] = _calibrated(folder)
        for model, sizes in models.items():
            seconds = _measured([model, *sizes], rounds, steps, missing)
            details[model] = {name: [value / steps for value in values] for name, values in seconds.items()}
            for machine, of_case in machines.items():
                predicted = {case: _predicted(case, [model, *sizes], of_case[case], folder) for case in seconds}
                details[f"{model}, {machine}"] = predicted
                for case in seconds:
                    if case == ONE or ONE not in seconds:
                        continue
                    factor = predicted[case] / predicted[ONE]
                    rows.append(
                        harness.row(
                            f"{model}, {machine}: {case}, predicted {factor:.2f} of one device, against measured",
                            harness.ratios(seconds[ONE], seconds[case], factor),
                            at_least=1 - _FAR,
                            at_most=1 + _FAR,
                        )
                    )
    return harness.Result(
        "predictions (predicted against measured time of a step, both of that on one device)",
        [f"{model}: {sizes[1]} rows, layers of {sizes[0]}" for model, sizes in models.items()],
        rows,
        details,
        missing,
    )


def _measured(arguments: List[str], rounds: int, steps: int, missing: List[str]) -> Dict[str, List[float]]:
    contenders = harness.start_all({case: _starter(case, arguments) for case in CASES}, missing)
    try:
        return harness.interleave(contenders, rounds, missing, steps=steps, warm_up=1)
    finally:
        for group in contenders.values():
            group.close()


def _starter(case: str, arguments: List[str]) -> Callable[[], groups.Group]:
    workers, devices = CASES[case].workers, CASES[case].devices
    return lambda: groups.start_epl("planned", [case, *arguments], workers, name=case, devices=devices)


def _calibrated(folder: str) -> Dict[str, str]:
    """By case, the file of a machine with its workers and devices; one device is the first of two in a process."""
    found = {}
    for workers, devices in ((1, 2), (2, 1)):
        path = os.path.join(folder, f"{workers}x{devices}.json")
        _plan(["--calibrate", path, "--devices", f"{workers}x{devices}"])
        found.update({case: path for case, one in CASES.items() if one.workers == workers})
    return found


def _predicted(case: str, arguments: List[str], machine: str, folder: str) -> float:
    """Seconds of a step as the planner predicts them."""
    path = os.path.join(folder, "plan.json")
    devices = f"{CASES[case].workers}x{CASES[case].devices}"
    _plan(
        ["--devices", devices, "--machine", machine, "--rows", arguments[-1], "--json", path, _SCRIPT, case, *arguments]
    )
    with open(path, encoding="utf-8") as file:
        return float(json.load(file)["simulation"]["seconds"])


def _plan(arguments: List[str]) -> None:
    environ = dict(os.environ, PYTHONPATH=environment.ROOT, PYTHONWARNINGS="ignore", TF_CPP_MIN_LOG_LEVEL="2")
    subprocess.run([sys.executable, _PLAN, *arguments], env=environ, check=True, stdout=subprocess.DEVNULL)
