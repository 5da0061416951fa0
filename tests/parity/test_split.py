"""What is split over devices trains as if it were not."""
from typing import Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import splits

every_topology = pytest.mark.parametrize(
    'topology', [(1, 2), (2, 1), (1, 3), (1, 4), (4, 1), (2, 2)], ids=topology_name)
some_topologies = pytest.mark.parametrize('topology', [(1, 2), (2, 1)], ids=topology_name)


@every_topology
def test_a_wide_head(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, splits.train, name='head', optimizer='adam')


@some_topologies
@pytest.mark.parametrize('name', sorted(splits.SPLITS))
def test_models(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    oracle.check(topology, splits.train, name=name, optimizer='momentum')


@some_topologies
@pytest.mark.parametrize('after', [True, False])
def test_clipped(oracle: Oracle, topology: Tuple[int, int], after: bool) -> None:
    answers = oracle.check(topology, splits.train, name='head', clip=0.1, communication__clip_after_allreduce=after)
    norms = oracle.plain(splits.train, name='head', clip=0.1).results['norm']
    for answer in answers:
        np.testing.assert_allclose(answer.results['norm'], norms, rtol=1e-6)
