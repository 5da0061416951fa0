"""Fixtures that the parity and the behaviour tests share."""

from typing import Iterator

import pytest

from tests.parity.oracle import Oracle
from tests.parity.pool import Pool


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """The oracle, with its worker processes, for all tests of this test process."""
    pool = Pool()
    yield Oracle(pool)
    pool.close()
