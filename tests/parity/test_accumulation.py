"""Gradient accumulation equals the program that keeps sums itself, in every micro step and on every topology."""

from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.oracle import TOPOLOGIES, Oracle, replica_differences, topology_name, with_mean_statistics
from tests.parity.pool import Answer
from tests.parity.scripts import accumulation
from tests.tensorflows import WITH_ESTIMATOR

every_topology = pytest.mark.parametrize("topology", [(1, 1)] + TOPOLOGIES, ids=topology_name)
# Sums of gradients that nearly cancel: their rounding is that of the larger terms.
TOLERANCE = 5e-6
some_topologies = pytest.mark.parametrize("topology", [(1, 1), (2, 2)], ids=topology_name)


def _check(oracle: Oracle, *arguments: Any, **keywords: Any) -> List[Answer]:
    return oracle.check(*arguments, tolerance=TOLERANCE, **keywords)


@pytest.mark.grid
@every_topology
@pytest.mark.parametrize("steps", [2, 3])
def test_a_plain_model(oracle: Oracle, topology: Tuple[int, int], steps: int) -> None:
    answers = _check(oracle, topology, accumulation.train, name="layers", steps=steps)
    for answer in answers:
        assert answer.results["variables"][0]["global_step"] == 6 // steps


@some_topologies
def test_nothing_is_applied_before_the_last_micro_step(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = _check(oracle, topology, accumulation.train, name="layers", steps=7, optimizer="adam")
    assert answers[0].results["variables"][0]["global_step"] == 0


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize(
    "name",
    [
        "resource",
        "keras_layers",
        "plain_variables",
        "conditional",
        "loop",
        "recurrent",
        "shared_embedding",
        "unused_and_frozen",
        "hash_table",
    ],
)
def test_models(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    _check(oracle, topology, accumulation.train, name=name, steps=3)


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize("name", ["embedding", "resource_embedding"])
@pytest.mark.parametrize(
    "optimizer",
    ["adam", "adagrad", *(pytest.param(name, marks=pytest.mark.long) for name in ["momentum", "rmsprop", "ftrl"])],
)
def test_sparse_gradients(oracle: Oracle, topology: Tuple[int, int], name: str, optimizer: str) -> None:
    _check(oracle, topology, accumulation.train, name=name, steps=3, optimizer=optimizer)


@some_topologies
def test_an_optimizer_of_the_user(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check(oracle, topology, accumulation.train, name="plain_variables", steps=3, optimizer="decayed_adam")


@some_topologies
def test_sparse_as_dense(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.plain(accumulation.train, name="embedding", steps=2, optimizer="adam")
    _check(
        oracle,
        topology,
        accumulation.train,
        reference,
        name="embedding",
        steps=2,
        optimizer="adam",
        communication__sparse_as_dense=True,
    )


@pytest.mark.grid
@every_topology
@pytest.mark.parametrize("name", ["batch_norm", "fused_batch_norm"])
def test_statistics_of_batch_norm_move_in_each_run(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    reference = oracle.by_hand(topology, accumulation.train, name=name, steps=2)
    reference = with_mean_statistics(reference, topology[0] * topology[1])
    answers = oracle.plan(topology, accumulation.train, name=name, steps=2)
    np.testing.assert_allclose(
        np.mean([answer.results["loss"] for answer in answers], axis=0), reference.results["loss"], rtol=2e-6
    )
    for variable, value in answers[0].results["variables"][0].items():
        np.testing.assert_allclose(value, reference.results["variables"][0][variable], rtol=1e-5, atol=1e-6)


@every_topology
def test_clipping_after_all_reduce_sees_the_mean_of_all(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check(
        oracle,
        topology,
        accumulation.train,
        name="embedding",
        steps=2,
        change="clipped",
        communication__clip_after_allreduce=True,
        communication__ordered_sparse_sums="on",
    )


@every_topology
def test_by_default_each_replica_clips_its_own_mean(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.by_hand(topology, accumulation.train, name="embedding", steps=2, change="clipped")
    _check(oracle, topology, accumulation.train, reference, name="embedding", steps=2, change="clipped")


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize("script", [accumulation.alternating, accumulation.keras_optimizer])
def test_scripts(oracle: Oracle, topology: Tuple[int, int], script: Any) -> None:
    _check(oracle, topology, script, steps=2)


@some_topologies
def test_changed_gradients_of_each_variable(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check(oracle, topology, accumulation.train, name="unused_and_frozen", steps=2, change="doubled")


@some_topologies
def test_two_optimizers_clipped_together(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check(oracle, topology, accumulation.clipped_together, steps=3, communication__clip_after_allreduce=True)


@every_topology
def test_sum_over_replicas_and_micro_steps(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check(oracle, topology, accumulation.summed, steps=2, factor=2.0 * topology[0] * topology[1])


@pytest.mark.parametrize("topology", [(1, 2), (1, 4)], ids=topology_name)
@pytest.mark.parametrize("name", ["layers", "embedding"])
def test_rows_weigh_within_a_run(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    _check(oracle, topology, accumulation.fed_uneven, steps=2, name=name)


@pytest.mark.parametrize("topology", [(1, 1), (2, 1)], ids=topology_name)
def test_data_ends_within_a_training_step(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check(oracle, topology, accumulation.iterated, steps=4)


@pytest.mark.parametrize("topology,batches,runs", [((2, 1), [5, 3], 3), ((2, 2), [7, 12], 3)], ids=str)
def test_workers_whose_data_ends_apart_stay_in_step(
    oracle: Oracle, topology: Tuple[int, int], batches: List[int], runs: int
) -> None:
    answers = oracle.plan(topology, accumulation.uneven_workers, steps=2, batches=batches)
    for answer in answers:
        assert answer.results["runs"] == [runs, runs]
        assert answer.results["variables"][0]["global_step"] == runs
    assert not replica_differences(answers)


@pytest.mark.parametrize("topology", [(1, 1), (2, 1), (2, 2)], ids=topology_name)
@WITH_ESTIMATOR
def test_estimator_counts_global_steps(oracle: Oracle, topology: Tuple[int, int]) -> None:
    replicas = topology[0] * topology[1]
    saved = oracle.plan(topology, accumulation.estimator, steps=3)[0].results["saved"][0]
    reference = oracle.plain(accumulation.train, name="layers", steps=3).results["variables"][0]
    assert saved["global_step"] == 2
    assert sorted(saved) == sorted(reference)
    for name in saved:
        if replicas < 4:  # two replicas of a process take the batches as they come
            np.testing.assert_allclose(saved[name], reference[name], rtol=1e-5, atol=1e-7)
