"""Scopes of `epl.replicate` with different numbers of devices: they train as one device does on the rows of all.

Where the scopes lie in different processes: tests/runtime/test_spanning_own_devices.py.
"""

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest

from tests.parity.checks import continue_from_each_other
from tests.parity.oracle import Oracle, compare
from tests.parity.pool import Answer
from tests.parity.scripts import unequal

long = pytest.mark.long

# Workers, devices of each, the largest number of devices of a scope; the numbers of the scopes.
PAIRS = [
    ((1, 2, 2), (2, 1)),
    ((2, 1, 2), (1, 2)),
    ((1, 4, 4), (4, 2)),
    pytest.param((1, 2, 2), (1, 2), marks=long),
    pytest.param((2, 1, 2), (2, 1), marks=long),
    pytest.param((1, 4, 4), (2, 4), marks=long),
    pytest.param((1, 4, 2), (2, 1), marks=long),
    pytest.param((2, 2, 4), (4, 1), marks=long),
    pytest.param((4, 1, 4), (4, 2), marks=long),
]
every_pair = pytest.mark.parametrize("topology,counts", PAIRS, ids=str)


def _shards(answers: List[Answer]) -> Dict[str, List[int]]:
    """By variable that lies in shards, the number of its elements on each rank of a group."""
    found: Dict[str, Dict[int, int]] = {}
    for answer in answers:
        for rank, values in answer.results["parts"]:
            for name, value in values.items():
                found.setdefault(name.replace("EPL_SPLIT/", ""), {})[rank] = value.size
    return {name: [sizes[rank] for rank in sorted(sizes)] for name, sizes in found.items()}


@every_pair
def test_two_scopes(oracle: Oracle, topology: Tuple[int, ...], counts: Sequence[int]) -> None:
    oracle.check(topology, unequal.train, name="layers", counts=counts)


@pytest.mark.parametrize("counts", [(2, 1), pytest.param((1, 2), marks=long)], ids=str)
@pytest.mark.parametrize("topology", [(1, 2, 2), pytest.param((2, 1, 2), marks=long)], ids=str)
@pytest.mark.parametrize("name", ["tables", "decayed", "convolutions"])
def test_models(oracle: Oracle, topology: Tuple[int, ...], counts: Sequence[int], name: str) -> None:
    oracle.check(topology, unequal.train, name=name, counts=counts)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_variables_and_slots_of_the_smaller_scope_are_on_one_device(oracle: Oracle, optimizer: str) -> None:
    answers = oracle.check((1, 2, 2), unequal.train, name="layers", counts=(2, 1), optimizer=optimizer)
    found = _shards(answers)
    slots = {"momentum": ["Momentum"], "adam": ["Adam", "Adam_1"]}[optimizer]
    sizes = {"third/kernel": 512, "third/bias": 32, "out/kernel": 160, "out/bias": 5}
    sizes.update({f"{name}/{slot}": size for name, size in list(sizes.items()) for slot in slots})
    assert found == {name: [size, 0] for name, size in sizes.items()}


@pytest.mark.parametrize(
    "topology,counts",
    [((1, 2, 2), (2, 1, 2)), ((1, 2, 2), (1, 2, 1)), pytest.param((2, 2, 4), (4, 2, 4), marks=long)],
    ids=str,
)
def test_before_and_after_another_number(oracle: Oracle, topology: Tuple[int, ...], counts: Sequence[int]) -> None:
    oracle.check(topology, unequal.train, name="around", counts=counts)


@pytest.mark.parametrize(
    "topology,counts",
    [((1, 2, 2), (2, 1, -2)), *[pytest.param((2, 1, 2), one, marks=long) for one in [(2, -2, 1), (1, -2, 2)]]],
    ids=str,
)
def test_next_to_a_split(oracle: Oracle, topology: Tuple[int, ...], counts: Sequence[int]) -> None:
    oracle.check(topology, unequal.train, name="around", counts=counts)


CONFIGS = {
    "zero_v0": {"zero__level": "v0"},
    "zero_v1": {"zero__level": "v1"},
    "checkpoint": {"gradient_checkpoint__type": "auto"},
    "offload": {"offload__level": "v0"},
    "groups": {"optimizer__num_apply_group": 3},
}


@pytest.mark.parametrize("topology", [(1, 2, 2), pytest.param((2, 2, 4), marks=long)], ids=str)
@pytest.mark.parametrize(
    "config", [pytest.param(one, id=name, marks=[] if "v1" in name else long) for name, one in CONFIGS.items()]
)
def test_with(oracle: Oracle, topology: Tuple[int, ...], config: Dict[str, Any]) -> None:
    counts = (topology[2], 1)
    reference = oracle.plain(unequal.train, name="tables", counts=counts, optimizer="adam")
    oracle.check(topology, unequal.train, reference, name="tables", counts=counts, optimizer="adam", **config)


def test_processes_with_different_rows_recompute_the_same(oracle: Oracle) -> None:
    """One has all rows in the second scope, the other none: segments that are found by sizes must be equal."""
    config = {"gradient_checkpoint__type": "auto"}
    oracle.check((2, 2, 4), unequal.train, name="tables", counts=(4, 1), **config)


@pytest.mark.parametrize("topology", [(1, 2, 2), pytest.param((2, 1, 2), marks=long)], ids=str)
def test_clipped_by_the_norm_of_all_variables(oracle: Oracle, topology: Tuple[int, ...]) -> None:
    oracle.check(topology, unequal.train, name="tables", counts=(2, 1), clip=0.1)


