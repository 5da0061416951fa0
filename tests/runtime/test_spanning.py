"""Models whose stages lie in several workers compute what one device computes, however the session is driven.

One job runs many scripts, one after the other (`jobs/spanning_training.py`): what costs time is to start it.
"""

import os
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parity import fixtures
from tests.parity.oracle import Oracle, compare
from tests.parity.pool import Answer
from tests.parity.scripts import pipelines
from tests.parity.scripts.pipeline_models import STATISTICS, build, placeholders
from tests.runtime.spanning import (
    FOUR_WORKERS,
    Nursery,
    Ran,
    case,
    check_end_of_data,
    codes,
    once,
    outputs,
    run_workers,
    write_cases,
)
from tests.tensorflows import WITH_ESTIMATOR

pytestmark = pytest.mark.timeout(300)
oracle = fixtures.oracle  # found here by pytest


def pipeline(name: str, stages: int = 2, script: str = "train", micro_batches: int = 4, **arguments: Any) -> Any:
    """A model of tests/parity."""
    path = "tests.parity.scripts.pipelines." + script
    return case(path, name=name, stages=stages, micro_batches=micro_batches, **arguments)


def session(name: str, layout: Any = None, **arguments: Any) -> Any:
    """A script of spanning_sessions.py."""
    return case("tests.runtime.jobs.spanning_sessions." + name, layout=layout, **arguments)


# Cases that must equal one device that accumulates the micro batches of all replicas.
PARITY = {
    "mlp": pipeline("mlp"),
    "iterator": pipeline("cnn", script="read", surplus=1),
    "interleaved": pipeline("mlp", stages=4, interleaved=True),
    "chain": pipeline("mlp", stages=4, constructors=[0], schedule="PreferForward"),
    "no_micro_batches": pipeline("mlp", micro_batches=1, schedule="PreferBackwardOptimizer"),
    "automatic": session("automatic"),
}
SESSIONS = {
    "sparse": pipeline("embedding"),
    "begins": session("monitored", last_step=4),
    "goes_on": session("monitored", last_step=6),
    "saver": session("saver"),
    "graphs": session("graphs"),
    "ends": session("data_ends", micro_batches=[20, 13]),
    "of_the_script": session("of_the_script"),
    "begins_in_parts": session("monitored", last_step=4, directory="in_parts", zero__level="v0"),
    "goes_on_in_parts": session("monitored", last_step=6, directory="in_parts", zero__level="v1"),
}
if hasattr(tf, "estimator"):
    SESSIONS["estimator"] = session("estimator")
LARGE = {
    "clip": pipeline("mlp", clip=0.1),
    "cnn": pipeline("cnn", schedule="PreferForward"),
    "cnn_chain": pipeline("cnn", stages=4, constructors=[0], schedule="PreferForward"),
    "lstm": pipeline("lstm", rows_known=True),
    "encoder": pipeline("encoder", schedule="PreferBackwardOptimizer", resource=True),
    "encoder_chain": pipeline("encoder", micro_batches=2, stages=4, constructors=[0]),
    "lstm_chain": pipeline("lstm", stages=4, constructors=[0], rows_known=True),
    "clip_in_parts": pipeline("mlp", clip=0.1, zero__level="v0"),
    "encoder_in_parts": pipeline("encoder", zero__level="v1"),
}
LARGE_SESSIONS = {"graphs": session("graphs", zero__level="v1")}
ACROSS = {"constructors": [0], "devices": 2, "replicas": 2, "cluster__device_place_prefer_intra_node": False}
TWO_WORKERS = {
    "across": pipeline("cnn", **ACROSS),
    "offloaded": pipeline("mlp", offload__level="v0", **ACROSS),
    "in_parts": pipeline("mlp", zero__level="v1", **ACROSS),
    "one_each": pipeline("encoder", constructors=[0], micro_batches=1, resource=True),
}
THREE_WORKERS = {"three": pipeline("lstm", stages=3, constructors=[0], micro_batches=2, rows_known=True)}
# The stages are rows of two workers, so that others drive the model.
ROWS = {"rows": pipeline("mlp", constructors=[0, 1], layout={"aware_row": 2})}
# Two machines whose workers alternate in TF_CONFIG: the layout counts those of a machine together.
MACHINES = ["127.0.0.1", "127.0.0.2"] * 2
REORDERED = {"reordered": session("of_the_script", layout={"aware_row": 2})}


def _run_four(directory: str, cases: Dict[str, Any]) -> Ran:
    """Processes of their own, with different seeds of Python's hashes."""
    write_cases(cases, directory)
    return Ran(directory, cases, run_workers("spanning_training.py", [directory], directory, FOUR_WORKERS, 240.0))


