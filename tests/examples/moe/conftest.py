"""Makes the modules of examples/moe importable as its scripts import each other."""

import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MOE = os.path.join(ROOT, "examples", "moe")

sys.path.append(MOE)


@pytest.fixture
def moe_folder():
    """The folder of the example."""
    return MOE
