"""Monitored sessions of several workers: each has its own, and worker 0 alone writes."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.transformation import ToldByWorkers
from epl.runtime import monitored
from tests.parallel.in_process import Linear, error_text

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs", "monitored.py")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run_workers(arguments, count, limit):
    """Starts `count` workers of a job by hand; their outputs, once all have ended well."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    hosts = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    processes = []
    for worker in range(count):
        task = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": worker}}
        environment = dict(os.environ, TF_CONFIG=json.dumps(task), PYTHONPATH=ROOT)
        processes.append(
            subprocess.Popen(
                [sys.executable] + arguments, env=environment, universal_newlines=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    try:
        outputs = [process.communicate(timeout=limit)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * count, outputs
    return outputs


@pytest.mark.timeout(120)
@pytest.mark.parametrize("who", ["one chief", "chiefs"])
def test_another_worker_than_0_is_initialized_and_writes_no_checkpoint(tmp_path, who):
    run_workers([SCRIPT, str(tmp_path), who], 2, 90)
    kernels = [np.load(str(tmp_path / f"kernel{worker}.npy")) for worker in range(2)]
    assert np.array_equal(kernels[0], kernels[1])
    written = os.listdir(str(tmp_path / "worker0"))
    assert {"model.ckpt-4.index", "notes"} <= set(written) and [name for name in written if name.startswith("events")]
    assert os.listdir(str(tmp_path / "worker1")) == ["checkpoint"]
    assert tf.train.latest_checkpoint(str(tmp_path / "worker1")) == str(tmp_path / "worker0" / "model.ckpt-4")


def test_one_worker_keeps_what_it_asked_for(init, tmp_path):
    init()
    model = Linear()
    step = tf.train.get_or_create_global_step()
    train_op = model.optimizer.minimize(model.loss, step)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=1) as sess:
        sess.run(train_op, model.feed())
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-1")


def test_a_session_that_waits_for_a_chief_is_refused(init):
    init()
    Linear().minimize()
    text = error_text(tf.train.WorkerSessionCreator().create_session)
    assert text.startswith("PlanError") and "each worker has its own" in text


def test_a_session_that_waits_for_a_chief_is_left_alone_without_annotation(init):
    init(annotate=False)
    Linear().optimizer.apply_gradients([(tf.ones([3, 1]), tf.trainable_variables()[0])])
    text = error_text(tf.train.WorkerSessionCreator(max_wait_secs=0).create_session)
    assert text == "" or "PlanError" not in text
    assert epl.Env.get().is_ready


def test_a_checkpoint_that_is_being_written_is_awaited_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(monitored, "_PATIENCE_S", 0.1)
    last = str(tmp_path / "model.ckpt-4")
    tf.train.update_checkpoint_state(str(tmp_path), str(tmp_path / "model.ckpt-2"))
    os.mkdir(last + "_temp_1")

    def finish():
        (tmp_path / "model.ckpt-4.index").write_text("")
        tf.train.update_checkpoint_state(str(tmp_path), last)

    writer = threading.Timer(0.6, finish)
    writer.start()
    assert monitored._becomes_latest(last)
    writer.join()


@pytest.mark.parametrize("seen", [False, True])
def test_a_worker_that_does_not_see_the_last_checkpoint_says_so(init, tmp_path, monkeypatch, caplog, seen):
    init()
    monkeypatch.setattr(monitored, "_PATIENCE_S", 0.3)
    tf.train.get_or_create_global_step()
    if seen:
        tf.train.update_checkpoint_state(str(tmp_path), str(tmp_path / "model.ckpt-0"))
    told = monitored.CheckpointPaths(str(tmp_path), str(tmp_path / "model.ckpt"), "")
    graph = Graph.get(may_create=True)
    graph.keep(ToldByWorkers, ToldByWorkers("", json.dumps(told)))
    own = told._replace(saves_as=str(tmp_path / "own" / "model.ckpt"))
    with tf.train.SingularMonitoredSession([monitored._NamesLastCheckpoint(graph, own, 1)]):
        pass
    assert not (tmp_path / "own").exists()
    (warning,) = [record.getMessage() for record in caplog.records if "Worker 0 writes" in record.message]
    assert "model.ckpt-0'" in warning and "worker 1 does not see it" in warning


def test_the_first_checkpoint_is_awaited_by_a_worker_without_records(init, tmp_path, caplog):
    init()
    tf.train.get_or_create_global_step()
    told = monitored.CheckpointPaths(str(tmp_path), str(tmp_path / "model.ckpt"), "")
    graph = Graph.get(may_create=True)
    graph.keep(ToldByWorkers, ToldByWorkers("", json.dumps(told)))
    own = told._replace(saves_as=str(tmp_path / "own" / "model.ckpt"))
    first = str(tmp_path / "model.ckpt-0")

    def write():
        (tmp_path / "model.ckpt-0.index").write_text("")
        tf.train.update_checkpoint_state(str(tmp_path), first)

    writer = threading.Timer(0.3, write)
    with tf.train.SingularMonitoredSession([monitored._NamesLastCheckpoint(graph, own, 1)]):
        writer.start()
    writer.join()
    assert tf.train.latest_checkpoint(str(tmp_path / "own")) == first
    assert not caplog.records


def test_a_later_checkpoint_is_not_awaited_where_there_is_none(tmp_path):
    start = time.monotonic()
    assert not monitored._becomes_latest(str(tmp_path / "model.ckpt-4"))
    assert time.monotonic() - start < 60
