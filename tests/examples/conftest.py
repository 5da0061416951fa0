"""What the tests of all examples share; makes the modules importable that all examples share."""

import os
import sys

import pytest
import tensorflow.compat.v1 as tf

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

sys.path.append(os.path.join(ROOT, "examples"))


@pytest.fixture(autouse=True)
def fresh_graph():
    """Every test builds in a graph of its own."""
    with tf.Graph().as_default():
        yield
