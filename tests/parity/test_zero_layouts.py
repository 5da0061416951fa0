"""ZeRO where a model is on more than one device for each replica: the variables of each stage are in parts."""

from typing import Any

import numpy as np
import pytest

from tests.parity.checks import continue_from_each_other
from tests.parity.oracle import Oracle, compare
from tests.parity.pool import Answer
from tests.parity.scripts import accumulation, amp, pipelines, splits, zero, zero_layouts
from tests.parity.scripts.pipeline_models import STATISTICS

# Two stages of two replicas: in one process, and a replica in each of two. Stages in several processes: see
# tests/runtime/test_spanning.py.
IN_ONE, IN_TWO = (1, 4), (2, 2)
SHAPES = {
    IN_ONE: {"stages": 2, "replicas": 2, "micro_batches": 4},
    IN_TWO: {"stages": 2, "replicas": 1, "micro_batches": 4},
}
CLIP = 0.5
long = pytest.mark.long
layouts = pytest.mark.parametrize("topology", [IN_ONE, IN_TWO], ids=str)


def _reference(oracle: Oracle, **model: Any) -> Answer:
    """One device that accumulates."""
    return oracle.plain(pipelines.accumulated, micro_batches=4, replicas=2, **model)


@pytest.mark.parametrize("topology,level,optimizer", [(IN_ONE, "v0", "adam"), (IN_TWO, "v1", "momentum")], ids=str)
def test_pipelines(oracle: Oracle, topology: Any, level: str, optimizer: str) -> None:
    model = {"name": "mlp", "optimizer": optimizer}
    oracle.check(topology, pipelines.train, _reference(oracle, **model), zero__level=level, **model, **SHAPES[topology])


@long
@pytest.mark.parametrize(
    "topology,level,name,config",
    [
        (IN_ONE, "v1", "mlp", {"schedule": "PreferForward"}),
        (IN_ONE, "v1", "cnn", {"resource": True}),
        (IN_TWO, "v1", "cnn", {"schedule": "PreferBackwardOptimizer"}),
        (IN_TWO, "v0", "lstm", {"rows_known": True}),
        (IN_ONE, "v1", "encoder", {"resource": True}),
    ],
    ids=str,
)
def test_models_in_pipelines(oracle: Oracle, topology: Any, level: str, name: str, config: Any) -> None:
    shape = dict(SHAPES[topology], **config)
    reference = _reference(oracle, name=name)
    oracle.check(topology, pipelines.train, reference, own=[STATISTICS], zero__level=level, name=name, **shape)


@long
@layouts
@pytest.mark.parametrize("resource", [False, True])
def test_sparse_gradients_in_pipelines(oracle: Oracle, topology: Any, resource: bool) -> None:
    shape = dict(SHAPES[topology], name="embedding", resource=resource)
    oracle.check(topology, pipelines.train, oracle.plain(pipelines.train, **shape), zero__level="v1", **shape)


@pytest.mark.parametrize("topology,level", [(IN_ONE, "v1"), pytest.param(IN_TWO, "v0", marks=long)], ids=str)
def test_clipping_after_the_all_reduce_in_pipelines(oracle: Oracle, topology: Any, level: str) -> None:
    model = {"name": "mlp", "stages": 2, "clip": CLIP, "optimizer": "momentum"}
    config = dict(SHAPES[topology], communication__clip_after_allreduce=True, zero__level=level)
    oracle.check(topology, pipelines.train, oracle.plain(pipelines.train, **model), **dict(model, **config))


@long
@layouts
def test_each_replica_of_a_pipeline_clips_its_own_gradients(oracle: Oracle, topology: Any) -> None:
    model = {"name": "mlp", "clip": 0.9, "optimizer": "momentum"}
    config = dict(SHAPES[topology], zero__level="v1")
    oracle.check(topology, pipelines.train, _reference(oracle, **model), **dict(model, **config))


@long
@layouts
@pytest.mark.parametrize(
    "config",
    [
        {"optimizer__num_apply_group": 2},
        {"gradient_checkpoint__type": "auto"},
        {"communication__max_splits": 1},
        {"amp__level": "O1", "amp__loss_scale": "dynamic", "name": "mlp"},
        {"interleaved": True, "stages": 4},
    ],
    ids=str,
)
def test_as_a_pipeline_without(oracle: Oracle, topology: Any, config: Any) -> None:
    """Weights and state are those of the same plan without ZeRO."""
    shape = dict(dict(SHAPES[topology], name="mlp", optimizer="momentum"), **config)
    without = oracle.plan(topology, pipelines.train, **shape)
    losses = list(np.mean([answer.results["loss"] for answer in without], axis=0))
    expected = without[0]._replace(results=dict(without[0].results, loss=losses))
    compare(expected, oracle.plan(topology, pipelines.train, zero__level="v1", **shape), 2e-6)


