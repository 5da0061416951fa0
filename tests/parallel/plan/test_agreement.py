"""Workers that differ are told so at their first meeting, in the user's words; they meet at the first session."""

import json
import os
import socket
import time

import pytest
import tensorflow.compat.v1 as tf

from epl.ops.job import Job, JobError
from epl.parallel.plan import agreement
from tests.parallel.in_process import Linear, init  # noqa: F401
from tests.parallel.plan.test_plan import example
from tests.runtime.spanning import once, outputs, run_workers

SAME = ["equal", "allowed", "zero", "own keys", "split"]
OTHER_GRAPHS = {
    "rate": "the learning rate of Adam is 0.5 in worker 1 and 0.01 in worker 0 (Const, 'Adam/learning_rate', ",
    "beta1": "the beta1 of Adam is 0.8 in worker 1 and 0.9 in worker 0 (",
    "momentum": "the momentum of Momentum is 0.5 in worker 1 and 0.9 in worker 0 (",
    "activation": "the first op that differs is 'hidden/Tanh' (Tanh, ",
    "optimizer": "GradientDescent",
    "zero, rate": "the learning rate of Adam is 0.5 in worker 1 and 0.01 in worker 0 (Const, ",
    "split, factor": "is 3.0 in worker 1 and 2.0 in worker 0 (Const, ",
}
OTHER_SETTINGS = {
    "zero.level": ["zero.level is '' here (worker 0, from code) and 'v1' there (worker 1, from code)",
                   "zero.level is 'v1' here (worker 1, from code) and '' there (worker 0, from code)"],
    "groups": ["optimizer.num_apply_group is 1 here (worker 0, from code) and 2 there (worker 1, from code)",
               "optimizer.num_apply_group is 2 here (worker 1, from code) and 1 there (worker 0, from code)"],
    "version": ["The version of EPL is 0.6.0 here (worker 0) and 0.5 there (worker 1)",
                "The version of EPL is 0.5 here (worker 1) and 0.6.0 there (worker 0)"],
    "version of TensorFlow": [f"The version of TensorFlow is {tf.VERSION} here (worker 0) and 2.99.0 there (worker 1)",
                              f"The version of TensorFlow is 2.99.0 here (worker 1) and {tf.VERSION} there (worker 0)"],
}  # fmt: skip


def _run(directory):
    workers = run_workers("agreement.py", [directory], directory, ["127.0.0.1"] * 2, limit=120.0)
    told = []
    for worker in range(2):
        path = os.path.join(directory, "told_%d.json" % worker)
        assert os.path.exists(path), outputs(workers)
        with open(path) as source:
            told.append(json.load(source))
    assert [worker.code for worker in workers] == [0, 0], outputs(workers)
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """By worker and case, what its first runs raised."""
    return once(tmp_path_factory, "agreement", _run)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", SAME)
def test_workers_that_may_differ_so_train(told, case):
    assert [of_worker[case] for of_worker in told] == ["trained", "trained"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", sorted(OTHER_GRAPHS))
def test_graphs_that_differ_are_named_in_both_workers(told, case):
    first, second = [of_worker[case] for of_worker in told]
    assert first == second
    assert first.startswith("PlanMismatchError: Worker 1 and worker 0 compute different models: ")
    assert OTHER_GRAPHS[case] in first and "agreement.py:" in first


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", sorted(OTHER_SETTINGS))
def test_settings_that_differ_are_named_in_both_workers(told, case):
    for of_worker, expected in zip(told, OTHER_SETTINGS[case]):
        assert of_worker[case].startswith("PlanMismatchError: " + expected)


@pytest.fixture
def alone(monkeypatch):
    """This process is worker 0 of two; the other one never comes."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        hosts = ["127.0.0.1:%d" % door.getsockname()[1], "127.0.0.1:1"]
    cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    yield
    Job.announce(None)


@pytest.mark.timeout(60)
def test_a_worker_that_died_is_named_at_the_first_session(alone, init):  # noqa: F811
    init(devices=1, communication__start_timeout=1)
    model = Linear()
    model.minimize()
    start = time.monotonic()
    text = "worker 1 .*did not appear within 1 s.*raise communication.start_timeout"
    with tf.Session() as sess, pytest.raises(JobError, match=text):
        sess.run(model.train_op, model.feed())
    assert time.monotonic() - start < 20


@pytest.mark.timeout(60)
def test_a_graph_without_gradients_waits_for_nobody(alone, init):  # noqa: F811
    init(devices=1, communication__start_timeout=1)
    with tf.Session() as sess:
        assert sess.run(tf.constant(2) * 3) == 6
    assert Job.current() is None


def test_plans_with_one_hash_are_not_sent(monkeypatch):
    sent = []

    def exchange(key, text):
        sent.append(key)
        return [(0, text), (1, text)]

    monkeypatch.setattr(agreement, "_exchange", exchange)
    agreement.compare_plans(example())
    assert sent == ["hash of the plan of graph1"]
