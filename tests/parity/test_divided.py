"""`epl.replicate(n)`: the devices of a process divide the batch that is read, and train as one device does on it."""

from typing import Any, Tuple

import pytest

from tests.parity.oracle import Oracle, compare, topology_name
from tests.parity.scripts import divided, inputs, pipelines, sessions
from tests.tensorflows import WITH_ESTIMATOR

# Workers, devices of each, n of epl.replicate(n).
WHOLE = (1, 2, 2)
TOPOLOGIES = [WHOLE, (1, 4, 2), (2, 2, 4), (2, 1, 2), *(pytest.param(t, marks=pytest.mark.long) for t in [(1, 4, 4)])]
every_topology = pytest.mark.parametrize("topology", TOPOLOGIES, ids=topology_name)
long = pytest.mark.long


@pytest.mark.grid
@every_topology
@pytest.mark.parametrize("name", ["layers", "embedding"])
def test_models(oracle: Oracle, topology: Tuple[int, ...], name: str) -> None:
    oracle.check(topology, divided.train, name=name)


@pytest.mark.grid
@pytest.mark.parametrize("topology", [WHOLE, (1, 4, 4)], ids=topology_name)
@pytest.mark.parametrize("rows", [11, 19])
def test_uneven_and_short_batches(oracle: Oracle, topology: Tuple[int, ...], rows: int) -> None:
    """96 rows in batches of 11 end with 8, in batches of 19 with one: less than a row for each device."""
    oracle.check(topology, divided.train, name="plain_variables", rows=rows)


@pytest.mark.parametrize(
    "script, arguments",
    [
        (inputs.one_shot, {}),
        (inputs.one_shot, {"scoped": True}),
        (inputs.initializable, {}),
        (inputs.reinitializable, {}),
        (inputs.generator, {}),
        (divided.queue, {}),
        (divided.sparse, {"batched": True}),
        (divided.sparse, {"batched": False}),
        (inputs.fed, {"first_dimension": "unknown"}),
        (inputs.fed_uneven, {}),
    ],
)
def test_what_is_divided(oracle: Oracle, script: Any, arguments: Any) -> None:
    oracle.check(WHOLE, script, **arguments)


CONFIGS = {
    "checkpoint": {"gradient_checkpoint__type": "auto"},
    "offload": {"offload__level": "v0"},
    "zero_v0": {"zero__level": "v0"},
    "zero_v1": {"zero__level": "v1"},
    "zero_v2": {"zero__level": "v2"},
    "groups": {"optimizer__num_apply_group": 3},
}
every_config = pytest.mark.parametrize("config", [pytest.param(value, id=name) for name, value in CONFIGS.items()])


@every_config
@pytest.mark.parametrize("topology", [WHOLE, pytest.param((2, 2, 2), marks=long)], ids=topology_name)
def test_with(oracle: Oracle, topology: Tuple[int, ...], config: Any) -> None:
    reference = oracle.plain(divided.train, name="embedding", optimizer="adam")
    oracle.check(topology, divided.train, reference, name="embedding", optimizer="adam", **config)


@pytest.mark.parametrize("topology", [WHOLE, (1, 4, 2)], ids=topology_name)
def test_clipped_after_the_all_reduce(oracle: Oracle, topology: Tuple[int, ...]) -> None:
    reference = oracle.plain(divided.train, name="embedding", clip=0.1)
    config = {"communication__clip_after_allreduce": True}
    oracle.check(topology, divided.train, reference, name="embedding", clip=0.1, **config)


def test_sum(oracle: Oracle) -> None:
    config = {"communication__gradients_reduce_method": "sum"}
    reference = oracle.plain(divided.train, name="embedding", factor=2.0)
    oracle.check(WHOLE, divided.train, reference, name="embedding", **config)


@pytest.mark.grid
@pytest.mark.parametrize("topology", [WHOLE, (1, 4, 2)], ids=topology_name)
@pytest.mark.parametrize("change", ["", "clipped"])
def test_accumulation(oracle: Oracle, topology: Tuple[int, ...], change: str) -> None:
    reference = oracle.plain(divided.accumulate, name="embedding", steps=2, change=change)
    config = {"communication__clip_after_allreduce": True} if change else {}
    oracle.check(
        topology, divided.accumulate, reference, 5e-6, name="embedding", steps=2, change=change, **config
    )  # fmt: skip


@pytest.mark.parametrize("topology", [WHOLE, (1, 4, 4), (1, 4, 2)], ids=topology_name)
def test_split(oracle: Oracle, topology: Tuple[int, ...]) -> None:
    oracle.check(topology, divided.split, name="head")


def test_split_of_uneven_batches(oracle: Oracle) -> None:
    oracle.check(WHOLE, divided.split, name="head", rows=11)


def test_split_on_devices_of_its_own(oracle: Oracle) -> None:
    reference = oracle.plain(divided.split, name="head", rows=16)
    oracle.check((1, 4, 4), divided.split, reference, name="head", rows=16, apart=(2, 2))


@pytest.mark.parametrize("micro_batches, replicas", [(1, 2), (2, 2), pytest.param(2, 4, marks=long)])
def test_pipelines(oracle: Oracle, micro_batches: int, replicas: int) -> None:
    reference = oracle.plain(pipelines.read, name="mlp", stages=2)
    oracle.check(
        (1, 4, 2), pipelines.read, reference, name="mlp", stages=2, micro_batches=micro_batches, replicas=replicas
    )  # fmt: skip


def test_mixed_precision(oracle: Oracle) -> None:
    """Rounding depends on how rows are divided, so two devices with a batch each are the reference."""
    config = {"amp__level": "O1", "amp__loss_scale": 128}
    expected = oracle.plan((1, 2), divided.train, name="layers", **config)
    compare(expected[0], oracle.plan(WHOLE, divided.train, name="layers", **config))


@pytest.mark.parametrize("default_strategy", [False, True])
@WITH_ESTIMATOR
def test_estimator(oracle: Oracle, default_strategy: bool) -> None:
    oracle.check(WHOLE, sessions.estimator, default_strategy=default_strategy)
