"""Devices that have different numbers of rows train as one that has all rows."""

import itertools
from typing import Any, Sequence, Tuple

import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import split_rows, splits

long = pytest.mark.long
TOPOLOGIES = [(1, 2), (2, 1), (1, 3), (4, 1), (2, 2)]
SHORT = [((1, 2), "loss_outside"), ((1, 2), "penalised"), ((2, 1), "scaled_by_a_loss")]
GROUPS = [(1, 4), (2, 2), (4, 1)]
SHORT_GROUPS = [((1, 4), "head"), ((2, 2), "loss_outside")]
MODELS_OF_GROUPS = ["head", "loss_outside", "tied"]


def _models(topologies: Sequence[Any], names: Sequence[str], short: Sequence[Any]) -> Any:
    """Topologies and models, of which `make test` trains the short ones."""
    others = [case for case in itertools.product(topologies, names) if case not in short]
    cases = [*short] + [pytest.param(*case, marks=long) for case in others]
    return pytest.mark.parametrize(
        "topology,name", cases, ids=lambda value: topology_name(value) if isinstance(value, tuple) else value
    )


@_models(TOPOLOGIES, sorted(splits.SPLITS), SHORT)
def test_models(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    oracle.check(topology, split_rows.train, name=name)


@_models(GROUPS, MODELS_OF_GROUPS, SHORT_GROUPS)
def test_groups(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    oracle.check(topology, split_rows.train, name=name, groups=2)


@pytest.mark.parametrize("topology", [(1, 2), pytest.param((2, 1), marks=long)], ids=topology_name)
@pytest.mark.parametrize("change", [pytest.param("", marks=long), "clipped"])
def test_accumulated(oracle: Oracle, topology: Tuple[int, int], change: str) -> None:
    oracle.check(topology, split_rows.accumulated, name="loss_outside", steps=2, change=change)


@pytest.mark.parametrize("topology", [(1, 4), pytest.param((4, 1), marks=long)], ids=topology_name)
@pytest.mark.parametrize("name", ["small_table", pytest.param("loss_outside", marks=long)])
@pytest.mark.parametrize("change", ["", pytest.param("clipped", marks=long)])
def test_accumulated_in_groups(oracle: Oracle, topology: Tuple[int, int], name: str, change: str) -> None:
    oracle.check(topology, split_rows.accumulated, name=name, steps=2, change=change, groups=2)


@long
@pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)
def test_clipped(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, split_rows.train, name="loss_outside", clip=0.1, communication__clip_after_allreduce=True)
