"""Marks of tests that run on some versions of TensorFlow only, each with its reason."""

import pytest
import tensorflow.compat.v1 as tf

ONLY_1 = pytest.mark.tensorflow("1", reason="TensorFlow 2 has no tf.contrib")
ONLY_2 = pytest.mark.tensorflow("2", reason="only TensorFlow 2 has it")
WITH_ESTIMATOR = pytest.mark.tensorflow("1.15", "2.15", reason="TensorFlow 2.16 and newer have no tf.estimator")
# Without EPL, too: plain TensorFlow 2 differs so much from itself with the rows in parts.
KERNELS_SUM_ALIKE = pytest.mark.tensorflow(
    "1", reason="how kernels of TensorFlow 2 round depends on the number of rows, by more than the tolerance"
)
RESOURCE_HAS_INITIALIZED_VALUE = pytest.mark.tensorflow(
    "1", reason="TensorFlow 2 has initialized_value() of variables by reference alone"
)


def reading_when_asked(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without the prefetch that TensorFlow 2 adds by itself: it draws an element when one is asked for."""
    options = tf.data.Options()
    if hasattr(options.experimental_optimization, "inject_prefetch"):
        options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)
