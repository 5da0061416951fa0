"""Programs of model zoos compute what plain TensorFlow computes: on two devices, two workers, and in one more plan."""

from typing import Any, Dict, List

import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.programs import running
from tests.parity.oracle import Oracle

_ZERO = {"zero__level": "v1"}
_STAGES = {"auto__auto_parallel": True, "pipeline__num_stages": 2, "pipeline__num_micro_batch": 2}
_RECOMPUTE = {"gradient_checkpoint__type": "auto"}

# Programs that run on two workers, too, and in one more plan.
PLANS: Dict[str, Dict[str, Any]] = {
    "population_norm": _ZERO,
    "count_sketch": _ZERO,
    "replay_buffer": _ZERO,
    "deepcluster": _ZERO,
    "word2vec": _ZERO,
    "cyclegan": _ZERO,
    "sampled_neighbours": _ZERO,
    "graph_nets": _ZERO,
    "alphazero": _STAGES,
    "deeplab": _RECOMPUTE,
    "gpflow": _ZERO,
    "ppo": _ZERO,
}
# The same, which take longer.
LONG_PLANS = {"object_detection": _ZERO, "stylegan": _ZERO, "wavenet": _RECOMPUTE, "tacotron": _STAGES}
SLOW = ["electra", "xlnet", "opennmt", "maddpg", "crf", "translation"]
# tf.contrib and tf.estimator are in TensorFlow 1 alone
OF_1 = ["contrib_tacotron", "contrib_crf", "contrib_translation", "tensor2tensor"]


def _all() -> List[Any]:
    slow = SLOW + (OF_1 if tf.__version__.startswith("1.") else [])
    return [*PLANS, *LONG_PLANS] + [pytest.param(name, marks=pytest.mark.long) for name in slow]


def _in_plans() -> List[Any]:
    return [*PLANS] + [pytest.param(name, marks=pytest.mark.long) for name in LONG_PLANS]


@pytest.mark.parametrize("name", _all())
def test_two_devices(oracle: Oracle, name: str) -> None:
    oracle.check((1, 2), running.run, name=name)


@pytest.mark.parametrize("name", _in_plans())
def test_two_workers(oracle: Oracle, name: str) -> None:
    oracle.check((2, 1), running.run, name=name)


@pytest.mark.parametrize("name", _in_plans())
def test_one_more_plan(oracle: Oracle, name: str) -> None:
    plain = oracle.plain(running.run, name=name)
    oracle.check((1, 2), running.run, plain, name=name, **{**PLANS, **LONG_PLANS}[name])
