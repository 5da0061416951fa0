"""What the tests of all examples share."""

import pytest
import tensorflow.compat.v1 as tf


@pytest.fixture(autouse=True)
def fresh_graph():
    """Every test builds in a graph of its own."""
    with tf.Graph().as_default():
        yield
