"""`epl-launch --check`: findings, remedies, exit code."""

import os
import re
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from epl.launcher import check

# Seconds; TensorFlow is loaded in several processes.
pytestmark = pytest.mark.timeout(120)


def run_check(launcher, *flags, **env):
    environment = dict(os.environ, PYTHON=sys.executable, EPL_CLUSTER_DEVICE_TYPE="cpu", **env)
    environment.pop("TF_CONFIG", None)
    return subprocess.run(
        [sys.executable, launcher, "--check"] + list(flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=environment,
        timeout=100,
    )


def program(monkeypatch, code):
    """Has every worker of the check run this code instead."""
    monkeypatch.setattr(check, "_program", lambda what: [sys.executable, "-c", code])


def pairs(count, given=None):
    ports = check.plan.reserve_ports(count)
    return list(check._pairs([{"CUDA_VISIBLE_DEVICES": ""}] * count, ports, given or {}))


def test_a_machine_that_works(launcher):
    done = run_check(launcher)
    assert done.returncode == 0 and "all is well" in done.stdout, done.stdout
    assert re.search(r"ok    all-reduce of 1 MB workers 0 and 1: \d+\.\d\d ms \(shm\)", done.stdout)
    assert re.search(r"ok    TensorFlow +" + re.escape(tf.VERSION), done.stdout)


def test_a_failure_has_a_remedy_and_code_1_and_ends_no_other_check(launcher, tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        "raise TypeError('Descriptors cannot not be created directly.')"
    )
    path = os.pathsep.join([str(tmp_path)] + os.environ.get("PYTHONPATH", "").split(os.pathsep))
    done = run_check(launcher, PYTHONPATH=path)
    assert done.returncode == 1, done.stdout
    assert "FAIL  TensorFlow         TypeError: Descriptors" in done.stdout
    assert 'remedy: pip install "protobuf<3.21"' in done.stdout
    assert "ok    ports" in done.stdout and "not tried, because of the failures above" in done.stdout


def test_too_few_devices_fail(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("EPL_CLUSTER_DEVICE_TYPE", raising=False)
    options = check.Options(*[None] * len(check.Options._fields))
    devices, finding = check._devices(options._replace(num_workers=3, gpu_per_worker=1), None)
    assert devices is None and finding.mark == "FAIL" and "need 3 free GPU(s)" in finding.text


@pytest.mark.parametrize(
    "facts, on_gpus, expected",
    [
        ({"native": "libepl_comm.so does not exist."}, False, [("FAIL", "native collectives"), ("--", "CUDA")]),
        ({"missing": "nccl: no driver"}, False, [("ok", "native collectives"), ("--", "left out"), ("--", "CUDA")]),
        (
            {"missing": "nccl: no driver", "gpus": 2},
            True,
            [("ok", "native collectives"), ("FAIL", "left out"), ("FAIL", "CUDA")],
        ),
    ],
)
def test_what_is_left_out_fails_where_it_is_needed(facts, on_gpus, expected):
    complete = dict({"native": None, "transports": ["local", "shm"], "missing": "", "cuda": False, "gpus": 0}, **facts)
    findings = list(check._built_in(complete, on_gpus))
    assert [(finding.mark, finding.subject) for finding in findings] == expected
    assert all(finding.remedy for finding in findings if finding.mark == "FAIL")


@pytest.mark.parametrize("blocks, on_gpus, mark", [(64, True, "FAIL"), (2000, True, "ok"), (64, False, "ok")])
def test_shared_memory_counts_with_gpus(monkeypatch, blocks, on_gpus, mark):
    room = os.statvfs_result((1000000, 1000000, blocks, blocks, blocks, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    finding = check._shared_memory(on_gpus)
    assert finding.mark == mark and f"{blocks} MB free" in finding.text


def test_the_worker_that_fails_first_is_the_finding(monkeypatch):
    program(
        monkeypatch,
        "import json, os, time\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index']: raise ValueError('NCCL is broken')\n"
        "time.sleep(600)",
    )
    monkeypatch.setattr(check, "_FOLLOW_SECONDS", 0.2)
    (finding,) = pairs(2)
    assert (finding.mark, finding.text) == ("FAIL", "ValueError: NCCL is broken")
    assert "NCCL_DEBUG=INFO" in finding.remedy


def test_workers_that_hang_are_ended(monkeypatch):
    program(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(check, "_SECONDS", 0.5)
    (finding,) = pairs(2)
    assert finding.mark == "FAIL" and "no answer within" in finding.text


def test_a_pair_that_fails_does_not_hide_the_others(monkeypatch):
    program(
        monkeypatch,
        "import json; print(json.dumps(["
        "{'workers': [0, 1], 'transport': 'shm', 'ms': 1.0, 'error': None},"
        "{'workers': [0, 2], 'transport': 'shm', 'ms': 0.0, 'error': 'cannot take 9 bytes of shared memory'}]))",
    )
    good, bad = pairs(3)
    assert (good.mark, good.text) == ("ok", "workers 0 and 1: 1.00 ms (shm)")
    assert bad.mark == "FAIL" and bad.text.startswith("workers 0 and 2: ") and "--shm-size" in bad.remedy


def test_what_env_gives_reaches_the_programs(monkeypatch, tmp_path):
    program(
        monkeypatch,
        "import json, os; print(json.dumps([{'workers': [0, 1], 'transport': os.environ['GIVEN'], "
        "'ms': 1.0, 'error': None}]))",
    )
    (finding,) = pairs(2, {"GIVEN": "x"})
    assert finding.text.endswith("(x)")
    (tmp_path / "numpy.py").write_text("__version__ = '0.1'\n")
    assert check._package(*check._VERSIONS[0], {"PYTHONPATH": str(tmp_path)}).text == "0.1"


@pytest.mark.parametrize(
    "visible, per_worker, count",
    [("0", 1, 1), ("0,1", 1, 2), ("0,1,2", 1, 2), ("0,1,2", 2, 1), ("", 1, 2), ("0", 2, 1)],
)
def test_without_a_number_as_many_workers_as_gpus_and_at_most_two(monkeypatch, visible, per_worker, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv("EPL_CLUSTER_DEVICE_TYPE", raising=False)
    options = check.Options(*[None] * len(check.Options._fields))._replace(num_workers=0, gpu_per_worker=per_worker)
    assert check._with_workers(options).num_workers == count


def test_one_worker_has_no_pair():
    (finding,) = pairs(1)
    assert finding.mark == "--" and "--num_workers 2" in finding.text


def test_a_program_that_a_signal_kills_names_it():
    answer = check._output([sys.executable, "-c", "import os; os.kill(os.getpid(), 4)"], os.environ)
    assert answer == (None, "killed by SIGILL")
    assert "AVX" in check._failure("TensorFlow", answer[1]).remedy
