"""Marks of tests that run on some versions of TensorFlow only, each with its reason."""

import pytest

ONLY_2 = pytest.mark.tensorflow("2", reason="only TensorFlow 2 has it")
WITH_ESTIMATOR = pytest.mark.tensorflow("1.15", "2.15", reason="TensorFlow 2.16 and newer have no tf.estimator")
