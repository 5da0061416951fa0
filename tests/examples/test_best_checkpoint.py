"""Each checkpoint of a training is measured, and the best one kept."""

import os

import best_checkpoint
import pytest
import tensorflow.compat.v1 as tf

from tests.profiler.event_files import values


class Measured:
    """Gives one measure after the other, and notes what it was asked about."""

    def __init__(self, *measures):
        self.measures = list(measures)
        self.asked = []

    def __call__(self, checkpoint):
        with tf.Graph().as_default():
            assert tf.train.list_variables(checkpoint)
        self.asked.append(os.path.basename(checkpoint))
        return {"f1": self.measures.pop(0), "other": 0}


def train(folder, measured, steps):
    """Trains a step counter up to a step, with a checkpoint after every second one."""
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        train_op = tf.assign_add(step, 1)
        listener = best_checkpoint.KeepBest(folder, measured, "f1")
        hooks = [
            tf.train.StopAtStepHook(last_step=steps),
            tf.train.CheckpointSaverHook(folder, save_steps=2, listeners=[listener]),
        ]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, save_checkpoint_secs=None
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    tf.summary.FileWriterCache.clear()


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "model")


def kept(folder):
    """The files of the best checkpoint, without their endings."""
    names = os.listdir(os.path.join(folder, best_checkpoint.FOLDER))
    return {os.path.splitext(name)[0] for name in names if name.startswith("model.ckpt")}


def test_the_best_checkpoint_is_kept(folder, capsys):
    measured = Measured(10.0, 30.0, 20.0)
    train(folder, measured, 6)
    assert measured.asked == ["model.ckpt-2", "model.ckpt-4", "model.ckpt-6"]
    assert kept(folder) == {"model.ckpt-4"}
    best = tf.train.latest_checkpoint(os.path.join(folder, best_checkpoint.FOLDER))
    assert tf.train.load_variable(best, "global_step") == 4
    assert best_checkpoint.read_best(folder) == {"step": 4, "measures": {"f1": 30.0, "other": 0.0}, "evaluated": 6}
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[1] == "evaluated after step 4: f1 30, other 0 (the best so far)"
    assert lines[2] == "evaluated after step 6: f1 20, other 0 (the best is step 4)"


def test_a_training_that_goes_on_knows_the_best(folder):
    train(folder, Measured(10.0, 30.0), 4)
    measured = Measured(20.0, 40.0)
    train(folder, measured, 8)
    assert measured.asked == ["model.ckpt-6", "model.ckpt-8"]  # not again that with which it began
    assert kept(folder) == {"model.ckpt-8"}


def test_the_last_step_is_measured_too(folder):
    measured = Measured(1.0, 2.0)
    train(folder, measured, 3)
    assert measured.asked == ["model.ckpt-2", "model.ckpt-3"]


def test_tensorboard_gets_the_measures(folder):
    train(folder, Measured(10.0, 30.0), 4)
    assert values(folder)["eval/f1"] == [(2, 10.0), (4, 30.0)]


def test_without_a_training_there_is_no_best(folder):
    assert best_checkpoint.read_best(folder) == {}


def test_the_last_checkpoint_of_a_folder_is_found(folder):
    train(folder, Measured(10.0, 30.0), 4)
    last = os.path.join(folder, "model.ckpt-4")
    assert best_checkpoint.find_checkpoint(folder) == best_checkpoint.find_checkpoint(last) == last


def test_what_is_no_checkpoint_is_refused(tmp_path):
    for path in (str(tmp_path), str(tmp_path / "model.ckpt-4")):
        with pytest.raises(ValueError, match="is no checkpoint, and no folder with one"):
            best_checkpoint.find_checkpoint(path)
