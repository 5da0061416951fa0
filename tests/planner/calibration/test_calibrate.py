"""The machine that is put together from measurements, and `epl-plan --calibrate` with little time."""

import json
import os

import pytest
import tensorflow.compat.v1 as tf

from epl.planner import main as command_line
from epl.planner.calibration import calibrate, command
from epl.planner.calibration.collective_timing import groups_of
from epl.planner.calibration.device_fit import MeasuredDeviceOps, TimedOp
from epl.planner.calibration.op_samples import ops_of_kinds, tiny_ops
from epl.planner.calibration.worker import Measured
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.files import read_machine, text_for
from epl.planner.profile.op_timing import OpTime
from epl.utils.errors import WorkerError
from tests.planner.calibration.test_link_fit import made_up


def measured(**collectives):
    def timed(samples, seconds):
        return [TimedOp(one, OpTime(seconds, 0.1, 5)) for one in samples]

    ops = MeasuredDeviceOps(timed(tiny_ops(), 2e-6), timed(ops_of_kinds(tf.float32, 1, False), 1e-3))
    return Measured("Xeon", False, 8 * 2**30, "a test", ops, collectives)


def test_devices_of_a_process_have_another_link_than_processes():
    inside, between = made_up(5e-6, 10e9, 1, counts=(2,)), made_up(50e-6, 2e9, 1, counts=(2,))
    machine = calibrate.machine_of("here", 2, 2, measured(inside=inside, between=between), "2026-01-02")
    assert machine.num_devices == 4 and machine.nodes[0].levels[0].groups == ((0, 1), (2, 3))
    assert machine.devices[0].shared_by == 2  # the devices of a process have its cores together
    costs = CollectiveCosts(machine)
    assert costs.cost("all-reduce", [0, 1], 10**6).parts[0].link == calibrate.INSIDE
    assert costs.cost("all-reduce", [0, 2], 10**6).parts[0].link == calibrate.BETWEEN


@pytest.mark.parametrize("name", ["here.yaml", "here.json"])
def test_a_machine_is_read_as_it_was_written(tmp_path, name):
    machine = calibrate.machine_of("here", 1, 2, measured(inside=made_up(5e-6, 10e9, 1, counts=(2,))), "2026-01-02")
    (tmp_path / name).write_text(text_for(machine, name))
    assert read_machine(str(tmp_path / name)) == machine
    assert {one.of for one in machine.measurements} == {"measured-cpu", calibrate.INSIDE}
    assert machine._replace(measurements=()).digest() == machine.digest()


def test_one_device_has_no_links():
    machine = calibrate.machine_of("here", 1, 1, measured(), "2026-01-02")
    assert machine.links == () and machine.num_devices == 1


@pytest.mark.parametrize(
    "workers, devices, groups",
    [
        (1, 1, []),
        (1, 2, [("inside", (0, 1))]),
        (2, 1, [("between", (0, 1))]),
        (2, 2, [("inside", (0, 1)), ("between", (0, 2))]),
        (3, 4, [("inside", (0, 1)), ("inside", (0, 1, 2, 3)), ("between", (0, 4)), ("between", (0, 4, 8))]),
    ],
)
def test_groups_that_are_measured(workers, devices, groups):
    assert groups_of(workers, devices) == groups


@pytest.mark.parametrize(
    "options, message",
    [
        (["m.txt"], "a machine file ends in .yaml, .yml or .json"),
        (["none/m.yaml"], "there is no folder"),
        (["folder.json"], "no file can be written there"),
        (["m.yaml", "script.py"], "takes no script"),
        (["m.yaml", "--save", "a.json"], "takes no --save"),
        (["m.yaml", "--set", "zero.level=v1"], "takes no --set"),
        (["m.yaml", "--devices", "0"], "expected workers x devices"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(SystemExit) as end:
        command_line.main(["--calibrate", *options])
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("error, code", [(KeyboardInterrupt(), 130), (WorkerError("it broke", 0), 1)])
def test_what_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch, capsys, error, code):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(calibrate, "calibrate", fail)
    path = tmp_path / "m.json"
    path.write_text("before")
    assert command_line.main(["--calibrate", str(path)]) == code
    assert path.read_text() == "before" and os.listdir(str(tmp_path)) == ["m.json"]
    assert "as it was" in capsys.readouterr().err or code == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_this_machine(tmp_path, monkeypatch, capsys):
    run = command.run
    monkeypatch.setattr(command, "run", lambda parser, options, devices: run(parser, options, devices, 0.02))
    path = tmp_path / "here.json"
    assert command_line.main(["--calibrate", str(path), "--devices", "2x2"]) == 0
    printed, told = capsys.readouterr()
    assert "4 x measured-cpu" in printed and "ops in float32" in told
    machine = read_machine(str(path))
    assert machine.name == "here" and [link.name for link in machine.links] == [calibrate.INSIDE, calibrate.BETWEEN]
    device = machine.devices[0]
    assert (
        1e9 < device.rate("matmul").reached() < 1e13 and 1e8 < device.bandwidth.reached < 1e12 and device.memory > 2**20
    )
    sizes = {one["bytes"] for one in json.loads(path.read_text())["measurements"] if one["of"] == calibrate.BETWEEN}
    assert len(sizes) == 5
    assert CollectiveCosts(machine).cost("all-reduce", range(4), 10**6).seconds > 0
