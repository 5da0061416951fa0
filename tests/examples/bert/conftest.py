"""Makes the modules of examples/bert importable as its scripts import each other, and gives every test a graph."""

import os
import sys

import pytest
import tensorflow.compat.v1 as tf

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BERT = os.path.join(ROOT, "examples", "bert")

sys.path.append(BERT)


@pytest.fixture(autouse=True)
def fresh_graph():
    """Every test builds in a graph of its own."""
    with tf.Graph().as_default():
        yield


@pytest.fixture
def bert_folder():
    """The folder of the example."""
    return BERT
