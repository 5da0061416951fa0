"""ZeRO of variables with fewer rows than there are ranks: they are dealt out, and some ranks have none of one."""

from typing import Any, Tuple

import numpy as np
import pytest

from tests.parity.checks import CONTINUED, continue_from_each_other, of_worker_0
from tests.parity.oracle import Oracle, compare
from tests.parity.scripts import accumulation, zero

Topology = Tuple[int, int]
IN_ONE, IN_BOTH, IN_EACH, OF_TWO = (1, 4), (2, 2), (4, 1), (1, 2)
long = pytest.mark.long


def _model(optimizer: str = "", **config: Any) -> str:
    """A model for an optimizer."""
    return "narrow" if optimizer == "trusting" else "narrow_embedding"


def _long(*values: Any) -> Any:
    return pytest.param(*values, marks=long)


@pytest.mark.parametrize(
    "topology,level,optimizer",
    [
        (IN_ONE, "v1", "adam"),
        (IN_BOTH, "v2", "momentum"),
        _long(IN_ONE, "v0", "adam"),
        _long(IN_ONE, "v2", "adam"),
        _long(IN_BOTH, "v0", "momentum"),
        _long(IN_BOTH, "v1", "adam"),
        _long(IN_EACH, "v0", "adam"),
        _long(IN_EACH, "v1", "momentum"),
        _long(IN_EACH, "v2", "adam"),
        _long(OF_TWO, "v1", "adam"),
        _long(IN_ONE, "v1", "trusting"),
        _long(IN_EACH, "v1", "trusting"),
        _long(IN_BOTH, "v0", "trusting"),
        _long(IN_ONE, "v2", "adagrad"),
        _long(IN_BOTH, "v1", "rmsprop"),
        _long(IN_ONE, "v1", "decayed_adam"),
    ],
    ids=str,
)
def test_training(oracle: Oracle, topology: Topology, level: str, optimizer: str) -> None:
    answers = oracle.check(topology, zero.train, name=_model(optimizer), optimizer=optimizer, zero__level=level)
    ranks = topology[0] * topology[1]
    slots = {"adam": 2, "momentum": 1}.get(optimizer)
    for answer in answers:
        held, users = answer.results["parts"][0]
        if slots is not None:
            assert held <= (slots + 1) * users * (1 / ranks + 0.05)


@pytest.mark.parametrize(
    "topology,level,again,other",
    [(IN_BOTH, "v1", "v2", IN_ONE), _long(IN_ONE, "v0", "v1", OF_TWO), _long(IN_EACH, "v1", "v0", OF_TWO)],
    ids=str,
)
def test_checkpoints_are_those_of_one_device(
    oracle: Oracle, topology: Topology, level: str, again: str, other: Topology
) -> None:
    """Each continues from the checkpoint of the other, under another level and on another number of ranks."""
    path, further = continue_from_each_other(
        oracle, topology, zero.saved, {"zero__level": level}, {"zero__level": again}, name="narrow_embedding"
    )
    planned = oracle.plan(other, zero.saved, path=path, name="narrow_embedding", zero__level="v1")
    compare(further, of_worker_0(planned), CONTINUED)


@long
@pytest.mark.parametrize("topology", [IN_ONE, IN_BOTH, IN_EACH], ids=str)
@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
def test_clipped_as_on_one_device(oracle: Oracle, topology: Topology, level: str) -> None:
    config = {"zero__level": level, "communication__clip_after_allreduce": True}
    norms = oracle.plain(zero.train, name="narrow_embedding", clip=0.1).results["norm"]
    for answer in oracle.check(topology, zero.train, name="narrow_embedding", clip=0.1, **config):
        np.testing.assert_allclose(answer.results["norm"], norms, rtol=1e-6)


@long
@pytest.mark.parametrize("topology", [IN_ONE, IN_BOTH, IN_EACH], ids=str)
@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
def test_accumulation(oracle: Oracle, topology: Topology, level: str) -> None:
    oracle.check(topology, accumulation.train, name="narrow_embedding", steps=3, tolerance=5e-6, zero__level=level)


@long
@pytest.mark.parametrize("topology", [IN_ONE, IN_BOTH, IN_EACH], ids=str)
@pytest.mark.parametrize(
    "level,config",
    [
        ("v0", {"optimizer": "trusting", "amp__level": "O1", "amp__loss_scale": "dynamic"}),
        ("v1", {"optimizer": "trusting", "amp__level": "O1", "amp__loss_scale": "dynamic"}),
        ("v2", {"amp__level": "O1", "amp__loss_scale": "dynamic"}),
        ("v0", {"optimizer": "ftrl"}),
        ("v1", {"optimizer__num_apply_group": 3, "clip": 0.1}),
        ("v1", {"optimizer": "momentum", "pipeline__num_micro_batch": 2, "communication__sparse_as_dense": True}),
        ("v2", {"optimizer": "trusting", "communication__max_splits": 1, "gradient_checkpoint__type": "auto"}),
        ("v1", {"average": True, "communication__max_splits": 100, "offload__level": "v0"}),
    ],
    ids=str,
)
def test_as_data_parallelism(oracle: Oracle, topology: Topology, level: str, config: dict) -> None:
    expected = oracle.plan(topology, zero.train, name=_model(**config), **config)[0].results["variables"][0]
    for answer in oracle.plan(topology, zero.train, name=_model(**config), zero__level=level, **config):
        for name, value in answer.results["variables"][0].items():
            scale = max(1e-3, float(np.max(np.abs(expected[name]))))
            np.testing.assert_allclose(value, expected[name], rtol=0.0, atol=2e-6 * scale, err_msg=name)


@long
@pytest.mark.parametrize("topology,level", [(IN_ONE, "v1"), (IN_BOTH, "v2"), (IN_EACH, "v0")], ids=str)
def test_what_is_fetched_beside_a_step_is_of_before_it(oracle: Oracle, topology: Topology, level: str) -> None:
    for answer in oracle.check(topology, zero.beside, name="narrow_embedding", zero__level=level):
        assert all(answer.results["same"])


@pytest.mark.parametrize("topology,level", [(IN_EACH, "v1"), _long(IN_BOTH, "v2"), _long(IN_ONE, "v1")], ids=str)
def test_workers_without_rows_of_what_is_saved(oracle: Oracle, topology: Topology, level: str) -> None:
    """Where a variable has no value, all of them say so; and it is saved whole."""
    answers = oracle.check(topology, zero.in_pieces, zero__level=level)
    assert {kind for answer in answers for kind in answer.results["errors"][0]} == {"FailedPreconditionError"}
    assert len(answers[0].results["same"]) > 1 and all(answers[0].results["same"])
