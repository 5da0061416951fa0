"""With ZeRO a model trains as on one device, while each rank holds a part of its state."""

from typing import Any, Dict, Tuple

import numpy as np
import pytest

from tests.parity.checks import CONTINUED, continue_from_each_other, of_worker_0
from tests.parity.oracle import Oracle, compare, topology_name
from tests.parity.scripts import accumulation, amp, zero

LEVELS = ["v0", "v1", "v2"]
Topology = Tuple[int, int]
some_topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)
every_level = pytest.mark.parametrize("level", LEVELS)
levels_of_gradients = pytest.mark.parametrize("level", LEVELS[1:])


@pytest.mark.parametrize(
    "topology,level",
    [
        ((1, 2), "v0"),
        ((2, 1), "v1"),
        ((2, 2), "v1"),
        ((2, 2), "v2"),
        pytest.param((1, 2), "v2", marks=pytest.mark.long),
        pytest.param((2, 1), "v2", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_adam(oracle: Oracle, topology: Topology, level: str) -> None:
    answers = oracle.check(topology, zero.train, name="layers", zero__level=level)
    ranks = topology[0] * topology[1]
    for answer in answers:
        held, users = answer.results["parts"][0]
        assert held <= 3 * users * (1 / ranks + 0.05)  # weights, and two slots of each


@pytest.mark.parametrize(
    "topology,config",
    [
        ((1, 2), {}),
        ((2, 1), {"gradient_checkpoint__type": "collection"}),
        pytest.param((1, 4), {"optimizer__num_apply_group": 3}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_weights_are_gathered_for_each_pass(oracle: Oracle, topology: Topology, config: dict) -> None:
    oracle.check(topology, zero.deep, zero__level="v2", **config)


@pytest.mark.parametrize("topology", [(1, 2), pytest.param((2, 2), marks=pytest.mark.long)], ids=str)
def test_two_trainings_beside_each_other(oracle: Oracle, topology: Topology) -> None:
    oracle.check(topology, zero.two_trainings, zero__level="v2", communication__max_splits=100)


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"gradient_checkpoint__type": "auto"},
        {"pipeline__num_micro_batch": 2},
        {"amp__level": "O1", "amp__loss_scale": "dynamic"},
    ],
    ids=str,
)
def test_when_weights_are_gathered_changes_no_bit(oracle: Oracle, config: dict) -> None:
    expected = oracle.plan((2, 2), zero.deep, zero__level="v1", **config)
    for answer, other in zip(oracle.plan((2, 2), zero.deep, zero__level="v2", **config), expected):
        np.testing.assert_array_equal(answer.results["loss"], other.results["loss"])
        for name, value in other.results["variables"][0].items():
            np.testing.assert_array_equal(answer.results["variables"][0][name], value, err_msg=name)


@pytest.mark.long
@levels_of_gradients
@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "rmsprop", "ftrl", "decayed_adam", "trusting"])
def test_optimizers(oracle: Oracle, level: str, optimizer: str) -> None:
    oracle.check((1, 2), zero.train, name="plain_variables", optimizer=optimizer, zero__level=level)


def test_an_update_rule_that_makes_sparse_gradients_dense(oracle: Oracle) -> None:
    oracle.check((1, 2), zero.train, name="embedding", optimizer="decayed_adam", zero__level="v1")


@pytest.mark.long
@every_level
@pytest.mark.parametrize(
    "name",
    [
        "embedding",
        "resource_embedding",
        "shared_embedding",
        "recurrent",
        "loop",
        "conditional",
        "keras_layers",
        "unused_and_frozen",
    ],
)
def test_models(oracle: Oracle, level: str, name: str) -> None:
    oracle.check((1, 2), zero.train, name=name, optimizer="momentum", zero__level=level)


@pytest.mark.parametrize("topology,level", [((1, 2), "v0"), ((2, 1), "v1"), ((1, 2), "v2")], ids=str)
def test_clipped_as_on_one_device(oracle: Oracle, topology: Topology, level: str) -> None:
    answers = oracle.check(
        topology, zero.train, name="embedding", clip=0.1, zero__level=level, communication__clip_after_allreduce=True
    )
    norms = oracle.plain(zero.train, name="embedding", clip=0.1).results["norm"]
    for answer in answers:
        np.testing.assert_allclose(answer.results["norm"], norms, rtol=1e-6)


@pytest.mark.long
@every_level
def test_moving_averages(oracle: Oracle, level: str) -> None:
    oracle.check((1, 2), zero.train, name="layers", average=True, zero__level=level)


@pytest.mark.parametrize("topology,level", [((1, 2), "v1"), ((2, 1), "v1"), ((1, 2), "v2")], ids=str)
def test_what_is_built_around_minimize(oracle: Oracle, topology: Topology, level: str) -> None:
    reference = oracle.plain(zero.around)
    answers = oracle.check(topology, zero.around, reference, zero__level=level)
    for answer in answers:
        for value, other in zip(answer.results["found"][0], reference.results["found"][0]):
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(answer.results["length"], reference.results["length"], rtol=1e-6)


@pytest.mark.parametrize(
    "topology,level",
    [
        ((2, 1), "v2"),
        pytest.param((2, 2), "v2", marks=pytest.mark.long),
        pytest.param((2, 2), "v0", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_what_is_fetched_beside_a_step_is_of_before_it(oracle: Oracle, topology: Topology, level: str) -> None:
    for answer in oracle.check(topology, zero.beside, zero__level=level):
        assert all(answer.results["same"])


@pytest.mark.parametrize(
    "topology,level",
    [
        ((2, 2), "v1"),
        pytest.param((2, 1), "v2", marks=pytest.mark.long),
        pytest.param((1, 3), "v0", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_averages_begin_with_the_weights_as_they_are(oracle: Oracle, topology: Topology, level: str) -> None:
    for answer in oracle.check(topology, zero.begun_again, zero__level=level):
        assert answer.results["same"] == [True]


@pytest.mark.long
@some_topologies
@every_level
def test_accumulation(oracle: Oracle, topology: Topology, level: str) -> None:
    oracle.check(topology, accumulation.train, name="embedding", steps=3, tolerance=5e-6, zero__level=level)


@pytest.mark.long
@levels_of_gradients
@pytest.mark.parametrize(
    "config",
    [
        {"optimizer__num_apply_group": 2},
        {"communication__fp16": False, "gradient_checkpoint__type": "auto"},
        {"communication__sparse_as_dense": True},
        {"communication__max_splits": 1},
    ],
    ids=str,
)
def test_together_with_other_features(oracle: Oracle, level: str, config: dict) -> None:
    oracle.check((1, 2), zero.train, name="embedding", optimizer="momentum", zero__level=level, **config)


@pytest.mark.long
@some_topologies
@levels_of_gradients
@pytest.mark.parametrize(
    "config",
    [
        {"name": "embedding", "optimizer": "momentum", "communication__gradients_reduce_method": "sum"},
        {"name": "resource", "optimizer": "trusting", "pipeline__num_micro_batch": 2},
        {"name": "plain_variables", "optimizer": "trusting", "amp__level": "O1", "amp__loss_scale": "dynamic"},
        {"name": "embedding", "clip": 0.1, "pipeline__num_micro_batch": 2, "communication__clip_after_allreduce": True},
    ],
    ids=str,
)
def test_as_data_parallelism(oracle: Oracle, topology: Topology, level: str, config: dict) -> None:
    expected = oracle.plan(topology, zero.train, **config)[0].results["variables"][0]
    for answer in oracle.plan(topology, zero.train, zero__level=level, **config):
        for name, value in answer.results["variables"][0].items():
            scale = max(1e-3, float(np.max(np.abs(expected[name]))))
            np.testing.assert_allclose(value, expected[name], rtol=0.0, atol=2e-6 * scale, err_msg=name)


@pytest.mark.parametrize(
    "topology,overflow,level,recomputed",
    [((1, 2), 3, "v1", ""), ((2, 1), -1, "v1", ""), ((1, 2), 3, "v2", ""), ((2, 1), 3, "v1", "auto")],
    ids=str,
)
def test_mixed_precision(oracle: Oracle, topology: Topology, overflow: int, level: str, recomputed: str) -> None:
    expected = oracle.plan((1, 1), amp.train, name="layers", parts=2, overflow_at=overflow)[0]
    config = {"zero__level": level, "gradient_checkpoint__type": recomputed}
    answers = oracle.plan(topology, amp.train, name="layers", overflow_at=overflow, **config)
    compare(expected, answers, 2e-6)


@pytest.mark.parametrize(
    "topology,name", [pytest.param((1, 2), "resource", marks=pytest.mark.long), ((2, 1), "embedding")], ids=str
)
@pytest.mark.parametrize("level", ["v1", pytest.param("v2", marks=pytest.mark.long)])
def test_checkpoints_are_those_of_one_device(oracle: Oracle, topology: Topology, name: str, level: str) -> None:
    """Each continues from the checkpoint of the other, under another level and on another number of ranks."""
    path, further = continue_from_each_other(
        oracle, topology, zero.saved, {"zero__level": level}, {"zero__level": "v0"}, name=name
    )
    planned = oracle.plan((1, 4), zero.saved, path=path, name=name, zero__level="v0")
    compare(further, of_worker_0(planned), CONTINUED)


@pytest.mark.parametrize("topology", [(2, 1), pytest.param((2, 2), marks=pytest.mark.long)], ids=topology_name)
def test_each_of_two_sessions_is_saved(oracle: Oracle, topology: Topology) -> None:
    assert oracle.plan(topology, zero.two_sessions, zero__level="v1")[0].results["same"] == [True] * 3


def test_the_next_init_ends_what_waits_for_checkpoints(oracle: Oracle) -> None:
    """It was kept until the script ended: three threads and a connection for each model."""
    answers = oracle.plan((2, 1), zero.three_models, zero__level="v1")
    assert [answer.results["threads"] for answer in answers] == [[0], [1]]


@pytest.mark.parametrize("level", ["", "v1"])
def test_what_a_graph_needs_ends_with_it(oracle: Oracle, level: str) -> None:
    """An Estimator that trains in rounds kept each round's graph, connections and threads until the script ended."""
    answers = oracle.plan((2, 1), zero.graphs_in_turn, zero__level=level)
    for answer in answers:
        (first, second, third) = answer.results["held"][0]
        assert answer.results["graphs"] == [0] and first == second == third > 0
    assert [answer.results["threads"] for answer in answers] == ([[0], [1]] if level else [[0], [0]])


@pytest.mark.parametrize("config,words", [({"zero__level": "v2", "offload__level": "v0"}, "offload.level")], ids=str)
def test_what_does_not_go_together_is_refused(oracle: Oracle, config: dict, words: str) -> None:
    (answer,) = oracle.failing_plan((1, 2), zero.train, name="layers", **config)
    assert answer.error is not None and "NotAvailableError" in answer.error and words in answer.error


def test_what_is_built_too_late_is_refused(oracle: Oracle) -> None:
    (answer,) = oracle.failing_plan((1, 2), zero.too_late, zero__level="v1")
    assert answer.error is not None and "PlanError" in answer.error
    assert "was built after the first Session.run. With zero.level" in answer.error


@levels_of_gradients
def test_what_is_taken_behind_the_update(oracle: Oracle, level: str) -> None:
    reference = oracle.plain(zero.after)
    (answer,) = oracle.check((1, 2), zero.after, reference, zero__level=level)
    for name in ("rows", "length"):
        np.testing.assert_allclose(answer.results[name], reference.results[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", ["v1", pytest.param("v2", marks=pytest.mark.long)])
def test_a_dense_and_a_sparse_gradient_of_one_variable(oracle: Oracle, level: str) -> None:
    oracle.check((1, 2), zero.two_kinds, zero__level=level)


def test_a_gradient_is_shown_as_in_data_parallelism(oracle: Oracle) -> None:
    expected = oracle.plain(zero.shown_gradient).results["gradient"]
    config = {"zero__level": "v1", "communication__clip_after_allreduce": True}
    (answer,) = oracle.plan((1, 2), zero.shown_gradient, **config)
    np.testing.assert_allclose(answer.results["gradient"], expected, rtol=1e-5, atol=1e-7)


def test_misuse_of_a_variable_in_parts_is_refused(oracle: Oracle) -> None:
    results = oracle.plan((1, 2), zero.misused, zero__level="v1")[0].results
    assert "FeedError" in results["feed"][0] and "is fed, and each of 2 devices has a part of it" in results["feed"][0]
    for late, loop in zip(results["late"][0], results["loop"][0]):
        assert "was built after the first Session.run. With zero.level" in late
        assert "of which each device has a part (zero.level), as something else than its value." in loop


@pytest.mark.parametrize("topology", [(1, 2), (2, 1), pytest.param((2, 2), marks=pytest.mark.long)], ids=topology_name)
@pytest.mark.parametrize("resource", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("plan", ["v1", pytest.param("v2", marks=pytest.mark.long), "split"])
def test_weights_are_loaded_after_the_first_run(oracle: Oracle, topology: Topology, resource: bool, plan: str) -> None:
    config: Dict[str, Any] = {"split": True, "cluster__colocate_split_and_replicate": True}
    config = config if plan == "split" else {"zero__level": plan}
    reference = oracle.plain(zero.loaded_late, resource=resource)
    (expected,) = reference.results["loaded"]
    for answer in oracle.check(topology, zero.loaded_late, reference, resource=resource, **config):
        assert answer.results["parts"] == [2]
        for value, one in zip(answer.results["loaded"][0], expected):
            np.testing.assert_array_equal(value, one)


def test_one_device_has_no_parts(oracle: Oracle) -> None:
    oracle.check((1, 1), zero.train, name="layers", zero__level="v1")


@pytest.mark.parametrize(
    "topology,level", [((4, 1), "v1"), pytest.param((2, 2), "v2", marks=pytest.mark.long)], ids=str
)
def test_variables_without_a_value_and_checkpoints_in_pieces(oracle: Oracle, topology: Topology, level: str) -> None:
    """Where a variable has no value, all workers say so; and it is saved whole."""
    answers = oracle.check(topology, zero.in_pieces, zero__level=level)
    assert {kind for answer in answers for kind in answer.results["errors"][0]} == {"FailedPreconditionError"}
    assert len(answers[0].results["same"]) > 1 and all(answers[0].results["same"])
