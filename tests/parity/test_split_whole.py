"""Models that are split in practice train as on one device."""
from typing import Tuple

import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import split_whole

two_devices = pytest.mark.parametrize('topology', [(1, 2), (2, 1)], ids=topology_name)


@two_devices
@pytest.mark.parametrize('tied', [False, True])
def test_word2vec(oracle: Oracle, topology: Tuple[int, int], tied: bool) -> None:
    oracle.check(topology, split_whole.word2vec, tied=tied)


def test_what_is_not_trained_is_that_of_worker_0_where_all_that_is_trained_is_parts(oracle: Oracle) -> None:
    oracle.check((2, 1), split_whole.frozen)


@pytest.mark.long
@pytest.mark.parametrize('topology', [(1, 3), (2, 2), (4, 1)], ids=topology_name)
def test_word2vec_with_adam(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, split_whole.word2vec, optimizer='adam')
