"""EPL with each TensorFlow that is set up: rewriting, the quick start, a training step and its memory, side by side."""

import os
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple

from benchmarks import environment, groups, harness

# Name of a TensorFlow -> the folder of its environment. The first is what the others are compared with.
ENVIRONMENTS = {"1.15": ".venv", "2.15": ".venv-2.15", "2.21": ".venv-2.21"}
OLDEST = "1.15"
AT_MOST = 1.2  # CPU time of rewriting, against TensorFlow 1.15
WORKERS, DEVICES = 2, 2
_QUICKSTART = os.path.join(environment.ROOT, "examples", "quickstart", "train_parallel.py")

Figures = Dict[str, float]


class Sizes(NamedTuple):
    """Layers and hidden size of BERT where it is rewritten, stages and micro batches; steps; layers of BERT's step."""

    layers: int
    hidden: int
    stages: int
    micro_batches: int
    quickstart_steps: int
    step: List[str]  # arguments of workers/training.py: rows, layers, hidden size
    steps: int


FULL = Sizes(12, 768, 8, 8, 1000, ["4", "12", "256"], 8)
QUICK = Sizes(2, 64, 2, 2, 20, ["2", "1", "16"], 1)
ROUNDS = 3


def run(quick: bool) -> harness.Result:
    """Measures in turns; every figure comes from fresh processes."""
    sizes = QUICK if quick else FULL
    missing: List[str] = []
    pythons = interpreters(missing)
    found: Dict[str, Dict[str, List[Figures]]] = {name: {what: [] for what in MEASURED} for name in pythons}
    for number in range(1 if quick else ROUNDS):
        for what, measure in MEASURED.items():
            for name in list(pythons)[:: -1 if number % 2 else 1]:
                try:
                    found[name][what].append(measure(pythons[name], sizes))
                except (groups.GroupError, subprocess.CalledProcessError) as error:
                    missing.append("TensorFlow %s, %s: %s" % (name, what, error))
    conditions = [
        "BERT-base is rewritten as in c and e; the quick start is train_parallel.py, %d steps, 2 workers x 2 devices"
        % sizes.quickstart_steps,
        "a step: BERT, %s rows per device, %s layers, hidden %s; EPL: 2 workers x 2 devices, plain TensorFlow: one"
        % tuple(sizes.step),
        "peak: the largest size of a process; the versions take turns",
    ]
    return harness.Result("versions (CPU time, seconds, GB)", conditions, rows(found, quick), found, missing)


def interpreters(missing: List[str]) -> Dict[str, str]:
    """Returns the interpreter of each TensorFlow that is set up; `missing` receives the others."""
    found = {}
    for name, folder in ENVIRONMENTS.items():
        python = os.path.join(environment.ROOT, folder, "bin", "python")
        if os.path.exists(python):
            found[name] = python
        else:
            missing.append("TensorFlow %s: %s is not there; make it with: make setup TF=%s" % (name, folder, name))
    return found


def rows(found: Dict[str, Dict[str, List[Figures]]], quick: bool = False) -> List[harness.Row]:
    """Returns the rows of what was measured: TensorFlow -> what -> figures by round."""
    made = []
    for what in MEASURED:
        for name in found:
            here, there = found[name][what], found.get(OLDEST, {}).get(what, [])
            for figure in here[0] if here and there and name != OLDEST else ():
                at_most = AT_MOST if "rewriting" in what and figure == "CPU" and not quick else None
                label = "%s: %s, TensorFlow %s / %s" % (what, figure, name, OLDEST)
                made.append(harness.row(label, _ratios(here, there, figure), at_most=at_most))
    for name, of_version in found.items():
        ours, plain = of_version["step of EPL"], of_version["step of plain TensorFlow"]
        if ours and plain:
            label = "TensorFlow %s, EPL / plain TensorFlow: " % name
            speeds = [WORKERS * DEVICES / ratio for ratio in _ratios(ours, plain, "seconds")]
            made.append(harness.row(label + "samples per second (bound: 2 on 2 cores)", speeds))
            made.append(harness.row(label + "CPU time of a sample", _ratios(ours, plain, "CPU", WORKERS * DEVICES)))
            made.append(harness.row(label + "peak of a process", _ratios(ours, plain, "peak")))
    return made


def _ratios(ours: List[Figures], peers: List[Figures], figure: str, replicas: int = 1) -> List[float]:
    return harness.ratios([one[figure] for one in ours], [one[figure] for one in peers], 1.0 / replicas)


def _rewriting(devices: int) -> Callable[[str, Sizes], Figures]:
    def measure(python: str, sizes: Sizes) -> Figures:
        variables = {"EPL_CLUSTER_NUM_VIRTUAL_DEVICES": str(devices)}
        (reply,) = _ask(groups.start_plain("rewriting", ["epl", str(sizes.layers)], variables, "epl", python))
        return {"CPU": reply["rewrite"]}

    return measure


def _pipeline_rewriting(python: str, sizes: Sizes) -> Figures:
    variables = {
        "EPL_CLUSTER_NUM_VIRTUAL_DEVICES": str(sizes.stages),
        "EPL_PIPELINE_NUM_MICRO_BATCH": str(sizes.micro_batches),
    }
    arguments = [str(value) for value in sizes[:3]]
    (reply,) = _ask(groups.start_plain("pipeline_rewriting", arguments, variables, "epl", python))
    return {"CPU": reply["rewrite"], "peak": reply["gigabytes"]}


def _quickstart(python: str, sizes: Sizes) -> Figures:
    """Wall and CPU seconds of the whole command: all of its processes, with their imports."""
    with tempfile.TemporaryDirectory(prefix="epl-bench-") as directory:
        command = [python, os.path.join(environment.ROOT, "tools", "epl-launch"), "--num_workers", str(WORKERS)]
        command += ["--gpu_per_worker", str(DEVICES), "--log_dir", directory]
        command += [_QUICKSTART, "{task_dir}", str(sizes.quickstart_steps)]
        start = time.perf_counter()
        environ = dict(os.environ, PYTHONPATH=environment.ROOT)
        with open(os.path.join(directory, "output"), "wb") as output:
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        if status:
            raise subprocess.CalledProcessError(status, command)
        return {"wall": time.perf_counter() - start, "CPU": usage.ru_utime + usage.ru_stime}


def _epl_step(python: str, sizes: Sizes) -> Figures:
    arguments = ["epl", *sizes.step, str(DEVICES)]
    return _step(groups.start_epl("training", arguments, WORKERS, devices=DEVICES, python=python), sizes)


def _plain_step(python: str, sizes: Sizes) -> Figures:
    return _step(groups.start_plain("training", ["plain", *sizes.step], groups.ALLOCATOR, python=python), sizes)


def _step(group: groups.Group, sizes: Sizes) -> Figures:
    replies = _ask(group, steps=sizes.steps, warm_up=2)
    return {
        "seconds": max(reply["seconds"] for reply in replies) / sizes.steps,
        "CPU": sum(reply["cpu_seconds"] for reply in replies) / sizes.steps,
        "peak": max(reply["gigabytes"] for reply in replies),
    }


def _ask(group: groups.Group, **request: object) -> List[Dict[str, Any]]:
    try:
        with group.awake():
            return group.ask(**request)
    finally:
        group.close()


MEASURED: Dict[str, Callable[[str, Sizes], Figures]] = {
    "rewriting, 2 devices": _rewriting(2),
    "rewriting, 8 devices": _rewriting(8),
    "rewriting, pipeline": _pipeline_rewriting,
    "quick start": _quickstart,
    "step of EPL": _epl_step,
    "step of plain TensorFlow": _plain_step,
}
