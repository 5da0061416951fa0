"""`--bind_cores`: which CPUs the workers of a machine get, and how many threads go with them."""

import json
import os
import subprocess
import sys

import pytest

from epl.launcher import cores
from epl.launcher.devices import Devices

# Seconds; some of these start processes.
pytestmark = pytest.mark.timeout(60)

SHOW = "import json, os; print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ.get('OMP_NUM_THREADS')]))"
CPUS = sorted(os.sched_getaffinity(0))


def expected(workers, cpus=frozenset(CPUS)):
    return cores.divide(cores.read_cores(set(cpus)), workers)


def shown(log, workers):
    """CPUs and OMP_NUM_THREADS of each worker that has run SHOW."""
    return [json.loads(log(index)) for index in range(workers)]


@pytest.mark.parametrize(
    "units, workers, shares",
    [
        ([[0], [1], [2], [3]], 2, [[0, 1], [2, 3]]),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], 2, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ([[0], [1], [2]], 2, [[0, 1], [1, 2]]),  # 1.5 cores each
        ([[0, 2], [1, 3]], 4, [[0], [2], [1], [3]]),  # fewer cores than workers, but as many CPUs
        ([[0], [1]], 3, [[0], [0, 1], [1]]),
        ([[0], [1]], 4, [[0], [0], [1], [1]]),
        ([[7]], 3, [[7], [7], [7]]),
    ],
)
def test_workers_get_equal_shares_of_neighbouring_cores(units, workers, shares):
    assert cores.divide(units, workers) == shares


def machine(folder, siblings, nodes):
    """Writes a /sys: the hardware threads of the core of each CPU, and the CPUs of each NUMA node."""
    for cpu, text in siblings.items():
        (folder / "cpu" / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(text + "\n")
    for node, text in nodes.items():
        (folder / "node" / f"node{node}").mkdir(parents=True)
        (folder / "node" / f"node{node}" / "cpulist").write_text(text + "\n")
    return str(folder)


def test_hardware_threads_of_a_core_and_cores_of_a_node_are_together(tmp_path):
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    system = machine(tmp_path, siblings, {0: "0,2,4,6", 1: "1,3,5,7"})
    assert cores.read_cores(set(range(8)), system) == [[0, 4], [2, 6], [1, 5], [3, 7]]


def test_cpus_that_the_launcher_may_not_use_are_left_out(tmp_path):
    system = machine(tmp_path, {cpu: f"{cpu & ~1}-{cpu | 1}" for cpu in range(8)}, {0: "0-7"})
    assert cores.read_cores({1, 4, 5}, system) == [[1], [4, 5]]


def test_without_a_description_of_the_machine_each_cpu_is_a_core(tmp_path):
    assert cores.read_cores({3, 1}, str(tmp_path)) == [[1], [3]]


def devices(workers, visible=""):
    return Devices([{"CUDA_VISIBLE_DEVICES": visible}] * workers, "devices")


@pytest.mark.parametrize(
    "workers, visible, wanted, is_bound",
    [
        (2, "", None, True),
        (1, "", None, False),
        (2, "0", None, False),
        (2, "", False, False),
        (1, "", True, True),
        (2, "0", True, True),
    ],
)
def test_several_workers_without_gpus_are_bound_by_default(workers, visible, wanted, is_bound):
    bound = cores.bind(devices(workers, visible), wanted, {})
    assert bound.cpus == (expected(workers) if is_bound else ())
    assert ("OMP_NUM_THREADS" in bound.environments[0]) == is_bound


def test_a_worker_of_one_cpu_has_a_second_thread_for_an_op_that_waits(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    shares = cores.bind(devices(2), None, {}, "/none")
    assert [one.get("TF_NUM_INTEROP_THREADS") for one in shares.environments] == [None, None]
    single = cores.bind(devices(3), None, {}, "/none")
    assert [one["TF_NUM_INTEROP_THREADS"] for one in single.environments] == ["2"] * 3
    chosen = cores.bind(devices(3), None, {"TF_NUM_INTEROP_THREADS": "1"}, "/none")
    assert "TF_NUM_INTEROP_THREADS" not in chosen.environments[0]


@pytest.mark.parametrize("cpus, text", [("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("", [])])
def test_cpus_are_described_as_taskset_reads_them(cpus, text):
    assert cores.describe_cpus(text) == cpus


def test_each_worker_is_bound_to_its_share_and_has_as_many_threads(run, log):
    launch = run(SHOW, name="job.py")
    assert launch.code == 0, launch.output
    assert shown(log, 2) == [[share, str(len(share))] for share in expected(2)]
    assert launch.output.count("each bound to ") == (1 if len(CPUS) > 1 else 0)


def test_workers_stay_unbound_where_asked(run, log):
    assert "bound" not in run(SHOW, "--bind_cores", "off", name="job.py").output
    assert shown(log, 2) == [[CPUS, None]] * 2


@pytest.mark.parametrize("flags, environ", [([], {"OMP_NUM_THREADS": "5"}), (["--env", "OMP_NUM_THREADS=5"], {})])
def test_a_number_of_threads_from_the_user_stays(run, log, flags, environ):
    run(SHOW, *flags, name="job.py", **environ)
    assert shown(log, 2) == [[share, "5"] for share in expected(2)]


def test_workers_stay_on_the_cpus_to_which_the_launcher_is_bound(run, log):
    os.sched_setaffinity(0, CPUS[-1:])  # as `taskset` does
    try:
        launch = run(SHOW, name="job.py")
    finally:
        os.sched_setaffinity(0, CPUS)
    assert shown(log, 2) == [[CPUS[-1:], "1"]] * 2
    assert launch.output.count("more workers than CPUs: 2 share 1") == 1


def test_a_script_may_bind_itself_to_other_cpus(run, log):
    code = f"import os; os.sched_setaffinity(0, {CPUS}); print(sorted(os.sched_getaffinity(0)))"
    run(code, name="job.py")
    assert json.loads(log(0)) == CPUS


def test_a_dry_run_names_the_cpus(run):
    launch = run("echo", "--dry_run")
    assert all(f"bound to CPU(s) {cores.describe_cpus(share)}\n" in launch.output for share in expected(2))


def test_with_machine_rank_there_is_nothing_to_divide(run):
    launch = run("echo", "--machine_list", "a:1,b:1", "--machine_rank", "0", "--bind_cores")
    assert launch.code == 2 and "start the launcher by `taskset -c CPUS epl-launch ...`" in launch.output


SESSION_THREADS = """
import os, sys
cpus, threads = eval(sys.argv[1]), int(sys.argv[2])
os.sched_setaffinity(0, cpus)
import tensorflow.compat.v1 as tf
before = len(os.listdir("/proc/self/task"))
session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads))
print(len(os.listdir("/proc/self/task")) - before)
"""


def session_threads(cpus, threads):
    command = [sys.executable, "-W", "ignore", "-c", SESSION_THREADS, str(cpus), str(threads)]
    return int(subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=50))


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_tensorflow_takes_as_many_threads_as_its_process_has_cpus():
    assert session_threads(CPUS[:1], 0) == session_threads(CPUS, 1) < session_threads(CPUS, 0)