def _run_few(directory: str) -> List[Ran]:
    jobs = []
    with Nursery() as nursery:
        plans = [(FOUR_WORKERS[:2], TWO_WORKERS), (FOUR_WORKERS[:3], THREE_WORKERS), (FOUR_WORKERS, ROWS)]
        for number, (machines, cases) in enumerate(plans + [(MACHINES, REORDERED)]):
            folder = os.path.join(directory, str(number))
            os.mkdir(folder)
            write_cases(cases, folder)
            finished = nursery.run("spanning_training.py", [folder], folder, machines)
            jobs.append(Ran(folder, cases, finished))
    return jobs


@pytest.fixture(scope="module")
def four(tmp_path_factory: Any) -> Ran:
    """Four workers."""
    return once(tmp_path_factory, "four", lambda path: _run_four(path, dict(PARITY, **SESSIONS)))


@pytest.fixture(scope="module")
def large(tmp_path_factory: Any) -> Ran:
    """Four workers that train larger models."""
    return once(tmp_path_factory, "large", lambda path: _run_four(path, dict(LARGE, **LARGE_SESSIONS)))


@pytest.fixture(scope="module")
def few(tmp_path_factory: Any) -> List[Ran]:
    """Two workers, three, and four in rows."""
    return once(tmp_path_factory, "few", _run_few)


def reference(oracle: Oracle, name: str, replicas: int = 2, micro_batches: int = 4, **arguments: Any) -> Answer:
    """One device."""
    shape = dict(arguments, micro_batches=micro_batches, replicas=replicas)
    return oracle.plain(pipelines.accumulated, name=name, **shape)


def _model(arguments: Dict[str, Any], constructors: Sequence[int]) -> Tuple[str, Dict[str, Any]]:
    """The reference of a case."""
    replicas = len(constructors) * arguments.get("replicas", 1)
    options = {key: arguments[key] for key in ("micro_batches", "clip") if key in arguments}
    return arguments.get("name", "mlp"), dict(options, replicas=replicas)


def check(oracle: Oracle, ran: Ran, name: str) -> None:
    arguments, constructors = ran.cases[name]["arguments"], ran.cases[name]["constructors"]
    model, options = _model(arguments, constructors)
    compare(reference(oracle, model, **options), ran.answers(name), own=[STATISTICS])


def test_all_workers_end_with_code_0(four: Ran, few: List[Ran]) -> None:
    for ran in [four] + few:
        assert set(codes(ran.workers)) == {0}, outputs(ran.workers)


@pytest.mark.parametrize("name", sorted(PARITY))
def test_stages_in_several_workers_compute_what_one_device_computes(oracle: Oracle, four: Ran, name: str) -> None:
    check(oracle, four, name)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(LARGE))
def test_larger_models(oracle: Oracle, large: Ran, name: str) -> None:
    check(oracle, large, name)


@pytest.mark.parametrize("name", sorted(TWO_WORKERS))
def test_two_workers(oracle: Oracle, few: List[Ran], name: str) -> None:
    check(oracle, few[0], name)


def test_three_stages_on_three_workers(oracle: Oracle, few: List[Ran]) -> None:
    check(oracle, few[1], "three")


def test_rows_of_workers(oracle: Oracle, few: List[Ran]) -> None:
    check(oracle, few[2], "rows")


def test_a_worker_that_is_counted_anew_drives_its_own_server(few: List[Ran]) -> None:
    for worker in (0, 2):
        recorded = few[3].recorded("reordered", worker)
        assert recorded["pid"] == recorded["own"]


def test_sparse_gradients_stay_sparse(oracle: Oracle, four: Ran) -> None:
    """Momentum leaves rows alone that no sparse gradient names: a dense gradient would move them."""
    expected = oracle.plain(pipelines.train, name="embedding", stages=2, micro_batches=4)
    compare(expected, four.answers("sparse"), own=[STATISTICS])


def mean_losses(ran: Ran, name: str, key: str = "loss") -> np.ndarray:
    return np.mean([answer.results[key] for answer in ran.answers(name)], axis=0)


@pytest.mark.parametrize("names", [("begins", "goes_on"), ("begins_in_parts", "goes_on_in_parts")], ids=str)
def test_monitored_sessions_begin_and_go_on_from_a_checkpoint(oracle: Oracle, four: Ran, names: Any) -> None:
    losses = np.concatenate([mean_losses(four, name) for name in names])
    np.testing.assert_allclose(losses, reference(oracle, "mlp").results["loss"], rtol=1e-5)
    assert [four.recorded(name, 2)["step"] for name in names] == [[0, 1, 2, 3], [4, 5]]


