"""Pairs of features that no other test has: gradients that are summed over replicas, with what changes a step."""

from typing import Any

import numpy as np
import pytest

from tests.parity.oracle import Oracle, compare
from tests.parity.scripts import amp, pipelines

LOCAL = (1, 2)
SUM = {"communication__gradients_reduce_method": "sum"}
MODEL = {"name": "mlp", "optimizer": "sgd"}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"gradient_checkpoint__type": "auto"}, id="recomputed"),
        pytest.param({"offload__level": "v0"}, id="offloaded"),
        pytest.param({"optimizer__num_apply_group": 3}, id="in_groups"),
        pytest.param({"zero__level": "v1"}, id="in_parts"),
    ],
)
def test_sum_with(oracle: Oracle, config: Any) -> None:
    reference = oracle.plain(pipelines.accumulated, micro_batches=1, replicas=2, summed=True, **MODEL)
    oracle.check(LOCAL, pipelines.train, reference, stages=1, replicas=2, **dict(MODEL, **SUM, **config))


def test_the_sum_of_all_is_clipped(oracle: Oracle) -> None:
    clip = 0.9
    reference = oracle.plain(pipelines.accumulated, micro_batches=2, replicas=1, summed=True, clip=clip, **MODEL)
    free = oracle.plain(pipelines.accumulated, micro_batches=2, replicas=1, summed=True, **MODEL)
    assert not np.array_equal(free.results["loss"], reference.results["loss"])
    config = dict(SUM, communication__clip_after_allreduce=True)
    oracle.check(LOCAL, pipelines.train, reference, stages=1, replicas=2, clip=clip, **dict(MODEL, **config))


def test_sum_in_mixed_precision(oracle: Oracle) -> None:
    """The sum of two replicas at half the learning rate is their mean."""
    expected = oracle.plan(LOCAL, amp.train, name="layers", optimizer="sgd")
    answers = oracle.plan(LOCAL, amp.train, name="layers", optimizer="slow_sgd", **SUM)
    compare(expected[0], answers)
