"""Shares the oracle of the parity tests."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.parity.fixtures import oracle  # noqa: F401
