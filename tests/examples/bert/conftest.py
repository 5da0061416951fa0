"""Makes the modules of examples/bert importable as its scripts import each other."""

import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BERT = os.path.join(ROOT, "examples", "bert")

sys.path.append(BERT)


@pytest.fixture
def bert_folder():
    """The folder of the example."""
    return BERT
