"""`make gpu-check`: collectives over NCCL, a fault, small trainings against plain TensorFlow, several times each."""

import re
from typing import Any, Callable, Dict, List, NamedTuple

import numpy as np
import pytest

from tests.gpu import scripts
from tests.gpu.conftest import REHEARSED, Report
from tests.parity.oracle import Oracle, replica_differences, topology_name
from tests.parity.pool import Answer, ScriptFailed
from tests.parity.scripts import accumulation, models, pipelines, splits, zero

REPEATED = 2 if REHEARSED else 5  # what is right in one run and wrong in the next is a race


class Training(NamedTuple):
    """A training: `tolerance` of the largest value of a variable, against plain TensorFlow on one GPU."""

    name: str
    script: Callable[..., None]
    arguments: Dict[str, Any]
    tolerance: float


TRAININGS = [
    Training("data parallelism, SGD", models.train, {"name": "layers", "optimizer": "sgd"}, 1e-5),
    Training("data parallelism, Adam, a table", models.train, {"name": "embedding", "optimizer": "adam"}, 1e-3),
    Training("a convolution, momentum", models.train, {"name": "convolution", "optimizer": "momentum"}, 1e-4),
    Training(
        "float16 on the wire", models.train, {"name": "layers", "optimizer": "sgd", "communication__fp16": True}, 5e-3
    ),
    Training("AMP", models.train, {"name": "layers", "optimizer": "sgd", "amp__level": "O1"}, 2e-2),
    Training("accumulation", accumulation.train, {"name": "layers", "optimizer": "sgd", "steps": 2}, 1e-5),
    Training(
        "recomputation",
        pipelines.train,
        {"name": "encoder", "stages": 1, "gradient_checkpoint__type": "auto"},
        1e-3,
    ),
    *(
        Training(f"ZeRO {level}", zero.train, {"name": "embedding", "optimizer": "adam", "zero__level": level}, 1e-3)
        for level in ("v0", "v1", "v2")
    ),
    Training("a split head", splits.train, {"name": "head", "optimizer": "adam"}, 1e-3),
]


@pytest.mark.parametrize("topology", [(1, 1), (2, 1), (3, 1)], ids=topology_name)
def test_collectives(oracle: Oracle, report: Report, topology: Any) -> None:
    answers = oracle.plan(topology, scripts.collectives)
    (cases,), (transport,) = answers[0].results["cases"], answers[0].results["transport"]
    wrong = sorted({name for answer in answers for name in answer.results["wrong"][0]})
    report.say(
        f"collectives, {topology[0]} ranks, {transport}: {cases} cases, 3 times",
        "right" if not wrong else f"**{len(wrong)} wrong**: {', '.join(wrong[:5])}",
    )
    assert not wrong


@pytest.mark.parametrize("topology", [(2, 1), (1, 2)], ids=topology_name)
@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.name)
def test_training(oracle: Oracle, report: Report, gpus: int, training: Training, topology: Any) -> None:
    if topology[1] > gpus:
        pytest.skip(f"needs {topology[1]} GPUs in one process")
    arguments = dict(training.arguments)
    if training.script is pipelines.train:
        arguments["replicas"] = topology[1]
    expected = oracle.plain(training.script, **_of_plain(arguments))
    runs = [oracle.plan(topology, training.script, **arguments) for _ in range(REPEATED)]
    worst = max(_distance(run, [expected]) for run in runs)
    moved = max(_distance(run, runs[0]) for run in runs)
    equal = not any(replica_differences(run) for run in runs)
    report.say(
        f"{training.name}, {topology_name(topology)}, {REPEATED} runs",
        f"{'right' if worst <= training.tolerance else '**wrong**'}: {worst:.1e} from plain TensorFlow "
        f"(allowed {training.tolerance:.0e}), {moved:.1e} between runs; replicas "
        f"{'equal' if equal else 'not equal'} to the last bit",
    )
    assert worst <= training.tolerance


def test_a_killed_worker_is_named(oracle: Oracle, report: Report) -> None:
    with pytest.raises(ScriptFailed) as failure:
        oracle.plan((2, 1), scripts.killed)
    told = re.search(r"told after ([0-9.]+) s: .*worker 1", str(failure.value))
    seen = f"named after {told.group(1)} s" if told else "**not named**"
    report.say("2 ranks, one killed in a training", seen)
    assert told, str(failure.value)


def test_step_time(oracle: Oracle, report: Report) -> None:
    size = {"layers": 2, "width": 64, "steps": 9} if REHEARSED else {"layers": 24, "width": 4096, "steps": 60}
    plain = oracle.plain(scripts.step_time, **size).results["ms"][0]
    own = oracle.plan((1, 1), scripts.step_time, **size)[0].results["ms"][0]
    report.say("step of {layers} layers of {width}, one device".format(**size), f"{own:.2f} ms, plain {plain:.2f} ms")
    assert REHEARSED or own <= 1.1 * plain


def _of_plain(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments without those of EPL's configuration."""
    return {name: value for name, value in arguments.items() if "__" not in name}


def _distance(answers: List[Answer], expected: List[Answer]) -> float:
    """The largest difference of a loss or a variable, as a part of the largest value."""
    seen, wanted = (np.mean([one.results["loss"] for one in job], axis=0) for job in (answers, expected))
    variables = answers[0].results["variables"][0]
    pairs = [(seen, wanted)]
    pairs += [(variables[name], value) for name, value in expected[0].results["variables"][0].items()]
    return max(
        float(np.max(np.abs(np.asarray(a, "d") - np.asarray(b, "d")))) / max(1e-3, float(np.max(np.abs(b))))
        for a, b in pairs
    )
