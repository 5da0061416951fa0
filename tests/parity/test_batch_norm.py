"""Batch norm of all rows (`batch_norm.sync`): layers train as they do on one device."""

import functools
from typing import Any, Dict, Tuple

import numpy as np
import pytest

from tests.parity.oracle import (
    Oracle,
    check_told,
    compare,
    compare_with_noise,
    every_topology,
    replica_differences,
    topology_name,
)
from tests.parity.scripts import batch_norms, pipelines, split_whole
from tests.tensorflows import KERNELS_SUM_ALIKE, ONLY_1

EXACT = 1e-12
SINGLE = 1e-6  # metrics of TensorFlow are kept in float32
NORMS = [pytest.param(name, marks=ONLY_1) if "contrib" in name else name for name in sorted(batch_norms.NORMS)]
SYNC = {"batch_norm__sync": True}
RECOMPUTED = {"gradient_checkpoint__type": "auto"}


@pytest.mark.grid
@pytest.mark.parametrize("norm", NORMS)
@every_topology
def test_layers_of_ordinary_ops_in_float64(oracle: Oracle, topology: Tuple[int, int], norm: str) -> None:
    oracle.check(topology, batch_norms.train, norm=norm, tolerance=EXACT, **SYNC)


@pytest.mark.parametrize("topology,shares", [((1, 2), (5, 3)), ((2, 1), (5, 3)), ((2, 2), (4, 1, 2, 1))])
def test_replicas_of_unequal_rows(oracle: Oracle, topology: Tuple[int, int], shares: Tuple[int, ...]) -> None:
    oracle.check(topology, batch_norms.train, norm="layers", shares=shares, tolerance=EXACT, **SYNC)


@pytest.mark.parametrize("level", [pytest.param("v0", marks=pytest.mark.long), "v1"])
def test_optimizer_states_in_parts(oracle: Oracle, level: str) -> None:
    oracle.check((2, 2), batch_norms.train, norm="layers", tolerance=EXACT, zero__level=level, **SYNC)


@pytest.mark.parametrize(
    "topology,norm,config",
    [
        ((1, 2), "layers", {}),
        ((2, 1), "chosen", {}),
        ((2, 1), "keras", {"gradient_checkpoint__type": "collection"}),
        ((1, 2), "layers", {"shares": (5, 3), "zero__level": "v1"}),
        ((2, 2), "layers", {"zero__level": "v0"}),
        ((2, 1), "layers", {"gradient_checkpoint__check_gradients": True}),
    ],
    ids=str,
)
def test_recomputation(oracle: Oracle, topology: Tuple[int, int], norm: str, config: Dict[str, Any]) -> None:
    arguments = {**RECOMPUTED, **config, **SYNC}
    answers = oracle.check(topology, batch_norms.train, norm=norm, tolerance=EXACT, **arguments)
    assert all(answer.results["recomputed"][0] > 0 for answer in answers)


@pytest.mark.parametrize(
    "topology,norm,config",
    [
        ((1, 2), "layers", {}),
        ((2, 1), "half_frozen", {}),
        ((2, 2), "layers", {"shares": (4, 1, 2, 1)}),
        ((2, 1), "layers", {"zero__level": "v1", "shares": (5, 3), **RECOMPUTED}),
        ((2, 1), "layers", {"change": "clipped", "communication__clip_after_allreduce": True}),
    ],
    ids=str,
)
def test_accumulation(oracle: Oracle, topology: Tuple[int, int], norm: str, config: Dict[str, Any]) -> None:
    oracle.check(topology, batch_norms.train, norm=norm, steps=3, tolerance=EXACT, **config, **SYNC)


