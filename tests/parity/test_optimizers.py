"""What users do between the loss and the variables has the same effect under a plan."""

from typing import Any, Dict, Tuple

import numpy as np
import pytest

from epl.utils import tf_compat
from tests.parity.context import Context
from tests.parity.oracle import Oracle, compare, every_topology, replica_differences, topology_name
from tests.parity.scripts import models, optimizers

_CLIPS_ITS_OWN = "Each replica does so with its own gradients, before they are averaged"
some_topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize(
    "script",
    [
        optimizers.two_optimizers,
        optimizers.split_gradients,
        optimizers.alternating,
        optimizers.user_written,
        optimizers.user_written_clipped,
        optimizers.averaged_and_decayed,
        optimizers.gradient_penalty,
        optimizers.processed_gradients,
        optimizers.keras_model,
    ],
)
def test_as_on_one_device(oracle: Oracle, topology: Tuple[int, int], script: Any) -> None:
    oracle.check(topology, script)


@every_topology
def test_clip_after_all_reduce_equals_one_device(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = oracle.check(topology, optimizers.clipped, after=True)
    norms = oracle.plain(optimizers.clipped, after=True).results["norm"]
    for answer in answers:
        np.testing.assert_allclose(answer.results["norm"], norms, rtol=1e-6)
        assert _CLIPS_ITS_OWN not in answer.log


@every_topology
def test_by_default_each_replica_clips_its_own_and_a_warning_says_so(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.by_hand(topology, optimizers.clipped, after=False)
    answers = oracle.check(topology, optimizers.clipped, reference, told="global_norm", after=False)
    assert _CLIPS_ITS_OWN in answers[0].log and "communication.clip_after_allreduce" in answers[0].log


def test_the_two_ways_of_clipping_differ(oracle: Oracle) -> None:
    """The oracle itself: it can tell one from the other."""
    reference = oracle.plain(optimizers.clipped, after=True)
    with pytest.raises(AssertionError, match="table differs"):
        compare(reference, [oracle.by_hand((1, 2), optimizers.clipped, after=False)])


@every_topology
@pytest.mark.parametrize("name", ["layers", "embedding"])
def test_sum_instead_of_mean(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    replicas = topology[0] * topology[1]
    oracle.check(topology, optimizers.summed, name=name, factor=float(replicas))


@some_topologies
@pytest.mark.parametrize("name", ["embedding", "shared_embedding"])
def test_sparse_as_dense(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    reference = oracle.plain(models.train, name=name, optimizer="momentum")
    oracle.check(
        topology, models.train, reference, name=name, optimizer="momentum", communication__sparse_as_dense=True
    )


@pytest.mark.parametrize("topology", [(1, 2), (2, 2), pytest.param((1, 4), marks=pytest.mark.long)], ids=topology_name)
@pytest.mark.parametrize("name", ["embedding", "resource_embedding"])
def test_ordered_sparse_sums_keep_replicas_equal(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    """An optimizer that adds rows in any order gives each replica other bits, unless each index comes once."""
    settings = {"name": name, "optimizer": "any_order"}
    assert replica_differences(
        oracle.plan(topology, models.train, communication__ordered_sparse_sums="off", **settings)
    )
    oracle.check(topology, models.train, communication__ordered_sparse_sums="on", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam"},
        {"optimizer": "adam", "zero__level": "v1"},
        {"optimizer": "momentum", "optimizer__num_apply_group": 2},
    ],
    ids=str,
)
def test_ordered_sparse_sums_with_other_features(oracle: Oracle, settings: Dict[str, Any]) -> None:
    for name in ("embedding", "shared_embedding"):
        reference = oracle.plain(models.train, name=name, optimizer=settings["optimizer"])
        oracle.check((2, 2), models.train, reference, name=name, communication__ordered_sparse_sums="on", **settings)


def _train_where_rows_have_no_order(ctx: Context, clips: bool, **config: Any) -> None:
    ordered = tf_compat.CPU_ADDS_ROWS_IN_ORDER
    tf_compat.CPU_ADDS_ROWS_IN_ORDER = False
    try:
        if clips:
            optimizers.clipped(ctx, after=True, **config)
        else:
            models.train(ctx, "embedding", "any_order", **config)
    finally:
        tf_compat.CPU_ADDS_ROWS_IN_ORDER = ordered


@pytest.mark.parametrize(
    "clips, config, told",
    [
        (False, {}, ""),
        (False, {"communication__ordered_sparse_sums": "off"}, 'communication.ordered_sparse_sums is "off"'),
        (True, {}, "other ops than the optimizer take these gradients"),
    ],
    ids=["auto", "off", "clipped"],
)
def test_replicas_that_drift_are_told(oracle: Oracle, clips: bool, config: Dict[str, Any], told: str) -> None:
    answers = oracle.plan((1, 2), _train_where_rows_have_no_order, clips=clips, **config)
    assert ("so that the replicas of table differ in their last bits" in answers[0].log) == bool(told)
    assert told in answers[0].log
    if not clips:
        assert bool(replica_differences(answers)) == bool(told)


def test_ordered_sparse_sums_leave_the_norm_of_rows_alone(oracle: Oracle) -> None:
    """TensorFlow's norm of a sparse gradient counts rows with equal indices one by one."""
    reference = oracle.plain(optimizers.clipped, after=True)
    oracle.check((2, 2), optimizers.clipped, reference, after=True, communication__ordered_sparse_sums="on")


@pytest.mark.parametrize("splits,communicators", [(1, 1), (3, 2), (50, 4)])
def test_fusion_changes_nothing(oracle: Oracle, splits: int, communicators: int) -> None:
    reference = oracle.plain(models.train, name="recurrent", optimizer="adam")
    oracle.check(
        (2, 2),
        models.train,
        reference,
        name="recurrent",
        optimizer="adam",
        communication__max_splits=splits,
        communication__num_communicators=communicators,
    )


@every_topology
def test_fp16_on_the_wire(oracle: Oracle, topology: Tuple[int, int]) -> None:
    """A half-precision number has 11 bits: each gradient is right to 2^-11; sums that nearly cancel, to less."""
    reference = oracle.plain(models.train, name="layers", optimizer="sgd")
    answers = oracle.check(
        topology,
        models.train,
        reference,
        tolerance=2**-9,
        name="layers",
        optimizer="sgd",
        communication__fp16=True,
        communication__fp16_scale=64,
    )
    exact = oracle.plan(topology, models.train, name="layers", optimizer="sgd")
    kernel = answers[0].results["variables"][0]["out/kernel"]
    assert not np.array_equal(kernel, exact[0].results["variables"][0]["out/kernel"])


@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)
def test_bfloat16_gradients(oracle: Oracle, topology: Tuple[int, int]) -> None:
    """The mean of two gradients is rounded once, as TensorFlow does it."""
    expected = oracle.by_hand(topology, models.train_bfloat16).results["values"][0]
    for answer in oracle.plan(topology, models.train_bfloat16):
        for seen, wanted in zip(answer.results["values"][0], expected):
            assert np.any(wanted)
            np.testing.assert_array_equal(seen, wanted)


def test_fp16_scale_lifts_small_gradients(oracle: Oracle) -> None:
    """Gradients below the smallest half-precision number survive when they are scaled, and vanish when not."""
    reference = oracle.plain(models.train_scaled, factor=1e-8)
    oracle.check(
        (1, 2),
        models.train_scaled,
        reference,
        tolerance=2**-9,
        factor=1e-8,
        communication__fp16=True,
        communication__fp16_scale=2**16,
    )
    answers = oracle.plan(
        (1, 2), models.train_scaled, factor=1e-8, communication__fp16=True, communication__fp16_scale=1
    )
    assert answers[0].results["variables"][0]["kernel"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.grid
@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"sparse": True},
        {"communication__gradients_reduce_method": "sum", "rate": 0.5},
        {"zero__level": "v1"},
        {"zero__level": "v1", "communication__gradients_reduce_method": "sum", "rate": 0.5},
        {"optimizer__num_apply_group": 2},
    ],
    ids=str,
)
def test_fp16_does_not_overflow(oracle: Oracle, topology: Tuple[int, int], config: dict) -> None:
    """Gradients that are too large for a half-precision number when they are scaled travel with a smaller scale."""
    reference = oracle.plain(models.train_scaled, factor=1e6, sparse=config.get("sparse", False))
    oracle.check(
        topology,
        models.train_scaled,
        reference,
        tolerance=2**-9,
        factor=1e6,
        communication__fp16=True,
        **config,
    )