@pytest.mark.parametrize("topology", [pytest.param(IN_ONE, marks=long), IN_TWO], ids=str)
def test_what_is_computed_beside_a_pipeline(oracle: Oracle, topology: Any) -> None:
    reference = oracle.plain(zero_layouts.beside, name="mlp", stages=2)
    shape = dict(SHAPES[topology], name="mlp")
    for answer in oracle.check(topology, zero_layouts.beside, reference, zero__level="v1", **shape):
        np.testing.assert_allclose(answer.results["found"], reference.results["found"], rtol=1e-5)


@pytest.mark.parametrize("topology", [pytest.param(IN_ONE, marks=long), IN_TWO], ids=str)
def test_checkpoints_of_pipelines_are_those_of_one_device(oracle: Oracle, topology: Any) -> None:
    plan, again = [dict(SHAPES[topology], zero__level=level) for level in ("v1", "v0")]
    continue_from_each_other(oracle, topology, zero_layouts.saved, plan, again, stages=2)


@pytest.mark.parametrize(
    "topology,level,optimizer", [((1, 2), "v1", "adam"), pytest.param((2, 1), "v0", "momentum", marks=long)], ids=str
)
def test_parts_in_host_memory(oracle: Oracle, topology: Any, level: str, optimizer: str) -> None:
    config = {"zero__level": level, "offload__level": "v0"}
    for answer in oracle.check(topology, zero_layouts.offloaded, name="layers", optimizer=optimizer, **config):
        assert answer.results["wholes"][0] == ["/device:CPU:0"] and answer.results["copies"][0] > 0


@long
@pytest.mark.parametrize(
    "topology,script,arguments",
    [
        ((1, 2), zero.train, {"name": "embedding", "optimizer": "momentum", "clip": 0.1}),
        ((1, 2), zero.train, {"name": "resource_embedding", "optimizer": "momentum"}),
        ((1, 3), zero.train, {"name": "keras_layers"}),
        ((2, 1), zero.train, {"name": "recurrent", "optimizer": "momentum"}),
        ((1, 2), accumulation.train, {"name": "embedding", "steps": 3}),
        ((1, 2), amp.train, {"name": "layers", "overflow_at": 3}),
        ((2, 1), zero.train, {"name": "layers", "optimizer__num_apply_group": 2, "gradient_checkpoint__type": "auto"}),
        (IN_ONE, pipelines.train, dict(SHAPES[IN_ONE], name="embedding", resource=True)),
        (IN_TWO, pipelines.train, dict(SHAPES[IN_TWO], name="mlp", optimizer="adam")),
    ],
    ids=lambda value: value.__module__ if callable(value) else str(value),
)
def test_in_host_memory_as_on_devices(oracle: Oracle, topology: Any, script: Any, arguments: Any) -> None:
    expected = oracle.plan(topology, script, zero__level="v1", **arguments)
    found = oracle.plan(topology, script, zero__level="v1", offload__level="v0", **arguments)
    for one, other in zip(expected, found):
        np.testing.assert_allclose(other.results["loss"], one.results["loss"], rtol=1e-6)
        for name, value in one.results["variables"][0].items():
            np.testing.assert_allclose(other.results["variables"][0][name], value, rtol=1e-5, atol=1e-7, err_msg=name)


@long
def test_checkpoints_of_parts_in_host_memory(oracle: Oracle) -> None:
    plan = {"zero__level": "v1", "offload__level": "v0"}
    continue_from_each_other(oracle, (2, 1), zero.saved, plan, name="embedding")


@pytest.mark.parametrize(
    "topology,level,arguments",
    [
        ((1, 2), "v1", {"name": "head", "optimizer": "adam"}),
        ((2, 2), "v0", {"name": "head", "optimizer": "momentum", "groups": 2}),
        pytest.param((1, 4), "v1", {"name": "loss_outside", "optimizer": "layerwise", "groups": 2}, marks=long),
        pytest.param((1, 3), "v1", {"name": "head", "optimizer": "layerwise"}, marks=long),
        pytest.param((2, 1), "v1", {"name": "small_table", "optimizer": "momentum", "clip": 0.1}, marks=long),
        pytest.param((2, 1), "v1", {"name": "encoder", "optimizer": "momentum"}, marks=long),
        pytest.param((1, 2), "v1", {"name": "resource_head", "offload__level": "v0"}, marks=long),
        pytest.param((1, 2), "v0", {"name": "tied", "optimizer__num_apply_group": 3}, marks=long),
    ],
    ids=str,
)
def test_around_a_split(oracle: Oracle, topology: Any, level: str, arguments: Any) -> None:
    oracle.check(topology, splits.train, zero__level=level, **arguments)


@long
def test_accumulation_around_a_split(oracle: Oracle) -> None:
    oracle.check((1, 2), splits.accumulated, name="head", steps=3, tolerance=5e-6, zero__level="v1")


@pytest.mark.parametrize("topology,groups", [pytest.param((1, 2), 1, marks=long), ((2, 1), 1)], ids=str)
def test_checkpoints_of_a_split_and_what_is_around_it(oracle: Oracle, topology: Any, groups: int) -> None:
    plan, again = [{"groups": groups, "zero__level": level} for level in ("v1", "v0")]
    continue_from_each_other(oracle, topology, splits.saved, plan, again)
