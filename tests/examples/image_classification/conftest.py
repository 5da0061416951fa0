"""Makes the modules of examples/image_classification importable as its scripts import each other."""

import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
IMAGES = os.path.join(ROOT, "examples", "image_classification")

sys.path.append(IMAGES)


@pytest.fixture
def images_folder():
    """The folder of the example."""
    return IMAGES
