"""What is done row by row with sparse gradients of tables in parts is what one device does."""

import functools
from typing import List, Tuple

import pytest

from tests.parity.checks import continue_from_each_other
from tests.parity.oracle import Oracle
from tests.parity.scripts import split_tables
from tests.tensorflows import ONLY_1

_long_on_1 = functools.partial(pytest.param, marks=[pytest.mark.long, ONLY_1])


def _long(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "topology,cut,optimizer,clips,resource",
    [
        ((1, 2), "columns", "sgd", True, False),
        _long((2, 1), "columns", "row_adagrad", True, True),
        _long((1, 3), "columns", "row_adagrad", False, False),
        _long((1, 2), "columns", "row_adagrad", True, False),
        _long_on_1((1, 3), "columns", "lazy_adam", True, True),
        _long_on_1((2, 1), "columns", "lazy_adam", False, False),
        _long((4, 1), "columns", "sgd", True, True),
        _long((1, 2), "rows", "sgd", True, False),
        _long((1, 3), "rows", "row_adagrad", True, False),
        ((2, 1), "rows", "row_adagrad", False, True),
        _long((1, 2), "columns", "many_ways", False, False),
        _long((1, 3), "columns", "many_ways", True, False),
        _long((2, 1), "columns", "many_ways", False, False),
        _long((1, 2), "columns", "nd_decay", False, True),
        _long_on_1((1, 2), "rows", "lazy_adam", True, True),
        _long((2, 2), "columns", "row_adagrad", True, False),
    ],
    ids=str,
)
def test_row_by_row(
    oracle: Oracle, topology: Tuple[int, int], cut: str, optimizer: str, clips: bool, resource: bool
) -> None:
    continue_from_each_other(
        oracle, topology, split_tables.train, {}, cut=cut, optimizer=optimizer, clips=clips, resource=resource
    )


@pytest.mark.parametrize(
    "topology,ratios,cut,optimizer,resource",
    [
        ((1, 2), [0, 1], "columns", "row_adagrad", True),
        _long((2, 1), [1, 0], "rows", "sgd", False),
        _long_on_1((1, 3), [0, 1, 0], "rows", "lazy_adam", True),
        _long((2, 1), [0, 1], "columns", "many_ways", False),
        _long((1, 2), [1, 0], "columns", "nd_decay", True),
    ],
    ids=str,
)
def test_all_rows_on_one_device(
    oracle: Oracle, topology: Tuple[int, int], ratios: List[int], cut: str, optimizer: str, resource: bool
) -> None:
    plan = {"ratios": ratios}
    continue_from_each_other(
        oracle, topology, split_tables.train, plan, cut=cut, optimizer=optimizer, clips=True, resource=resource
    )


def test_what_takes_a_variable_in_a_way_that_is_not_known_is_refused(oracle: Oracle) -> None:
    answer = oracle.plan((1, 2), split_tables.refused, cut="rows", optimizer="first_row", resource=True)[0]
    assert "takes a variable of which each device has a part" in answer.results["error"][0]


@pytest.mark.long
@pytest.mark.parametrize("cut", ["columns", "rows"])
def test_sparse_as_dense(oracle: Oracle, cut: str) -> None:
    oracle.check((1, 2), split_tables.train, cut=cut, optimizer="sgd", communication__sparse_as_dense=True)
