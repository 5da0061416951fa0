"""Recomputation changes no number: every kind of model, replica, stage and micro step, against plain TensorFlow."""

from typing import Any, Tuple

import pytest

from tests.parity.oracle import Oracle, with_mean_statistics
from tests.parity.scripts import accumulation, pipelines, recompute
from tests.parity.scripts.pipeline_models import STATISTICS

# (processes, devices) of worker processes that other tests start as well.
TOPOLOGIES = {1: (1, 4), 2: (2, 2)}
GC = {"gradient_checkpoint__type": "auto"}


def _check(oracle: Oracle, name: str, processes: int, micro_batches: int, replicas: int, **arguments: Any) -> None:
    reference = oracle.plain(
        pipelines.accumulated, name=name, micro_batches=micro_batches, replicas=replicas * processes
    )
    if arguments["stages"] == 1:
        reference = with_mean_statistics(reference, replicas * processes)
    answers = oracle.check(
        TOPOLOGIES[processes],
        recompute.pipeline,
        reference,
        own=[STATISTICS],
        name=name,
        micro_batches=micro_batches,
        replicas=replicas,
        **{"rows_known": name == "lstm", **GC, **arguments},
    )
    assert all(answer.results["recomputed"][0] > 0 for answer in answers)


long = pytest.mark.long


@pytest.mark.parametrize(
    "name, processes, replicas",
    [
        ("mlp", 1, 1),
        ("cnn", 1, 1),
        ("lstm", 1, 1),
        ("encoder", 1, 1),
        ("cnn", 1, 2),
        ("encoder", 2, 1),
        pytest.param("lstm", 1, 2, marks=long),
        pytest.param("encoder", 1, 2, marks=long),
        pytest.param("cnn", 2, 1, marks=long),
        pytest.param("lstm", 2, 1, marks=long),
    ],
)
def test_data_parallelism(oracle: Oracle, name: str, processes: int, replicas: int) -> None:
    _check(oracle, name, processes, 1, replicas, stages=1)


@pytest.mark.parametrize(
    "name, micro_batches, replicas",
    [
        ("cnn", 4, 1),
        ("lstm", 1, 1),
        ("encoder", 2, 2),
        pytest.param("cnn", 1, 1, marks=long),
        pytest.param("cnn", 2, 2, marks=long),
        pytest.param("lstm", 4, 1, marks=long),
        pytest.param("encoder", 4, 1, marks=long),
    ],
)
def test_pipelines(oracle: Oracle, name: str, micro_batches: int, replicas: int) -> None:
    _check(oracle, name, 1, micro_batches, replicas, stages=2)


@long
@pytest.mark.parametrize("schedule", ["PreferForward", "PreferBackwardOptimizer"])
def test_schedules(oracle: Oracle, schedule: str) -> None:
    _check(oracle, "encoder", 1, 4, 1, stages=2, schedule=schedule)


@long
@pytest.mark.parametrize("budget, stages", [(48000, 1), (20000, 2)])
def test_with_a_budget(oracle: Oracle, budget: int, stages: int) -> None:
    """Some of what `auto` alone recomputes, and the rest is kept."""
    _check(
        oracle, "encoder", 1, stages, 1, stages=stages, rows_known=True, gradient_checkpoint__memory_budget=budget
    )  # fmt: skip


def test_with_the_check_of_gradients(oracle: Oracle) -> None:
    _check(oracle, "encoder", 2, 2, 1, stages=2, gradient_checkpoint__check_gradients=True)


@pytest.mark.parametrize(
    "topology, name",
    [
        ((1, 1), "loop"),
        ((1, 1), "recurrent"),
        ((2, 2), "batch_norm"),
        pytest.param((2, 2), "recurrent", marks=long),
    ],
)
def test_accumulation(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    if name == "batch_norm":
        reference = oracle.by_hand(topology, accumulation.train, name=name, steps=3)
        reference = with_mean_statistics(reference, topology[0] * topology[1])
        told = " on the way to the loss: each replica"
        oracle.check(topology, recompute.micro_steps, reference, 5e-6, told=told, name=name, steps=3, **GC)
    else:
        oracle.check(
            topology, recompute.micro_steps, oracle.plain(accumulation.train, name=name, steps=3), 5e-6, name=name,
            steps=3, **GC
        )  # fmt: skip


def test_clipping_after_the_all_reduce(oracle: Oracle) -> None:
    config = dict(GC, communication__clip_after_allreduce=True)
    shape = {"stages": 2, "micro_batches": 2, "replicas": 2}
    reference = oracle.plain(pipelines.accumulated, name="encoder", micro_batches=4, replicas=1, clip=0.5)
    oracle.check((1, 4), recompute.pipeline, reference, name="encoder", clip=0.5, **dict(config, **shape))
