"""Programs of model zoos compute what plain TensorFlow computes: on two devices, two workers, and in one more plan."""

from typing import Any, List

import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.programs import running
from tests.parity.oracle import Oracle

QUICK = ["population_norm", "count_sketch", "replay_buffer", "deepcluster"]
OTHERS = ["object_detection", "deeplab", "stylegan", "wavenet", "tacotron", "alphazero", "ppo", "gpflow", "graph_nets"]
NEWER = ["word2vec", "cyclegan", "sampled_neighbours"]
# Said of a program although its numbers are those of one device: that segments are rows of one replica is not seen.
TOLD = {"sampled_neighbours": "computes with several rows together"}
SLOW = ["electra", "xlnet", "opennmt", "maddpg", "crf", "translation"]
# tf.contrib and tf.estimator are in TensorFlow 1 alone
OF_1 = ["contrib_tacotron", "contrib_crf", "contrib_translation", "tensor2tensor"]


def _all() -> List[Any]:
    slow = SLOW + (OF_1 if tf.__version__.startswith("1.") else [])
    return QUICK + OTHERS + NEWER + [pytest.param(name, marks=pytest.mark.long) for name in slow]


@pytest.mark.parametrize("name", _all())
def test_two_devices(oracle: Oracle, name: str) -> None:
    oracle.check((1, 2), running.run, told=TOLD.get(name, ""), name=name)


@pytest.mark.parametrize("name", QUICK)
def test_two_workers(oracle: Oracle, name: str) -> None:
    oracle.check((2, 1), running.run, name=name)


@pytest.mark.parametrize("name", QUICK)
def test_with_zero(oracle: Oracle, name: str) -> None:
    oracle.check((1, 2), running.run, oracle.plain(running.run, name=name), name=name, zero__level="v1")
