"""Small models in mixed precision, in the process of the test."""

from typing import Any, Dict, List

import pytest
import tensorflow.compat.v1 as tf


@pytest.fixture
def mixed(init: Any) -> Any:
    """`mixed(devices, section__key=value)`: as `init`, with mixed precision."""

    def call(devices: int = 1, **config: Any) -> None:
        config.setdefault("amp__level", "O1")
        init(devices, **config)

    return call


def weights(name: str, *shape: int) -> tf.Variable:
    return tf.get_variable(name, shape, initializer=tf.random_normal_initializer(stddev=0.3, seed=1))


def batch(*shape: int) -> tf.Tensor:
    return tf.placeholder(tf.float32, (None,) + shape, "x")


def run(fetch: Any, feed: Dict[str, Any], steps: int = 1) -> List[Any]:
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return [sess.run(fetch, feed) for _ in range(steps)]
