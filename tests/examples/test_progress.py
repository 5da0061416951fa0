"""What is shown of a training: lines, a bar, where an earlier run is continued; by worker 0 alone."""

import io
import re
import sys

import numpy as np
import progress
import pytest
import tensorflow.compat.v1 as tf


class Terminal(io.StringIO):
    """A terminal that keeps what it shows."""

    def isatty(self):
        return True


@pytest.fixture
def shown():
    """A file."""
    return io.StringIO()


@pytest.fixture
def clock(monkeypatch):
    """Times of the hook, which the test sets."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return clock


def train(stream, steps=3, folder=None, clock=None, seconds=1.0):
    """Trains up to a step; the loss of step n is n."""
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        loss = tf.cast(step, tf.float32) + 1.0
        with tf.control_dependencies([loss]):
            train_op = tf.assign_add(step, 1)
        hooks = [tf.train.StopAtStepHook(last_step=steps), progress.Progress(loss, steps, 4, stream)]
        with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
            while not session.should_stop():
                if clock:
                    clock[0] += seconds
                session.run(train_op)


def test_the_first_and_the_last_step_have_a_line(shown):
    train(shown)
    first, last = shown.getvalue().splitlines()
    assert first == "step 1 of 3: loss 1.0000"
    assert re.match(r"step 3 of 3: loss 2.0000, \d+ samples/s$", last)  # the mean of 1, 2 and 3


def test_a_line_comes_every_ten_seconds(shown, clock):
    train(shown, steps=9, clock=clock, seconds=4.0)
    assert shown.getvalue().splitlines() == [
        "step 1 of 9: loss 1.0000",
        "step 4 of 9: loss 2.5000, 1 samples/s, 0:00:20 left",
        "step 7 of 9: loss 4.0000, 1 samples/s, 0:00:08 left",
        "step 9 of 9: loss 5.0000, 1 samples/s",
    ]


def test_a_run_that_is_continued_is_named(shown, tmp_path):
    train(shown, 2, str(tmp_path))
    assert "goes on" not in shown.getvalue()
    shown.truncate(0)
    train(shown, 5, str(tmp_path))
    lines = shown.getvalue().strip("\0").splitlines()
    assert lines[:2] == ["goes on from step 2 of 5", "step 3 of 5: loss 3.0000"]


def test_a_run_that_is_over_does_no_step(shown, tmp_path):
    train(io.StringIO(), 2, str(tmp_path))
    train(shown, 2, str(tmp_path))
    assert shown.getvalue().splitlines() == ["goes on from step 2 of 2"]
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-2")


def test_a_terminal_gets_a_bar(clock):
    terminal = Terminal()
    train(terminal, clock=clock)
    last = terminal.getvalue().split("\r")[-1]
    assert "3/3" in last and "loss 2.0000, 4 samples/s" in last and last.endswith("\n")


def test_without_tqdm_a_terminal_gets_lines(monkeypatch):
    monkeypatch.setattr(progress, "tqdm", None)
    terminal = Terminal()
    train(terminal)
    assert len(terminal.getvalue().splitlines()) == 2


@pytest.mark.parametrize("worker", [0, 1])
def test_worker_0_alone_shows_it(shown, monkeypatch, worker):
    cluster = type("Cluster", (), {"worker_index": worker, "total_gpu_num": 4})
    env = type("Env", (), {"get": lambda: type("Env", (), {"cluster": cluster})})
    monkeypatch.setitem(sys.modules, "epl", type("epl", (), {"Env": env}))
    train(shown)
    assert len(shown.getvalue().splitlines()) == (0 if worker else 2)
    assert progress.devices() == 4


def test_fit_of_keras_shows_the_same(shown, clock):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
    model.compile("sgd", "mse")
    callback = progress.KerasProgress(steps=6, samples_per_run=2, first_step=2, stream=shown)
    model.fit(np.zeros([4, 2]), np.zeros([4, 1]), batch_size=2, epochs=2, verbose=0, callbacks=[callback])
    assert [line.split(",")[0] for line in shown.getvalue().splitlines()] == [
        "goes on from step 2 of 6",
        "step 3 of 6: loss 0.0000",
        "step 6 of 6: loss 0.0000",
    ]


def test_a_script_without_epl_has_one_device(monkeypatch):
    monkeypatch.delitem(sys.modules, "epl", raising=False)
    assert progress.devices() == 1