def test_sum_instead_of_mean(oracle: Oracle) -> None:
    reference = oracle.plain(unequal.train, name="layers", counts=(2, 1), factor=2.0)
    config = {"communication__gradients_reduce_method": "sum"}
    oracle.check((1, 2, 2), unequal.train, reference, name="layers", counts=(2, 1), **config)


@pytest.mark.parametrize("topology", [(1, 2, 2), pytest.param((2, 1, 2), marks=long)], ids=str)
def test_accumulation(oracle: Oracle, topology: Tuple[int, ...]) -> None:
    oracle.check(topology, unequal.accumulate, tolerance=5e-6, name="tables", counts=(2, 1), steps=2)


def test_mixed_precision(oracle: Oracle) -> None:
    """Rounding depends on how the work is divided, so the losses and variables are those of one device but for 1%.

    Those of one device in mixed precision: a relu near 0 that rounding takes to the other side has another gradient.
    """
    config = {"amp__level": "O1", "amp__loss_scale": 128}
    reference = oracle.plan((1, 1, 1), unequal.train, name="layers", counts=(1, 1), **config)[0]
    plain = oracle.plain(unequal.train, name="layers", counts=(2, 1))
    np.testing.assert_allclose(reference.results["loss"], plain.results["loss"], rtol=1e-2)
    answers = oracle.plan((1, 2, 2), unequal.train, name="layers", counts=(2, 1), **config)
    compare(reference, answers, tolerance=1e-2)
    assert _shards(answers)["third/kernel"] == [512, 0]


@pytest.mark.parametrize(
    "topology,counts,rows",
    [
        ((1, 2, 2), (2, 1), 0),
        ((1, 2, 2), (1, 2), 11),
        pytest.param((2, 1, 2), (2, 1), 0, marks=long),
        pytest.param((1, 4, 4), (4, 2), 0, marks=long),
    ],
    ids=str,
)
def test_batches_that_are_read_are_divided(
    oracle: Oracle, topology: Tuple[int, ...], counts: Sequence[int], rows: int
) -> None:
    """96 rows in batches of 11 end with 8."""
    config = {"cluster__colocate_split_and_replicate": True}
    reference = oracle.plain(unequal.read, name="layers", counts=counts, rows=rows)
    oracle.check(topology, unequal.read, reference, name="layers", counts=counts, rows=rows, **config)


def test_checkpoints_are_those_of_one_device(oracle: Oracle) -> None:
    continue_from_each_other(oracle, (1, 2, 2), unequal.saved, {}, counts=(2, 1))


def test_evaluation_gives_what_one_device_gives(oracle: Oracle) -> None:
    expected = oracle.plain(unequal.evaluated, counts=(2, 1)).results["found"][0]
    (answer,) = oracle.plan((1, 2, 2), unequal.evaluated, counts=(2, 1))
    for seen, wanted in zip(answer.results["found"][0], expected):
        np.testing.assert_allclose(seen, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "topology,counts,micro_batches",
    [
        ((1, 3, 2), (2, 1), 1),
        ((1, 3, 2), (1, 2), 2),
        pytest.param((1, 3, 2), (2, 1), 4, marks=long),
        pytest.param((1, 6, 4), (4, 2), 2, marks=long),
        pytest.param((1, 6, 2), (2, 1), 2, marks=long),
    ],
    ids=str,
)
def test_stages_on_devices_of_their_own(
    oracle: Oracle, topology: Tuple[int, ...], counts: Sequence[int], micro_batches: int
) -> None:
    config = {"pipeline__num_micro_batch": micro_batches}
    reference = oracle.plain(unequal.train, name="tables", counts=counts)
    oracle.check(topology, unequal.train, reference, name="tables", counts=counts, apart=True, **config)


@pytest.mark.parametrize("counts", [(2, 1), pytest.param((1, 2), marks=long)], ids=str)
def test_stages_that_read_their_batches(oracle: Oracle, counts: Sequence[int]) -> None:
    """Each micro batch is read once, and divided."""
    reference = oracle.plain(unequal.read, name="layers", counts=counts, rows=16)
    arguments = {"name": "layers", "counts": counts, "rows": 16, "micro_batches": 2}
    oracle.check((1, 3, 2), unequal.read, reference, **arguments)


@pytest.mark.parametrize(
    "counts",
    [pytest.param((2, 1), id="one_device"), pytest.param((2, -2), id="split"), pytest.param((1,), id="rows")],
)
@pytest.mark.parametrize("topology", [(1, 2, 2), (2, 1, 2)], ids=str)
@long
def test_alexnet(oracle: Oracle, topology: Tuple[int, ...], counts: Sequence[int]) -> None:
    """FlexFlow's strategies: convolutions by rows, the dense layers on one device, split, or by rows as well.

    Variables are compared in float64: in float32 a pool may take another maximum when the batch is cut, and then
    gradients differ by 1e-3, also between plain TensorFlow and two of its towers.
    """
    reference = oracle.plain(unequal.images, counts=(2, 1), dtype="float64")
    oracle.check(topology, unequal.images, reference, tolerance=1e-9, counts=counts, dtype="float64")
    expected = oracle.plain(unequal.images, counts=(2, 1), dtype="float32").results["loss"]
    answers = oracle.plan(topology, unequal.images, counts=counts, dtype="float32")
    losses = np.mean([answer.results["loss"] for answer in answers], axis=0)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    if counts == (2, 1):
        elements = [sum(sizes) for sizes in zip(*_shards(answers).values())]
        assert elements == [2 * (1152 * 512 + 512 + 512 * 512 + 512 + 512 * 125 + 125), 0]  # with slots
