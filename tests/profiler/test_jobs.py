"""Profiles of jobs of several workers: each writes its own devices, under names of its own, worker 0 what is common."""

import json
import os
import re

import pytest

from epl.profiler import merged_trace
from tests.profiler.event_files import steps, values
from tests.runtime.spanning import FOUR_WORKERS, Nursery, codes, outputs

JOBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs")
SCRIPT = os.path.join(JOBS, "profiled.py")
EXPLAINED = os.path.join(JOBS, "explained.py")
SUMMARIES = os.path.join(JOBS, "summaries.py")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def nursery():
    """What starts the workers."""
    with Nursery() as started:
        yield started


def run(nursery, folder, workers, stages, machines=FOUR_WORKERS, script=SCRIPT):
    """Runs a job; what its workers logged."""
    finished = nursery.run(script, [str(folder / "out"), str(stages)], folder, machines[:workers])
    assert codes(finished) == [0] * workers, outputs(finished)
    return [worker.output for worker in finished]


def traces(folder, workers):
    """The traces that the workers wrote of run 2."""
    return [str(folder / "out" / f"trace_step_2_worker_{worker}.json") for worker in range(workers)]


def processes(folder, name):
    """The processes and threads of a trace, in order."""
    with open(str(folder / "out" / name)) as source:
        events = json.load(source)["traceEvents"]
    return [
        [event["args"]["name"] for event in events if event["name"] == key] for key in ("process_name", "thread_name")
    ]  # fmt: skip


def models(logs):
    """By worker, the FLOPs of the model that it logged."""
    return [re.findall(r"FLOPs of the model: ([0-9.]+)", log) for log in logs]


def test_workers_with_replicas_write_their_own_files(nursery, tmp_path):
    logs = run(nursery, tmp_path, 2, 1)
    assert sorted(os.listdir(str(tmp_path / "out"))) == [
        "profile_step_2_worker_0_CPU_0.csv",
        "profile_step_2_worker_1_CPU_0.csv",
        "trace_step_2_worker_0.json",
        "trace_step_2_worker_1.json",
    ]
    assert [len(found) for found in models(logs)] == [1, 0]
    merged = merged_trace.merge(traces(tmp_path, 2), str(tmp_path / "out" / "both.json"))
    assert processes(tmp_path, "both.json")[0] == ["worker 0 CPU:0, replica 0", "worker 1 CPU:0, replica 1"]
    assert merged.shifts == ()  # one machine has one clock


def test_clocks_of_machines_are_aligned_by_collectives(nursery, tmp_path):
    machines = ["127.0.0.1", "127.0.0.2"]
    run(nursery, tmp_path, 2, 1, machines)
    ((clock, shift_us, _, collectives),) = merged_trace.merge(traces(tmp_path, 2), str(tmp_path / "both.json")).shifts
    assert (clock, shift_us) == (machines[1], 0.0) and collectives > 0  # in truth they share a clock


def test_a_session_that_spans_workers_shows_all_of_its_devices(nursery, tmp_path):
    logs = run(nursery, tmp_path, 2, 2)
    assert sorted(os.listdir(str(tmp_path / "out"))) == [
        "profile_step_2_worker_0_CPU_0.csv",
        "profile_step_2_worker_1_CPU_0.csv",
        "trace_step_2_worker_0.json",
    ]
    titles, threads = processes(tmp_path, "trace_step_2_worker_0.json")
    assert titles == ["worker 0 CPU:0, replica 0, stage 0", "worker 1 CPU:0, replica 0, stage 1"]
    assert {"actions", "stage 1, micro batch 1, backward", "transfer"} <= set(threads)
    ((one,), others) = models(logs)
    matmul = 2 * 4 * 16 * 16  # of four rows; two forward, three backward
    assert float(one) * 1e9 == pytest.approx(5 * matmul + 12 * 2 * 17 * 16, rel=0.1) and not others


def test_workers_write_summaries_of_their_own_devices_and_worker_0_those_of_the_job(nursery, tmp_path):
    run(nursery, tmp_path, 2, 1, script=SUMMARIES)
    both = {"epl/exposed_communication", "epl/peak_memory_mb/worker_0_CPU_0"}
    assert set(values(tmp_path / "out")) == both | {"epl/loss", "epl/samples_per_second", "epl/tflops_per_second"}
    others = values(tmp_path / "out" / "worker_1")
    assert set(others) == {"epl/exposed_communication", "epl/peak_memory_mb/worker_1_CPU_0"}
    assert steps(tmp_path / "out", "loss") == [1, 3] and steps(tmp_path / "out", "exposed_communication") == [2, 4]


def test_a_session_that_spans_workers_writes_summaries_of_all_devices(nursery, tmp_path):
    run(nursery, tmp_path, 2, 2, script=SUMMARIES)
    assert {tag for tag in values(tmp_path / "out") if "memory" in tag} == {
        "epl/peak_memory_mb/worker_0_CPU_0",
        "epl/peak_memory_mb/worker_1_CPU_0",
    }
    assert steps(tmp_path / "out", "samples_per_second") == [3]


def explained(nursery, folder, stages, when):
    """What the two workers of a job wrote that explains its model."""
    finished = nursery.run(EXPLAINED, [str(folder), str(stages), when], folder, FOUR_WORKERS[:2])
    assert codes(finished) == [0, 0], outputs(finished)
    return [worker.output for worker in finished]


@pytest.mark.parametrize("when", ["before", "in session", "first run"])
def test_worker_0_explains_the_replicas_of_a_job(nursery, tmp_path, when):
    first, other = explained(nursery, tmp_path, 1, when)
    assert first.count("TaskGraphs, on one replica") == 1 and "worker 0 CPU:0, worker 1 CPU:0" in first
    assert "all-reduce" in first and "TaskGraphs" not in other


@pytest.mark.parametrize("when", ["in session", "first run"])
def test_a_pipeline_over_workers_is_explained_in_its_session(nursery, tmp_path, when):
    first, other = explained(nursery, tmp_path, 2, when)
    assert re.search(r"worker 0 CPU:0 +worker 1 CPU:0 +\d", first) and "TaskGraphs" not in other


def test_a_pipeline_over_workers_is_not_explained_before_its_session(nursery, tmp_path):
    finished = nursery.run(EXPLAINED, [str(tmp_path), "2", "before"], tmp_path, FOUR_WORKERS[:2])
    assert codes(finished)[0] == 1 and "epl.explain() and estimates work within it" in finished[0].output