def test_worker_0_alone_writes(four: Ran) -> None:
    names = os.listdir(os.path.join(four.directory, "monitored"))
    assert sum(name.startswith("events.") for name in names) == 1
    steps = {name for name in names if name.endswith(".index")}
    assert steps == {"model.ckpt-%d.index" % step for step in (0, 2, 4, 6)}


def test_summaries_of_every_step_are_written(four: Ran) -> None:
    directory = os.path.join(four.directory, "monitored")
    values = {
        event.step: value.simple_value
        for name in sorted(os.listdir(directory))
        if name.startswith("events.")
        for event in tf.train.summary_iterator(os.path.join(directory, name))
        for value in event.summary.value
        if value.tag == "loss"
    }
    expected = np.concatenate([four.recorded(name, 0)["loss"] for name in ("begins", "goes_on")])
    np.testing.assert_allclose([values[step] for step in sorted(values)], expected, rtol=1e-6)


@pytest.mark.parametrize("directory", ["monitored", "in_parts"])
def test_a_checkpoint_loads_into_the_model_of_one_device(oracle: Oracle, four: Ran, directory: str) -> None:
    expected = reference(oracle, "mlp").results["variables"][0]
    with tf.Graph().as_default(), tf.Session() as sess:
        with tf.variable_scope("net"):
            loss = build("mlp", placeholders())
        tf.train.AdamOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
        tf.train.Saver().restore(sess, os.path.join(four.directory, directory, "model.ckpt-6"))
        values = {variable.op.name: sess.run(variable) for variable in tf.global_variables()}
    assert sorted(values) == sorted(expected)
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)


def test_saved_and_restored_training_repeats_itself(oracle: Oracle, four: Ran) -> None:
    losses = reference(oracle, "mlp").results["loss"]
    for key, expected in (("first", losses[:3]), ("second", losses[3:]), ("third", losses[3:])):
        np.testing.assert_allclose(mean_losses(four, "saver", key)[0], expected, rtol=1e-5)


def check_graphs(oracle: Oracle, ran: Ran) -> None:
    expected = reference(oracle, "mlp").results["loss"]
    for key in ("loss0", "loss1"):
        np.testing.assert_allclose(mean_losses(ran, "graphs", key), expected, rtol=1e-5)


@pytest.mark.long
def test_graphs_with_weights_in_parts_are_trained_one_after_the_other(oracle: Oracle, large: Ran) -> None:
    check_graphs(oracle, large)


def test_sessions_of_one_graph_have_values_of_their_own(four: Ran) -> None:
    for worker in (0, 2):
        recorded = four.recorded("saver", worker)
        assert recorded["other"] == recorded["first"]


def test_graphs_are_trained_one_after_the_other(oracle: Oracle, four: Ran) -> None:
    check_graphs(oracle, four)


def test_a_graph_without_gradients_predicts_in_the_constructor(four: Ran) -> None:
    for worker in (0, 2):
        evaluated = four.recorded("graphs", worker)["evaluated"]
        np.testing.assert_allclose(evaluated, four.recorded("saver", worker)["evaluated"], rtol=1e-5)


def test_the_end_of_data_of_one_constructor_ends_the_step_of_all(oracle: Oracle, four: Ran) -> None:
    losses = reference(oracle, "mlp").results["loss"][:3]  # 13 micro batches of 4 in a step
    check_end_of_data(four.answers("ends"), losses)


def test_python_functions_and_files_are_those_of_the_script(four: Ran) -> None:
    for worker in (0, 2):
        recorded = four.recorded("of_the_script", worker)
        assert recorded["pid"] == recorded["read"] == recorded["own"]
        tasks = ["/task:%d" % place in name for place, name in zip([worker] * 3 + [worker + 1], recorded["devices"][0])]
        assert all(tasks), recorded["devices"]
        assert recorded["tags"] == [["loss", "hidden"]]


@WITH_ESTIMATOR
def test_estimator_trains_then_worker_0_evaluates_and_predicts(four: Ran) -> None:
    assert four.recorded("estimator", 2)["wrote"] == [["checkpoint"]]  # which names that of worker 0
    recorded = four.recorded("estimator", 0)
    assert recorded["evaluated"][0]["global_step"] == 6 and np.isfinite(recorded["evaluated"][0]["loss"])
    assert recorded["predicted"][0].shape == (5,)
    assert {"net/first/kernel", "net/out/kernel", "net/out/kernel/Adam"} <= set(recorded["variables"][0])


def test_automatic_stages_lie_on_different_workers(four: Ran) -> None:
    devices = four.recorded("automatic", 2)["devices"][0]
    assert [name.split("/")[1:4] for name in devices] == [
        ["job:chief", "replica:0", "task:2"],
        ["job:worker", "replica:0", "task:3"],
    ]
