"""Checkpoints of a model whose parts lie in several processes: real processes, real Savers."""

import os
import re
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.waits import Limits
from epl.parallel.sharded_variables.checkpoint_parts import CheckpointParts
from epl.parallel.sharded_variables.part_writes import ASSIGNMENT, PartWrites
from tests.native import ops_harness

JOBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs")
sys.path.insert(0, JOBS)
import shard_parts as job  # noqa: E402

pytestmark = pytest.mark.timeout(120)
NAMES = ["fc/kernel", "fc/kernel/Momentum"]


def run(tmp_path, count, what="train"):
    """Runs the processes; (exit code, stdout, stderr) of each."""
    arguments = [what, str(tmp_path / "model")]
    with ops_harness.processes(os.path.join(JOBS, "shard_parts.py"), count, arguments) as workers:
        outputs = [worker.communicate(timeout=90) for worker in workers]
        return [(worker.returncode, out.decode(), err.decode()) for worker, (out, err) in zip(workers, outputs)]


def run_stopped(tmp_path, what, other):
    """Runs two processes, one of which stops itself; what the other one wrote to stderr, and its exit code."""
    arguments = [what, str(tmp_path / "model")]
    with ops_harness.processes(os.path.join(JOBS, "shard_parts.py"), 2, arguments) as workers:
        return workers[other].communicate(timeout=90)[1].decode(), workers[other].returncode


def plain(path=None, steps=job.STEPS):
    """The variable and its slot after each step on one device, from its initial value or a checkpoint."""
    with tf.Graph().as_default():
        step, _ = job.build(None, None)
        variables = tf.global_variables()
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            if path:
                tf.train.Saver().restore(sess, path)
            values = [sess.run(variables)]
            for _ in range(steps):
                sess.run(step)
                values.append(sess.run(variables))
            return values


def saved(path):
    """What a checkpoint holds of them."""
    return [tf.train.load_variable(path, name) for name in NAMES]


def close(one, other):
    """Compares lists of values."""
    for a, b in zip(one, other):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("count, what", [(2, "train"), pytest.param(3, "late", marks=pytest.mark.long)])
def test_worker_0_saves_the_parts_of_all_at_its_own_step(tmp_path, count, what):
    ended = run(tmp_path, count, what)
    assert [(code, out) for code, out, _ in ended] == [(0, "done\n")] * count, ended
    expected = plain()
    for number in range(1, job.STEPS + 1):
        close(saved(str(tmp_path / f"model-after-{number}")), expected[number])
    close(saved(str(tmp_path / "model-last")), expected[-1])
    assert not [name for name in os.listdir(str(tmp_path)) if "parts" in name]


def test_a_checkpoint_of_one_device_restores_into_processes(tmp_path):
    path = str(tmp_path / "model")
    with tf.Graph().as_default():
        step, _ = job.build(None, None)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            sess.run([step])
            tf.train.Saver().save(sess, path)
    ended = run(tmp_path, 2, "restore")
    assert [code for code, _, _ in ended] == [0, 0], ended
    close(saved(path + "-last"), plain(path)[-1])


def test_a_checkpoint_without_a_worker_that_failed_is_refused(tmp_path):
    ended = run(tmp_path, 2, "fails")
    assert all(code for code, _, _ in ended), ended
    assert "no more" in ended[1][2]
    assert not os.path.exists(str(tmp_path / "model-after-3.index"))


def test_a_checkpoint_with_parts_of_another_step_is_refused(tmp_path):
    ended = run(tmp_path, 2, "ahead")
    assert ended[0][0], ended
    seen = "Worker 1 could not write its part .*: it has done 4 steps of all workers, and worker 0 3"
    assert re.search(seen, ended[0][2], re.DOTALL), ended
    assert os.path.exists(str(tmp_path / "model-after-2.index"))
    assert not os.path.exists(str(tmp_path / "model-after-3.index"))


@pytest.mark.long
def test_a_worker_that_is_stopped_in_a_save_is_named_and_ends_it(tmp_path):
    errors, code = run_stopped(tmp_path, "stopped in a save", 0)
    assert code == 1, errors
    silent = r"nothing was heard of worker 1 \(localhost:\d+\) for \d+ s"
    does = r"worker 0 \(localhost:\d+\) (asks for the parts of a checkpoint|waits for the parts of .*model-after-3')"
    assert re.search("EPL: stalled: " + does + r" for \d+ s; " + silent, errors), errors
    assert re.search(does + r" and gave up after 8 s \(communication.timeout\); " + silent, errors), errors


@pytest.mark.long
def test_a_worker_waits_no_longer_for_a_stopped_worker_0_to_close_its_session(tmp_path):
    errors, code = run_stopped(tmp_path, "stopped before the end", 1)
    assert code == 1, errors
    assert re.search(r"worker 1 \S+ waits for worker 0 to close its session and gave up after 8 s", errors)


class Alone:
    """Stands in for a job of two processes, of which this one is not asked."""

    process, num_processes = 0, 2

    def stop(self):
        """Nothing to stop."""


@pytest.mark.parametrize(
    "here, seen", [(1, ""), (2, "'fc/kernel' was assigned by 2 run(s) here, and by 1 in worker 0")]
)
def test_parts_that_an_assignment_after_the_save_has_changed_are_refused(tmp_path, here, seen):
    parts = CheckpointParts(Alone(), {"kernel": ("fc/kernel", "2 0,2")}, Limits(0, 0))
    writes = PartWrites(frozenset(["kernel"]))

    def read(names):
        return [np.zeros(2, "f") for _ in names]

    session = parts.attach(read, writes)
    for _ in range(here):
        writes.note({"kernel": ASSIGNMENT})
    state = {"steps": 0, "compared": 0, "writes": {"kernel": ASSIGNMENT}, "assigned": {"kernel": 1}}
    entries = [("fc/kernel", "fc/kernel")]
    request = {"do": "write", "file": str(tmp_path / "model"), "entries": entries, "session": session, "state": state}
    tf.io.gfile.makedirs(str(tmp_path / "model_epl_parts"))
    answer = parts._answer(request)
    parts.leave()
    assert seen in answer.get("error", "") and bool(seen) == ("error" in answer)
