"""However training is driven, it computes, saves and reports what one device does."""

import os
from typing import Any, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parity.oracle import Oracle, compare_with_noise, every_topology, replica_differences, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import sessions
from tests.tensorflows import WITH_ESTIMATOR

some_topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)


def _last_steps(answer: Answer, steps: int) -> Answer:
    return answer._replace(results=dict(answer.results, loss=answer.results["loss"][-steps:]))


@every_topology
def test_monitored_training_session_with_hooks(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.plain(sessions.monitored)
    answers = oracle.check(topology, sessions.monitored)
    expected, seen = reference.results, answers[0].results
    for tag in ("mean_loss", "constant"):
        np.testing.assert_allclose(seen["events"][0][tag], expected["events"][0][tag], rtol=1e-6)
    np.testing.assert_allclose(seen["logged"][0], expected["logged"][0], rtol=1e-6)
    assert len(seen["events"][0]["global_step/sec"]) == len(expected["events"][0]["global_step/sec"])
    assert seen["saved"] == expected["saved"]
    assert os.path.basename(seen["checkpoint"][0]) == os.path.basename(expected["checkpoint"][0])


def test_only_the_first_process_writes_checkpoints(oracle: Oracle) -> None:
    answers = oracle.plan((2, 1), sessions.monitored)
    assert answers[0].results["checkpoint"][0]
    assert answers[1].results["checkpoint"] == answers[0].results["checkpoint"]


@every_topology
def test_stop_at_step(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.plain(sessions.stopped, last_step=5)
    answers = oracle.check(topology, sessions.stopped, last_step=5)
    expected = [name for name in reference.results["files"][0] if not name.startswith("events")]
    seen = [name for name in answers[0].results["files"][0] if not name.startswith("events")]
    assert seen == expected
    assert all(len(answer.results["loss"]) == 5 for answer in answers)


@pytest.mark.grid
@every_topology
@pytest.mark.parametrize("default_strategy", [False, True])
@WITH_ESTIMATOR
def test_estimator(oracle: Oracle, topology: Tuple[int, int], default_strategy: bool) -> None:
    reference = oracle.plain(sessions.estimator, default_strategy=default_strategy)
    answers = oracle.check(topology, sessions.estimator, default_strategy=default_strategy)
    assert answers[0].results["saved"] == reference.results["saved"]
    assert {answer.results["checkpoint"][0] for answer in answers} == {answers[0].results["checkpoint"][0]}


@pytest.mark.grid
@some_topologies
@pytest.mark.parametrize("default_strategy", [False, True])
@WITH_ESTIMATOR
def test_estimator_continues_from_its_checkpoint(
    oracle: Oracle, topology: Tuple[int, int], default_strategy: bool
) -> None:
    oracle.check(topology, sessions.estimator_twice, default_strategy=default_strategy)


@some_topologies
def test_supervisor(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, sessions.supervisor)


@pytest.mark.grid
@every_topology
@pytest.mark.parametrize("name", ["embedding", "resource"])
def test_checkpoints_are_interchangeable(oracle: Oracle, topology: Tuple[int, int], name: str, tmp_path: Any) -> None:
    plain_path, plan_path = str(tmp_path / "plain" / "model"), str(tmp_path / "plan" / "model")
    whole = oracle.plain(sessions.save_or_resume, save="", resume="", steps=(0, 6), name=name)
    oracle.plain(sessions.save_or_resume, save=plain_path, resume="", steps=(0, 1), name=name)
    oracle.plan(topology, sessions.save_or_resume, save=plan_path, resume="", steps=(0, 1), name=name)
    assert sorted(tf.train.list_variables(plain_path)) == sorted(tf.train.list_variables(plan_path))
    after_plan = oracle.plain(sessions.save_or_resume, save="", resume=plan_path, steps=(1, 6), name=name)
    after_plain = oracle.plan(topology, sessions.save_or_resume, save="", resume=plain_path, steps=(1, 6), name=name)
    for answers in ([after_plan], after_plain):
        compare_with_noise(
            _last_steps(whole, 5),
            answers,
            lambda: oracle.by_hand(topology, sessions.save_or_resume, save="", resume="", steps=(0, 6), name=name),
        )


@pytest.mark.parametrize("topology", [(2, 1), (2, 2)], ids=topology_name)
def test_restored_values_reach_processes_without_the_checkpoint(
    oracle: Oracle, topology: Tuple[int, int], tmp_path: Any
) -> None:
    oracle.plain(sessions.write_checkpoint, path=str(tmp_path / "model.ckpt-0"), factor=0.5)
    oracle.check(topology, sessions.resume_monitored, directory=str(tmp_path))


@every_topology
def test_summaries_of_a_file_writer(oracle: Oracle, topology: Tuple[int, int]) -> None:
    reference = oracle.plain(sessions.file_writer)
    answers = oracle.check(topology, sessions.file_writer)
    for answer in answers:
        for tag, values in reference.results["events"][0].items():
            np.testing.assert_allclose(answer.results["events"][0][tag], values, rtol=1e-5, err_msg=tag)


@pytest.mark.grid
@every_topology
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("session", ["plain", "monitored"])
def test_initial_values_are_those_of_the_first_process(
    oracle: Oracle, topology: Tuple[int, int], resource: bool, session: str
) -> None:
    reference = oracle.plain(sessions.different_seeds, resource=resource, session=session, unseeded=False)
    answers = oracle.check(topology, sessions.different_seeds, resource=resource, session=session, unseeded=False)
    if session == "plain" and topology[0] > 1:
        # The first process's values stand; what the second drew for itself does not.
        assert np.array_equal(answers[0].results["initial"][0], reference.results["initial"][0])


@some_topologies
def test_initial_values_without_seeds_are_equal_everywhere(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = oracle.plan(topology, sessions.different_seeds, resource=False, session="monitored", unseeded=True)
    assert not replica_differences(answers)