@pytest.mark.parametrize(
    "topology,shape,config",
    [
        ((1, 4), {"stages": 2, "micro_batches": 4, "replicas": 2}, {}),
        ((1, 4), {"stages": 2, "micro_batches": 4, "replicas": 2, "schedule": "PreferForward"}, RECOMPUTED),
        ((2, 2), {"stages": 2, "micro_batches": 2, "replicas": 1}, {"zero__level": "v1"}),
        ((2, 2), {"stages": 4, "micro_batches": 4, "replicas": 1, "interleaved": True}, RECOMPUTED),
    ],
    ids=str,
)
def test_pipelines(oracle: Oracle, topology: Tuple[int, int], shape: Dict[str, Any], config: Dict[str, Any]) -> None:
    """As one device that accumulates over micro batches of the rows of all replicas."""
    model = {"name": "cnn", "dtype": "float64"}
    replicas = topology[0] * shape["replicas"]
    reference = oracle.plain(
        pipelines.accumulated, micro_batches=shape["micro_batches"], replicas=replicas, joined=True, **model
    )
    answers = oracle.plan(topology, pipelines.train, **model, **shape, **config, **SYNC)
    compare(reference, answers, EXACT)
    assert "from the rows of each micro batch, one after the other" in answers[0].log
    assert "the copies differ" not in answers[0].log


def test_a_summary_of_one_worker_is_no_other_model(oracle: Oracle) -> None:
    oracle.check((2, 1), batch_norms.train, norm="moments", shown=True, tolerance=EXACT, **SYNC)


@pytest.mark.grid
@pytest.mark.parametrize("norm", ["chosen", "layers"])
@every_topology
def test_a_worker_that_evaluates_alone_waits_for_no_other(oracle: Oracle, topology: Tuple[int, int], norm: str) -> None:
    check_alone(oracle, topology, norm)


def test_a_worker_that_evaluates_between_micro_steps_waits_for_no_other(oracle: Oracle) -> None:
    check_alone(oracle, (2, 1), "chosen", steps=4, **RECOMPUTED)


def check_alone(oracle: Oracle, topology: Tuple[int, int], norm: str, **config: Any) -> None:
    alone = {"norm": norm, "alone": True, **config}
    answers = oracle.check(topology, batch_norms.train, tolerance=EXACT, **alone, **SYNC)
    plain = oracle.plain(batch_norms.train, **alone).results
    for name, tolerance in (("evaluated", EXACT), ("metric", SINGLE)):
        np.testing.assert_allclose(answers[0].results[name], plain[name], rtol=tolerance)
    np.testing.assert_allclose(answers[0].results["by_rows"], plain["by_rows"], rtol=0, atol=EXACT)


FUSED = [pytest.param(name, marks=ONLY_1) if "contrib" in name else name for name in sorted(batch_norms.FUSED)]


def check_fused(oracle: Oracle, topology: Tuple[int, int], **arguments: Any) -> None:
    """Compares in float32, by how far plain TensorFlow is from itself on the same rows in another order."""
    arguments = {"dtype": "float32", **arguments}
    reference = oracle.plain(batch_norms.train, **arguments)
    answers = oracle.plan(topology, batch_norms.train, **arguments, **SYNC)
    again = functools.partial(oracle.plain, batch_norms.train, reversed_rows=True, **arguments)
    compare_with_noise(reference, answers, again)
    check_told(answers)


@pytest.mark.grid
@pytest.mark.parametrize("norm", FUSED)
@every_topology
def test_fused_layers(oracle: Oracle, topology: Tuple[int, int], norm: str) -> None:
    check_fused(oracle, topology, norm=norm)


@pytest.mark.long
@pytest.mark.parametrize("topology", [(1, 4), (2, 2)], ids=topology_name)
def test_resnet_50(oracle: Oracle, topology: Tuple[int, int]) -> None:
    model = {"depth": 50, "width": 16, "split_head": False}
    reference = oracle.plain(split_whole.images, **model)
    oracle.check(topology, split_whole.images, reference, EXACT, **model, **SYNC)


@pytest.mark.parametrize("config", [{}, RECOMPUTED, {"steps": 3, **RECOMPUTED}], ids=str)
def test_fused_layers_on_replicas_of_unequal_rows(oracle: Oracle, config: Dict[str, Any]) -> None:
    check_fused(oracle, (2, 2), norm="fused", shares=(4, 1, 2, 1), **config)


