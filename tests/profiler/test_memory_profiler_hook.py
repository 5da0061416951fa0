"""MemoryProfilerHook: which files, what is in them, and what is refused."""

import csv
import logging
import os
import sys

import pytest
import tensorflow.compat.v1 as tf

from epl.profiler import step_stats
from epl.profiler.memory_profiler_hook import MemoryProfilerHook, profile_memory
from tests.parallel.in_process import Linear, error_text


def train(hook, runs, devices=2):
    """Runs steps of a small model under a hook."""
    model = Linear()
    train_op = model.minimize()
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as sess:
        for _ in range(runs):
            sess.run(train_op, model.feed())


def rows_of(path):
    with open(str(path), newline="") as source:
        return list(csv.DictReader(source))


def test_every_which_run_is_written_until_the_last(init, tmp_path):
    init(2)
    train(MemoryProfilerHook(2, 5, str(tmp_path), visualize=False), 7)
    wanted = {f"profile_step_{step}_CPU_{device}.csv" for step in (2, 4) for device in (0, 1)}
    assert set(os.listdir(str(tmp_path))) == wanted


def test_the_table_begins_with_the_variables_and_adds_up(init, tmp_path):
    init(2)
    train(MemoryProfilerHook(1, 1, str(tmp_path), visualize=False), 1)
    first, *changes = rows_of(tmp_path / "profile_step_1_CPU_1.csv")
    assert int(first["live_bytes"]) >= 3 * 4
    live = int(first["live_bytes"])
    for row in changes:
        live += int(row["bytes"])
        assert int(row["live_bytes"]) == live and row["op"]
    assert len(changes) > 5


def test_the_peaks_are_returned_and_logged(init, tmp_path, caplog):
    init(2)
    model = Linear()
    train_op = model.minimize()
    with tf.Session() as sess, caplog.at_level(logging.INFO, "epl"):
        sess.run(tf.global_variables_initializer())
        found = profile_memory(step_stats.run(sess, train_op, model.feed(64))[1], str(tmp_path / "p_"), False)
    assert [one["device"][-5:] for one in found] == ["CPU:0", "CPU:1"]
    for one in found:
        table = rows_of(tmp_path / "p_{}.csv".format(one["device"][-5:].replace(":", "_")))
        assert one["peak_memory"] == max(int(row["live_bytes"]) for row in table) > one["persist"] > 0
        assert "Device: {}, peak memory: ".format(one["device"][-5:]) in caplog.text


def test_the_folder_is_made(init, tmp_path, monkeypatch):
    init(1)
    monkeypatch.chdir(tmp_path)
    train(MemoryProfilerHook(1, 1, visualize=False), 1)
    assert os.listdir(str(tmp_path / "epl_profile")) == ["profile_step_1_CPU_0.csv"]


def test_an_empty_folder_is_the_current_one(init, tmp_path, monkeypatch):
    init(1)
    monkeypatch.chdir(tmp_path)
    train(MemoryProfilerHook(1, 1, "", visualize=False), 1)
    assert os.listdir(str(tmp_path)) == ["profile_step_1_CPU_0.csv"]


def test_the_record_itself_can_be_kept(init, tmp_path):
    init(1)
    train(MemoryProfilerHook(1, 1, str(tmp_path), visualize=False, dump_metadata=True), 1)
    metadata = tf.RunMetadata.FromString((tmp_path / "run_metadata_1.bin").read_bytes())
    assert step_stats.executions(metadata)


def test_without_matplotlib_there_are_tables_and_a_warning(init, tmp_path, monkeypatch, caplog):
    init(1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    train(MemoryProfilerHook(1, 1, str(tmp_path)), 1)
    assert os.listdir(str(tmp_path)) == ["profile_step_1_CPU_0.csv"]
    assert "pip install matplotlib" in caplog.text


def test_with_matplotlib_there_are_pictures(init, tmp_path):
    pytest.importorskip("matplotlib")
    init(1)
    train(MemoryProfilerHook(1, 1, str(tmp_path)), 1)
    assert (tmp_path / "profile_step_1_CPU_0.csv.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((6, 5), "would trace no run"),
        ((0, 5), "save_steps of MemoryProfilerHook is 0"),
        ((1, True), "max_steps of MemoryProfilerHook is True"),
        ((1.5, 5), "expected 1 or more"),
    ],
)
def test_numbers_of_steps_that_mean_nothing_are_refused(arguments, words):
    text = error_text(MemoryProfilerHook, *arguments)
    assert text.startswith("ValueError") and words in text


def test_a_run_that_was_not_traced_is_refused():
    text = error_text(profile_memory, tf.RunMetadata())
    assert text.startswith("ValueError") and "FULL_TRACE" in text
