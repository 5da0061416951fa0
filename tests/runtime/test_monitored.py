"""Monitored sessions of several workers: each has its own, and worker 0 alone writes."""
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import Linear, error_text

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs", "monitored.py")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run_workers(arguments, count, limit):
    """Starts `count` workers of a job by hand; their outputs, once all have ended well."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    hosts = ["127.0.0.1:{}".format(one.getsockname()[1]) for one in sockets]
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
def test_another_worker_than_0_is_initialized_and_writes_nothing(tmp_path, who):
    run_workers([SCRIPT, str(tmp_path), who], 2, 90)
    kernels = [np.load(str(tmp_path / "kernel{}.npy".format(worker))) for worker in range(2)]
    assert np.array_equal(kernels[0], kernels[1])
    written = os.listdir(str(tmp_path / "worker0"))
    assert {"model.ckpt-4.index", "notes"} <= set(written) and [name for name in written if name.startswith("events")]
    assert not os.path.exists(str(tmp_path / "worker1")) or not os.listdir(str(tmp_path / "worker1"))


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
