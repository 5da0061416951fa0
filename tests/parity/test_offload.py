"""Weights in host memory change no number: the same losses and variables as with weights on the devices of the plan.

That plans with weights on the devices equal plain TensorFlow is what the other tests show.
"""

from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.context import clone_name
from tests.parity.oracle import Oracle, compare
from tests.parity.pool import Answer
from tests.parity.scripts import offload, pipelines
from tests.parity.scripts.pipeline_models import STATISTICS

Topology = Tuple[int, int]
ONE, LOCAL, WORKERS, FOUR, BOTH = (1, 1), (1, 2), (2, 1), (1, 4), (2, 2)
OFFLOAD = {"offload__level": "v0"}
long = pytest.mark.long


def _check(oracle: Oracle, topology: Topology, script: Any, **arguments: Any) -> List[Answer]:
    """Runs a script with weights on the host and on the devices, and compares all that it recorded."""
    expected = oracle.plan(topology, script, **arguments)
    answers = oracle.plan(topology, script, **dict(OFFLOAD, **arguments))
    compare(_reference(expected), answers, own=[STATISTICS])
    _moved(answers)
    assert not any(answer.results["copies"][0] for answer in expected)
    return answers


def _reference(answers: List[Answer]) -> Answer:
    """What all processes recorded, as one device would: their mean loss, and the statistics of each replica."""
    copies = [copy for answer in answers for copy in answer.results["variables"] + answer.results.get("replicas", [])]
    towers = {clone_name(name, number): copy[name] for number, copy in enumerate(copies) for name in copy}
    loss = np.mean([answer.results["loss"] for answer in answers], axis=0)
    return answers[0]._replace(results={"loss": list(loss), "variables": [towers]})


def _moved(answers: List[Answer]) -> None:
    for answer in answers:
        assert answer.results["copies"][0] > 0
        assert answer.results["places"] == [["/device:CPU:0"]]


@pytest.mark.parametrize(
    "topology, name, resource",
    [
        (ONE, "mlp", False),
        (LOCAL, "encoder", True),
        (WORKERS, "embedding", False),
        pytest.param(ONE, "keras_recurrent", True, marks=long),
        pytest.param(LOCAL, "keras_recurrent", True, marks=long),
        pytest.param(LOCAL, "cnn", False, marks=long),
        pytest.param(BOTH, "encoder", True, marks=long),
        pytest.param(LOCAL, "lstm", True, marks=long),
        pytest.param(LOCAL, "lstm", False, marks=long),
        pytest.param(WORKERS, "cnn", True, marks=long),
        pytest.param(FOUR, "encoder", False, marks=long),
    ],
)
def test_data_parallelism(oracle: Oracle, topology: Topology, name: str, resource: bool) -> None:
    _check(oracle, topology, offload.pipeline, name=name, stages=1, replicas=topology[1], resource=resource)


def test_equals_plain_tensorflow(oracle: Oracle) -> None:
    reference = oracle.plain(pipelines.accumulated, name="encoder", micro_batches=2, replicas=2)
    shape = {"stages": 2, "micro_batches": 2, "replicas": 2}
    _moved(oracle.check(FOUR, offload.pipeline, reference, name="encoder", **dict(OFFLOAD, **shape)))


@pytest.mark.parametrize(
    "topology, name, micro_batches, replicas, schedule",
    [
        (LOCAL, "cnn", 2, 1, "PreferBackward"),
        pytest.param(LOCAL, "keras_recurrent", 2, 1, "PreferBackward", marks=long),
        pytest.param(FOUR, "encoder", 2, 2, "PreferForward", marks=long),
        pytest.param(LOCAL, "lstm", 2, 1, "PreferBackwardOptimizer", marks=long),
        pytest.param(BOTH, "encoder", 2, 1, "PreferForward", marks=long),
        pytest.param(LOCAL, "cnn", 4, 1, "PreferBackwardOptimizer", marks=long),
        pytest.param(LOCAL, "embedding", 4, 1, "PreferBackward", marks=long),
    ],
)
def test_pipelines(
    oracle: Oracle, topology: Topology, name: str, micro_batches: int, replicas: int, schedule: str
) -> None:
    _check(
        oracle, topology, offload.pipeline, name=name, stages=2, micro_batches=micro_batches, replicas=replicas,
        schedule=schedule,
    )  # fmt: skip


