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


@pytest.mark.long
@pytest.mark.parametrize('topology', [(1, 3), (2, 2), (4, 1)], ids=topology_name)
def test_word2vec_with_adam(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, split_whole.word2vec, optimizer='adam')


@pytest.mark.long
@pytest.mark.parametrize('topology', [(1, 2), (2, 1), (2, 2)], ids=topology_name)
def test_resnet_50_with_a_split_head(oracle: Oracle, topology: Tuple[int, int]) -> None:
    """Batch statistics are those of each device, as in data parallelism."""
    reference = oracle.by_hand(topology, split_whole.resnet_50)
    oracle.check(topology, split_whole.resnet_50, reference, own=['moving_'])
