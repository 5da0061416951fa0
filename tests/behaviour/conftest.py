"""Makes the tests importable by worker processes, and shares the oracle."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.parity.fixtures import oracle  # noqa: F401 pylint: disable=wrong-import-position,unused-import