@pytest.mark.parametrize(
    "norm,topology,half,config",
    [
        ("layers", (1, 2), "float16", {}),
        ("fused", (2, 1), "float16", {}),
        pytest.param("layers", (2, 1), "bfloat16", {}, marks=KERNELS_SUM_ALIKE),
        ("layers", (2, 1), "float16", RECOMPUTED),
        ("fused", (1, 2), "float16", {"steps": 3, **RECOMPUTED}),
    ],
    ids=str,
)
def test_mixed_precision(
    oracle: Oracle, norm: str, topology: Tuple[int, int], half: str, config: Dict[str, Any]
) -> None:
    """As near to one device in mixed precision as that is to float32; statistics of each replica are 4e-2 off."""
    arguments = {"norm": norm, "dtype": "float32", "amp__level": "O1", "amp__dtype": half, **config}
    (one,) = oracle.plan((1, 1), batch_norms.train, **arguments)
    answers = oracle.plan(topology, batch_norms.train, **arguments, **SYNC)
    losses = np.mean([answer.results["loss"] for answer in answers], axis=0)
    np.testing.assert_allclose(losses, one.results["loss"], rtol=3e-3)
    seen, expected = (run.results["variables"][0] for run in (answers[0], one))
    for name in ("block1_norm_shortcut/moving_mean", "block1_norm_shortcut/moving_variance"):
        np.testing.assert_allclose(seen[name], expected[name], rtol=0, atol=2e-3 * np.abs(expected[name]).max())
    assert not replica_differences(answers)
    check_told(answers)


@pytest.mark.parametrize(
    "norm,topology,shares,config",
    [
        ("layers", (1, 2), (8, 8), {}),
        ("fused", (2, 1), (8, 5), {"zero__level": "v1"}),
        ("fused_chosen", (2, 2), (5, 3, 4, 4), {}),
        ("fused_keras", (1, 2), (8, 5), {}),
        pytest.param("fused_contrib", (1, 2), (8, 5), {}, marks=ONLY_1),
    ],
)
def test_moving_averages_are_the_mean_of_the_replicas(
    oracle: Oracle, norm: str, topology: Tuple[int, int], shares: Tuple[int, ...], config: Dict[str, Any]
) -> None:
    plain = [oracle.plain(batch_norms.statistics, norm=norm, shares=shares, part=part) for part in range(len(shares))]
    parts = [answer.results["variables"][0] for answer in plain]
    answers = oracle.plan(topology, batch_norms.statistics, norm=norm, shares=shares, **config)
    seen = answers[0].results["variables"][0]
    for name in seen:
        expected = np.average([part[name] for part in parts], axis=0, weights=shares)
        np.testing.assert_allclose(seen[name], expected, rtol=2e-5, atol=1e-6, err_msg=name)
    assert any(not np.allclose(parts[0][name], parts[1][name], rtol=1e-3) for name in seen)
    assert not replica_differences(answers)
    assert "writes `" not in answers[0].log
    assert len(answers[0].results["collectives"][0]) == 1


def test_a_worker_that_updates_averages_alone_waits_for_no_other_and_is_told(oracle: Oracle) -> None:
    answers = oracle.plan((2, 1), batch_norms.statistics, norm="layers", shares=(8, 8), alone=True)
    assert "block1_norm_a/moving_mean" in [line.split(" ")[0] for line in replica_differences(answers)]
    assert ["writes `block1_norm_shortcut/moving_mean`" in answer.log for answer in answers] == [True, False]


@pytest.mark.parametrize("norm,config", [("layers", {"replicate__state": "each"}), ("chosen", {})])
def test_moving_averages_of_each_replica_are_told(oracle: Oracle, norm: str, config: Dict[str, Any]) -> None:
    """As the script asks for them; or as they are written in a branch."""
    (answer,) = oracle.plan((1, 2), batch_norms.statistics, norm=norm, shares=(8, 8), **config)
    assert answer.results["collectives"] == [[]]
    differing = [line.split(" ")[0] for line in replica_differences([answer])]
    assert "block1_norm_a/moving_mean" in differing
    assert "writes `block1_norm_shortcut/moving_mean`, `block1_norm_shortcut/moving_variance`" in answer.log
