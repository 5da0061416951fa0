"""What is made of a model with a split besides training it is what one device makes of it."""

from typing import Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts import split_serving
from tests.tensorflows import WITH_ESTIMATOR

two_devices = pytest.mark.parametrize(
    "topology", [(1, 2), pytest.param((2, 1), marks=pytest.mark.long)], ids=topology_name
)


@two_devices
@WITH_ESTIMATOR
def test_an_estimator_evaluates_predicts_and_exports(oracle: Oracle, topology: Tuple[int, int]) -> None:
    expected = oracle.plain(split_serving.estimator).results
    seen = oracle.plan(topology, split_serving.estimator)[0].results
    assert sorted(seen["metrics"][0]) == ["accuracy", "among", "global_step", "loss"]
    for name, value in expected["metrics"][0].items():
        np.testing.assert_allclose(seen["metrics"][0][name], value, rtol=1e-5, err_msg=name)
    assert 0 < seen["metrics"][0]["among"] < 1
    of_export = oracle.plain(split_serving.served, exported=seen["exported"][0]).results["predicted"][0]
    for name, value in expected["predicted"][0].items():
        for found in (seen["predicted"][0][name], of_export[name]):
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5, err_msg=name)


@two_devices
def test_a_frozen_graph_is_that_of_one_device(oracle: Oracle, topology: Tuple[int, int]) -> None:
    expected = oracle.plain(split_serving.trained_and_frozen).results
    for answer in oracle.plan(topology, split_serving.trained_and_frozen):
        assert answer.results["nodes"] == expected["nodes"]
        np.testing.assert_allclose(answer.results["logits"], expected["logits"], rtol=1e-5, atol=1e-5)
