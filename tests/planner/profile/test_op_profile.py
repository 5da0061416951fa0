"""The file of measured ops, and `auto.profile` on top of it."""

import logging
import multiprocessing
import os

import pytest

from epl.planner.machine.presets import DEVICES
from epl.planner.profile import store
from epl.planner.profile.op_process import OpProcess
from epl.planner.profile.op_profile import CACHED, MEASURE, OpProfile
from epl.planner.profile.op_timing import MeasuredDevice, MeasuredOp, OpTime
from tests.planner.profile import profiled_ops as ops

CPU = DEVICES["cpu"]
KNOWN = store.StoredOp("MatMul", 1e-3, 2e-3, 0.1, "2026-01-02")


class FakeProcess:
    """Measures at once, and counts."""

    def __init__(self):
        self.asked = []

    def measure(self, op):
        self.asked.append(op.type)
        if op.type == "Pad":
            return MeasuredOp(None, None, "it is a test")
        return MeasuredOp(OpTime(1e-3, 0.1, 5), OpTime(2e-3, 0.2, 5), "")

    def close(self):
        pass


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "cache" / "ops.json")


@pytest.fixture
def open_file(path):
    """`open_file(mode)`: a profile on the file, and what measures for it."""

    def call(mode, device="Xeon"):
        process = FakeProcess()
        return OpProfile(mode, CPU, device, path, process), process

    return call


def test_an_op_is_measured_once_and_found_in_the_file_later(open_file):
    profile, process = open_file(MEASURE)
    assert profile.measured(ops.matmul(), CPU) == profile.measured(ops.matmul(), CPU) == (1e-3, 2e-3)
    assert profile.measured(ops.matmul(rows=5), CPU) == (1e-3, 2e-3)
    assert process.asked == ["MatMul", "MatMul"] and profile.notes() == []
    profile.close()
    later, process = open_file(CACHED)
    assert later.measured(ops.matmul(), CPU) == (1e-3, 2e-3)
    assert later.measured(ops.matmul(rows=6), CPU) is None and process.asked == []
    assert 'auto.profile "measure" measures them' in later.notes()[0] and "MatMul [6,128] [128,64]" in later.notes()[0]


def test_times_are_of_one_device(open_file):
    profile, process = open_file(MEASURE)
    assert profile.measured(ops.matmul(), DEVICES["v100-32"]) is None and process.asked == []
    profile.measured(ops.matmul(), CPU)
    profile.close()
    other, _ = open_file(CACHED, "another CPU")
    assert other.measured(ops.matmul(), CPU) is None


def test_an_op_that_cannot_be_measured_is_asked_once_and_told(open_file):
    profile, process = open_file(MEASURE)
    assert profile.measured(ops.pad(), CPU) is profile.measured(ops.pad(), CPU) is None
    assert process.asked == ["Pad"]
    assert profile.notes() == ["Pad could not be measured, as it is a test: times are computed"]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"format": "epl-op-profile", "version": 2, "devices": {}}',
        '{"format": "epl-op-profile", "version": 1}',
        '{"format": "epl-op-profile", "version": 1, "devices": {"Xeon": {"a": {"forward": 1}}}}',
        '{"format": "epl-op-profile", "version": 1, "devices": {"Xeon": {"a": {"op": "", "forward": -1, "backward": 0,'
        ' "spread": 0, "date": ""}}}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_and_written_anew(open_file, path, caplog, text):
    os.makedirs(os.path.dirname(path))
    with open(path, "w") as file:
        file.write(text)
    with caplog.at_level(logging.WARNING, "epl"):
        profile, _ = open_file(MEASURE)
    assert "cannot be used and counts as empty" in caplog.text
    profile.measured(ops.matmul(), CPU)
    profile.close()
    assert len(store.read(path)["Xeon"]) == 1


def test_a_folder_that_cannot_be_written_loses_the_times_and_says_so(open_file, path, caplog):
    with open(os.path.dirname(path), "w") as file:
        file.write("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "epl"):
        profile, _ = open_file(MEASURE)
        assert profile.measured(ops.matmul(), CPU) == (1e-3, 2e-3)
        profile.close()
    assert "cannot be written to" in caplog.text


def _add_many(path, number):
    for one in range(10):
        store.add(path, "Xeon", {f"{number} {one}": KNOWN})


def test_several_processes_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(path, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(store.read(path)["Xeon"]) == 40
    assert sorted(os.listdir(os.path.dirname(path))) == ["ops.json", "ops.json.lock"]


def test_the_hash_tells_ops_apart():
    different = [ops.matmul(), ops.matmul(rows=1), ops.matmul(wanted=(True, False)), ops.gather(9), ops.gather(10)]
    assert len({store.hash_of(op) for op in different}) == len(different)
    assert store.hash_of(ops.gather(9)._replace(constants=(None, None, (1,)))) != store.hash_of(ops.gather(9))
    assert store.hash_of(ops.matmul()) == store.hash_of(ops.matmul())


def test_the_file_lies_in_the_folder_for_caches(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert store.default_path() == "/somewhere/epl/op_profile.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert store.default_path() == "/home/me/.cache/epl/op_profile.json"


@pytest.mark.long
def test_a_process_that_dies_or_hangs_costs_one_op():
    process = OpProcess(MeasuredDevice("/device:CPU:0", 1, 1e9), 0.01)
    assert process.measure(ops.matmul()).forward.seconds > 0
    process._process.kill()
    assert process.measure(ops.matmul()).problem == "the process that measured it ended with code -9"
    assert process.measure(ops.pad()).problem.startswith("the size of an output")
    assert process.measure(ops.matmul()).problem == ""
    process.close()
    process._longest = 0.01
    assert process.measure(ops.matmul()).problem == "it took more than 0 s"
    assert process._process is None
