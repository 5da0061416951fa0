"""Models that are split in practice train as on one device."""

from typing import Any, Tuple

import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import split_whole

FLOAT64 = 1e-11
BATCH_STATISTICS = ("moving_",)

two_devices = pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)


@two_devices
@pytest.mark.parametrize("tied", [False, True])
def test_word2vec(oracle: Oracle, topology: Tuple[int, int], tied: bool) -> None:
    oracle.check(topology, split_whole.word2vec, tied=tied)


@pytest.mark.parametrize(
    "topology",
    [(1, 2), (2, 1), *(pytest.param(one, marks=pytest.mark.long) for one in [(2, 2), (4, 1)])],
    ids=topology_name,
)
def test_words_at_positions_that_are_found_by_numbers_of_rows(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, split_whole.masked_words)


def test_what_is_not_trained_is_that_of_worker_0_where_all_that_is_trained_is_parts(oracle: Oracle) -> None:
    oracle.check((2, 1), split_whole.frozen)


@pytest.mark.long
@pytest.mark.parametrize("topology", [(1, 3), (2, 2), (4, 1)], ids=topology_name)
def test_word2vec_with_adam(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, split_whole.word2vec, optimizer="adam")


@pytest.mark.long
@pytest.mark.parametrize("topology", [(1, 2), (2, 1), (2, 2)], ids=topology_name)
def test_a_shallow_resnet_with_a_split_head(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check_images(oracle, topology, depth=split_whole.SHALLOW, width=8)


@pytest.mark.long
@two_devices
def test_resnet_50_with_a_split_head(oracle: Oracle, topology: Tuple[int, int]) -> None:
    _check_images(oracle, topology, depth=50, width=64)


def _check_images(oracle: Oracle, topology: Tuple[int, int], **arguments: Any) -> None:
    reference = oracle.by_hand(topology, split_whole.images, **arguments)
    answers = oracle.check(topology, split_whole.images, reference, FLOAT64, BATCH_STATISTICS, **arguments)
    for answer in answers:
        assert all("EPL_SPLIT/head/kernel" in held for _, held in answer.results["parts"])
