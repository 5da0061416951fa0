"""Every kind of model trains under every topology as it does on one device."""

from typing import Tuple

import pytest

from tests.parity.oracle import Oracle, compare, every_topology, replica_differences, with_mean_statistics
from tests.parity.scripts import models

# Their gradients depend on which rows are normalised together.
WITH_STATISTICS = ["batch_norm", "fused_batch_norm"]
SEPARABLE = sorted(set(models.MODELS) - set(WITH_STATISTICS))


# Keras layers make their variables where no tower can share them.
@pytest.mark.parametrize("name", [name for name in SEPARABLE if name != "keras_layers"])
def test_averaged_towers_equal_the_global_batch(oracle: Oracle, name: str) -> None:
    """The oracle itself: data parallelism by hand, in plain TensorFlow, agrees with the one-device program."""
    reference = oracle.plain(models.train, name=name, optimizer="adam")
    compare(reference, [oracle.by_hand((1, 4), models.train, name=name, optimizer="adam")])


@pytest.mark.parametrize("name", WITH_STATISTICS)
def test_statistics_make_towers_differ_from_the_global_batch(oracle: Oracle, name: str) -> None:
    """The oracle itself: it does see the difference between statistics of a replica and of the whole batch."""
    reference = oracle.plain(models.train, name=name)
    with pytest.raises(AssertionError, match="loss differs"):
        compare(reference, [oracle.by_hand((1, 2), models.train, name=name)])


@pytest.mark.grid
@pytest.mark.parametrize("optimizer", sorted(models.OPTIMIZERS))
@every_topology
def test_optimizer(oracle: Oracle, topology: Tuple[int, int], optimizer: str) -> None:
    oracle.check(topology, models.train, name="layers", optimizer=optimizer)


@pytest.mark.grid
@pytest.mark.parametrize("name", [name for name in SEPARABLE if name != "layers"])
@every_topology
def test_model(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    oracle.check(topology, models.train, name=name, optimizer="momentum")


@pytest.mark.grid
@pytest.mark.parametrize("name", ["embedding", "resource", "recurrent"])
@every_topology
def test_model_with_adam(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    oracle.check(topology, models.train, name=name, optimizer="adam")


@pytest.mark.parametrize("name", WITH_STATISTICS)
@every_topology
def test_moving_statistics_are_the_mean_of_the_replicas(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    reference = oracle.by_hand(topology, models.train, name=name, optimizer="momentum")
    answers = oracle.plan(topology, models.train, name=name, optimizer="momentum")
    expected = with_mean_statistics(reference, topology[0] * topology[1]).results["variables"][0]
    for statistic in ("norm/moving_mean", "norm/moving_variance"):
        seen = answers[0].results["variables"][0][statistic]
        assert seen == pytest.approx(expected[statistic], rel=1e-6, abs=1e-7)
    assert not replica_differences(answers)


@every_topology
def test_scope_instead_of_a_default_strategy(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.plain(models.train, name="layers", optimizer="momentum")
    oracle.check(topology, models.train, reference, name="layers", optimizer="momentum", scoped=True)