@pytest.mark.parametrize(
    "topology, name, change",
    [
        (LOCAL, "layers", "clipped"),
        pytest.param(ONE, "resource_embedding", None, marks=long),
        pytest.param(WORKERS, "layers", None, marks=long),
        pytest.param(LOCAL, "recurrent", None, marks=long),
        pytest.param(LOCAL, "loop", None, marks=long),
        pytest.param(LOCAL, "conditional", None, marks=long),
        pytest.param(LOCAL, "hash_table", None, marks=long),
    ],
)
def test_accumulation(oracle: Oracle, topology: Topology, name: str, change: str) -> None:
    _check(oracle, topology, offload.micro_steps, name=name, steps=3, optimizer="adam", change=change)


@pytest.mark.parametrize(
    "topology, stages, name, recomputed",
    [
        pytest.param(ONE, 1, "encoder", {"gradient_checkpoint__type": "auto"}, marks=long),
        (LOCAL, 2, "mlp", {"gradient_checkpoint__type": "auto"}),
        pytest.param(LOCAL, 2, "encoder", {"gradient_checkpoint__type": "auto"}, marks=long),
        pytest.param(
            LOCAL, 1, "encoder", {"gradient_checkpoint__type": "auto", "gradient_checkpoint__check_gradients": True},
            marks=long,
        ),
        pytest.param(LOCAL, 1, "cnn", {"gradient_checkpoint__type": "auto"}, marks=long),
    ],
)  # fmt: skip
def test_gradient_checkpoint(oracle: Oracle, topology: Topology, stages: int, name: str, recomputed: Any) -> None:
    _check(
        oracle, topology, offload.pipeline, name=name, stages=stages, micro_batches=stages,
        replicas=topology[1] // stages or 1, **recomputed
    )  # fmt: skip


@pytest.mark.parametrize(
    "topology, arguments",
    [
        (LOCAL, {"name": "layers", "overflow_at": 3, "clip": "norm"}),
        pytest.param(LOCAL, {"name": "embedding", "stages": 2, "micro_batches": 2}, marks=long),
        pytest.param(WORKERS, {"name": "recurrent", "resource": True}, marks=long),
        pytest.param(ONE, {"name": "layers", "micro_batches": 2, "overflow_at": 2}, marks=long),
    ],
    ids=str,
)
def test_mixed_precision(oracle: Oracle, topology: Topology, arguments: Any) -> None:
    _check(oracle, topology, offload.half, optimizer="adam", **arguments)


@pytest.mark.parametrize("topology, clip", [(LOCAL, 0.1), pytest.param(WORKERS, None, marks=long)])
def test_updates_in_groups(oracle: Oracle, topology: Topology, clip: float) -> None:
    _check(
        oracle, topology, offload.pipeline, name="mlp", stages=1, replicas=topology[1], clip=clip,
        optimizer__num_apply_group=3, communication__clip_after_allreduce=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "topology, name, clip",
    [
        (LOCAL, "head", 0.1),
        pytest.param(WORKERS, "everything", 0.0, marks=long),
        pytest.param(LOCAL, "encoder", 0.0, marks=long),
        pytest.param(LOCAL, "small_table", 0.1, marks=long),
    ],
)
def test_split(oracle: Oracle, topology: Topology, name: str, clip: float) -> None:
    _check(oracle, topology, offload.split, name=name, optimizer="adam", clip=clip)


@pytest.mark.parametrize(
    "script",
    ["averaged_and_decayed", pytest.param("two_optimizers", marks=long), pytest.param("alternating", marks=long)],
)
def test_what_users_do(oracle: Oracle, script: str) -> None:
    _check(oracle, LOCAL, offload.optimizer, name=script)
