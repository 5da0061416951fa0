"""Each measured program runs at a tiny size, under the launcher that the benchmark uses.

Horovod is left to the benchmark itself, which builds it on first use.
"""

import os
import subprocess
import sys

import pytest

from benchmarks import environment, groups

_TINY = ["2", "1", "16"]


def _ask(group, **request):
    try:
        with group.awake():
            return group.ask(**request)
    finally:
        group.close()


def test_plain_training_step_runs():
    (reply,) = _ask(groups.start_plain("training", ["plain"] + _TINY), steps=2, warm_up=1)
    assert reply["seconds"] > 0 and 5 < reply["loss"] < 15


def test_unconnected_processes_train_on_different_batches():
    group = groups.start_side_by_side("training", ["plain"] + _TINY, 2, {}, name="independent")
    first, second = _ask(group, steps=1, warm_up=0)
    assert first["loss"] != second["loss"]


def test_plain_graph_is_built_without_being_rewritten():
    (reply,) = _ask(groups.start_plain("rewriting", ["plain", "1"]))
    assert reply["ops"] > 1000 and "rewrite" not in reply


def test_allocator_settings_are_those_of_the_launcher():
    printed = subprocess.check_output(
        [
            sys.executable,
            os.path.join(environment.ROOT, "tools", "epl-launch"),
            "--num_workers",
            "1",
            "--gpu_per_worker",
            "1",
            "--dry_run",
            __file__,
        ]
    )
    for name, value in groups.ALLOCATOR.items():
        assert "%s=%s" % (name, value) in printed.decode()


def test_epl_training_step_runs_in_two_processes():
    first, second = _ask(groups.start_epl("training", ["epl"] + _TINY), steps=2, warm_up=1)
    assert first["loss"] != second["loss"]
    assert first["loss"] == pytest.approx(second["loss"], rel=0.1)


@pytest.mark.long
def test_two_devices_of_one_process_train_as_with_mirrored_strategy():
    ours = groups.start_epl("training", ["epl", *_TINY, "2"], size=1, devices=2)
    (epl_reply,) = _ask(ours, steps=1, warm_up=2)
    (mirrored_reply,) = _ask(groups.start_plain("training", ["mirrored", *_TINY, "2"]), steps=1, warm_up=2)
    assert epl_reply["loss"] == pytest.approx(mirrored_reply["loss"], rel=1e-4)


def test_epl_all_reduce_runs_in_two_processes():
    replies = _ask(groups.start_epl("collective", ["epl", "1024"]), elements=1024, steps=3, warm_up=1)
    assert len(replies) == 2


def test_epl_rewrites_for_every_local_device():
    (reply,) = _ask(groups.start_plain("rewriting", ["epl", "1"], {"EPL_CLUSTER_NUM_VIRTUAL_DEVICES": "2"}))
    assert reply["added"] > 0.5 * reply["ops"]


_PERCEPTRON = ["2", "4", "8", "16", "2", "PreferBackward"]


@pytest.mark.long
def test_step_of_a_pipeline_runs_and_its_memory_is_known_per_device():
    group = groups.start_plain("pipeline", ["pipeline"] + _PERCEPTRON)
    try:
        with group.awake():
            (step,), (memory,) = group.ask(steps=2, warm_up=1), group.ask(memory=True)
    finally:
        group.close()
    assert step["seconds"] > 0
    assert sorted(memory["peak_bytes"]) == ["CPU:0", "CPU:1"] and min(memory["peak_bytes"].values()) > 8 * 16 * 4


@pytest.mark.parametrize("kind", ["split", pytest.param("data_parallel", marks=pytest.mark.long)])
def test_step_of_a_wide_head_runs_and_its_bytes_are_known(kind):
    group = groups.start_plain("split", [kind, "2", "1000", "16", "8"])
    try:
        with group.awake():
            (step,), (held,) = group.ask(steps=2, warm_up=1), group.ask(bytes=True)
    finally:
        group.close()
    assert step["seconds"] > 0 and held["moved"] > 0
    assert sorted(held["peak"]) == sorted(held["persistent"]) == ["CPU:0", "CPU:1"]


def test_accumulation_on_one_device_runs():
    (reply,) = _ask(groups.start_plain("pipeline", ["accumulation"] + _PERCEPTRON), steps=2, warm_up=1)
    assert reply["seconds"] > 0


def test_each_stage_is_measured_alone():
    (reply,) = _ask(groups.start_plain("pipeline", ["stages"] + _PERCEPTRON), steps=3, warm_up=1)
    assert len(reply["forward"]) == len(reply["backward"]) == 2 and min(reply["forward"]) > 0


@pytest.mark.long
def test_graph_is_rewritten_as_a_pipeline_after_the_plain_one_was_built():
    variables = {"EPL_CLUSTER_NUM_VIRTUAL_DEVICES": "2", "EPL_PIPELINE_NUM_MICRO_BATCH": "3"}
    (reply,) = _ask(groups.start_plain("pipeline_rewriting", ["2", "64", "2"], variables))
    assert reply["added"] > 0.5 * reply["ops"] and reply["gigabytes"] > 0.05
    assert reply["plain"] > 0 and reply["build"] > 0


@pytest.mark.long
def test_memory_of_a_step_is_estimated_and_traced():
    group = groups.start_plain(
        "memory", ["epl", "adam", "1", "2", "64", "2"], {"EPL_GRADIENT_CHECKPOINT_TYPE": "collection"}
    )
    try:
        with group.awake():
            (estimated,), (step,), (held,) = (
                group.ask(**request) for request in ({"estimate": True}, {"steps": 1, "warm_up": 0}, {"bytes": True})
            )
    finally:
        group.close()
    assert step["seconds"] > 0
    assert held["peak"]["CPU:0"] > held["persistent"]["CPU:0"] > 3 * 4 * 64 * 30522  # words, and two moments of Adam
    assert estimated["peak"]["CPU:0"] == pytest.approx(held["peak"]["CPU:0"], rel=0.1)
