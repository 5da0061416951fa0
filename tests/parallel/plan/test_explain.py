"""The line at the first run: what it says, who says it, and how it is switched."""

import logging

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.parallel.plan import explain
from epl.parallel.plan.sections import SplitSection
from epl.profiler import explanation_report
from epl.profiler.memory_estimate import memory_estimate
from tests.parallel.in_process import Linear
from tests.parallel.plan.test_plan import example

LINE = "EPL: 2 replicas = 1 worker x 2 devices (CPU), 1 stage, gradients averaged in 1 bucket"
HINT = "; EPL_EXPLAIN=1 for the plan"


@pytest.fixture
def trained(init, capfd, monkeypatch):
    """Returns a function that trains on two devices and gives the lines of EPL on standard error."""
    monkeypatch.delenv("EPL_EXPLAIN", raising=False)
    before = logging.getLogger("epl").level

    def train(before=lambda model: None):
        init(2)
        model = Linear()
        model.minimize()
        before(model)
        for _ in range(2):
            with tf.Session() as sess:
                sess.run(tf.global_variables_initializer())
                for _ in range(2):
                    sess.run(model.train_op, model.feed())
        lines = capfd.readouterr().err.splitlines()
        return lines[next((i for i, line in enumerate(lines) if line.startswith("EPL: ")), len(lines)) :]

    yield train
    logging.getLogger("epl").setLevel(before)


def test_one_line_says_what_a_graph_becomes(trained):
    assert trained() == [LINE + HINT]


def test_the_tables_follow_on_request(trained, monkeypatch):
    monkeypatch.setenv("EPL_EXPLAIN", "1")
    lines = trained()
    assert lines[0] == LINE and lines[2].startswith("TaskGraphs") and sum(line == LINE for line in lines) == 1
    assert "  apply0: 1 gradients (0 sparse) in 1 transfer(s)" in lines


def test_tables_that_the_script_printed_do_not_follow(trained, monkeypatch, capfd):
    monkeypatch.setenv("EPL_EXPLAIN", "1")
    printed = []

    def explain(model):
        epl.explain(model.train_op)
        printed.extend(capfd.readouterr())

    assert trained(explain) == []
    assert printed[0].count("TaskGraphs") == 1 and "TaskGraphs" not in printed[1]


def test_the_tables_of_an_estimated_model_wait_for_its_run(trained, monkeypatch, capfd):
    monkeypatch.setenv("EPL_EXPLAIN", "1")

    def estimate(model):
        memory_estimate(model.train_op, model.feed())
        assert "TaskGraphs" not in capfd.readouterr().err

    assert sum(line.startswith("TaskGraphs") for line in trained(estimate)) == 1


def test_a_model_that_cannot_be_explained_trains(trained, monkeypatch, caplog):
    def fail(*_, **__):
        raise ValueError("odd")

    monkeypatch.setenv("EPL_EXPLAIN", "1")
    monkeypatch.setattr(explanation_report, "explanation", fail)
    lines = trained()
    assert lines[0] == LINE and "  apply0: 1 gradients (0 sparse) in 1 transfer(s)" in lines
    assert not [line for line in lines if line.startswith("TaskGraphs")]
    assert "cannot explain the model (ValueError('odd'" in caplog.text


def test_tables_do_not_take_the_place_of_the_log(trained, monkeypatch, caplog):
    monkeypatch.setenv("EPL_EXPLAIN", "1")
    caplog.set_level(logging.INFO, "epl")
    assert trained()[0] == LINE
    assert [record.message for record in caplog.records].count(LINE[len("EPL: ") :]) == 1


def test_the_line_can_be_left_out(trained, monkeypatch):
    logging.getLogger("epl").setLevel(logging.WARNING)
    assert trained() == []
    logging.getLogger("epl").setLevel(logging.NOTSET)
    monkeypatch.setenv("EPL_EXPLAIN", "0")
    assert trained() == []


def test_a_log_that_shows_information_has_it_instead(trained, caplog):
    caplog.set_level(logging.INFO, "epl")
    assert trained() == []
    assert [record.message for record in caplog.records].count(LINE[len("EPL: ") :]) == 1


@pytest.mark.parametrize("value, worker, wants", [("1", 0, True), ("1", 1, False), ("0", 0, False), ("", 0, False)])
def test_worker_0_wants_tables(value, worker, wants, monkeypatch):
    monkeypatch.setenv("EPL_EXPLAIN", value)
    assert explain.wants_tables(cluster(worker)) == wants


@pytest.mark.parametrize("worker, says", [(0, True), (1, False)])
def test_worker_0_says_it(worker, says, capsys, monkeypatch):
    monkeypatch.delenv("EPL_EXPLAIN", raising=False)
    explain.tell(example(), cluster(worker))
    assert (capsys.readouterr().err != "") == says


@pytest.mark.parametrize(
    "changes, text",
    [
        ({}, "1 replica on 2 workers x 2 devices (CPU), 1 stage"),
        ({"owners": (0, 0)}, "2 replicas on 2 workers x 2 devices (CPU), 1 stage, gradients averaged in 1 bucket"),
        ({"owners": (0, 0, 1, 1), "reduce_method": "sum"},
         "4 replicas = 2 workers x 2 devices (CPU), 1 stage, gradients summed"),
        ({"owners": (0, 1), "stages": example().stages * 2, "num_micro_batch": 3, "groups": ()},
         "2 replicas x 2 stages = 2 workers x 2 devices (CPU), 3 micro batches"),
        ({"owners": (0, 0, 1, 1), "features": (SplitSection(((0, 1), (2, 3)), (), (), ()),)},
         "2 replicas split over 2 devices each = 2 workers"),
    ],
)  # fmt: skip
def test_the_plan_in_one_line(changes, text):
    found = explain.summary(example(**changes), cluster(0))
    assert found.startswith(text) and ("gradients" in found) == ("owners" in changes and "groups" not in changes)


def cluster(worker):
    config = Config({"cluster.device_type": "cpu", "cluster.num_virtual_devices": 2})
    return Cluster(["a:1", "b:1"], worker_index=worker, config=config)
