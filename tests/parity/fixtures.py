"""Fixtures that the parity and the behaviour tests share."""

import functools
from typing import Iterator

import pytest

from tests.parity.oracle import Oracle
from tests.parity.pool import Pool


@functools.lru_cache(maxsize=None)
def shared_pool() -> Pool:
    """The worker processes of this test process: one pool, whichever folders its tests are in."""
    return Pool()


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The oracle, for all tests of this test process."""
    yield Oracle(shared_pool())
    shared_pool().close()


@pytest.fixture
def without_idle_workers() -> None:
    """Ends the worker processes, which hold gigabytes, for a test that needs as many; later tests start them again."""
    if shared_pool.cache_info().currsize:
        shared_pool().end_groups()
