"""Makes the helpers of the tests importable, and shares the fixture of tests that run EPL in their own process."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.parallel.in_process import init  # noqa: F401
from tests.parallel.mixed import mixed  # noqa: F401
