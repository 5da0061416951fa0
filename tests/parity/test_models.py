"""Every kind of model trains under every topology as it does on one device."""

from typing import Tuple

import pytest

from tests.parity.context import clone_name
from tests.parity.oracle import Oracle, compare, every_topology, replica_differences
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
def test_each_replica_keeps_its_own_statistics(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    reference = oracle.by_hand(topology, models.train, name=name, optimizer="momentum")
    answers = oracle.plan(topology, models.train, name=name, optimizer="momentum")
    towers = reference.results["variables"][0]
    for worker, answer in enumerate(answers):
        copies = answer.results["variables"] + answer.results["replicas"]
        for device, copy in enumerate(copies):
            for statistic in ("norm/moving_mean", "norm/moving_variance"):
                expected = towers[clone_name(statistic, worker * topology[1] + device)]
                assert copy[statistic] == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert not replica_differences(answers, ignore=["norm/moving"])


@every_topology
def test_scope_instead_of_a_default_strategy(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.plain(models.train, name="layers", optimizer="momentum")
    oracle.check(topology, models.train, reference, name="layers", optimizer="momentum", scoped=True)
