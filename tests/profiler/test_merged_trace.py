"""Traces of several workers in one file: processes, clocks, the command and what it refuses."""

import json
import os
import subprocess
import sys

import pytest

from epl.profiler import merged_trace
from epl.utils.errors import TraceError

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def process(pid, worker, machine="10.0.0.1", device="CPU:0"):
    """The event that names a process."""
    args = {"name": f"worker {worker} {device}", "worker": worker, "machine": machine}
    return {"ph": "M", "name": "process_name", "pid": pid, "args": args}


def ran(pid, begin, end, key="k", op_type="EplAllReduce", communicator="all"):
    """A collective that ran from `begin` to `end`, microseconds."""
    args = {"op": "x/" + key, "type": op_type, "communicator": communicator, "key": key}
    return {"ph": "X", "name": "x", "pid": pid, "tid": 1, "ts": begin, "dur": end - begin, "args": args}


def write(folder, name, events, run=2):
    """A trace as a file; its path."""
    path = folder / name
    path.write_text(json.dumps({"traceEvents": events, "otherData": {"run": run}}))
    return str(path)


def merged(tmp_path, *traces):
    """What the merge of traces made, given their events."""
    paths = [write(tmp_path, f"{number}.json", events) for number, events in enumerate(traces)]
    return merged_trace.merge(paths, str(tmp_path / "all.json"))


def shifts(tmp_path, *traces):
    return [tuple(shift) for shift in merged(tmp_path, *traces).shifts]


def times(found):
    return [(event["pid"], event["ts"]) for event in found.events if event["ph"] == "X"]


def test_processes_are_in_the_order_of_workers_with_pids_of_their_own(tmp_path):
    found = merged(
        tmp_path, [process(1, 1), ran(1, 5, 6)], [process(1, 0), ran(1, 7, 8), process(2, 0, device="CPU:1")]
    )
    assert [one.title for one in found.processes] == ["worker 0 CPU:0", "worker 0 CPU:1", "worker 1 CPU:0"]
    assert times(found) == [(3, 5), (1, 7)]
    with open(str(tmp_path / "all.json")) as source:
        assert json.load(source)["traceEvents"] == found.events


def test_the_order_that_is_shown_is_that_of_the_processes(tmp_path):
    found = merged(tmp_path, [process(7, 1)], [process(7, 0)])
    shown = [(e["pid"], e["args"]["sort_index"]) for e in found.events if e["name"] == "process_sort_index"]
    assert shown == [(1, 1), (2, 2)]


def test_a_trace_that_names_no_worker_is_of_the_worker_at_its_place(tmp_path):
    unnamed = {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "GPU:0"}}
    found = merged(tmp_path, [dict(ran(3, 0, 1), args={})], [unnamed])
    assert [one.title for one in found.processes] == ["worker 0 process 3", "worker 1 GPU:0"]


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([process(1, 0)]))
    found = merged_trace.merge([str(tmp_path / "list.json")], str(tmp_path / "all.json"))
    assert [one.title for one in found.processes] == ["worker 0 CPU:0"]


def test_workers_of_one_machine_keep_their_times(tmp_path):
    found = merged(tmp_path, [process(1, 0), ran(1, 0, 10)], [process(1, 1), ran(1, 4, 12)])
    assert found.shifts == () and times(found) == [(1, 0), (2, 4)]


def test_the_clock_of_another_machine_is_put_into_the_middle_of_what_collectives_allow(tmp_path):
    first = [process(1, 0), ran(1, 0, 10, "a"), ran(1, 18, 30, "b")]
    second = [process(1, 1, "10.0.0.2"), ran(1, 1004, 1010, "a"), ran(1, 1020, 1030, "b")]
    found = merged(tmp_path, first, second)
    # "a" allows -1010 to -994, "b" allows -1012 to -990.
    assert found.shifts == (("10.0.0.2", -1002.0, 8.0, 2),)
    assert times(found)[2:] == [(2, 2.0), (2, 18.0)]


def test_a_clock_that_no_collective_contradicts_stays(tmp_path):
    first, second = [process(1, 0), ran(1, 0, 10)], [process(1, 1, "m"), ran(1, 4, 12)]
    found = merged(tmp_path, first, second)
    assert found.shifts == (("m", 0.0, 12.0, 1),) and times(found) == [(1, 0), (2, 4)]


def test_executions_of_a_loop_are_matched_by_their_order(tmp_path):
    first = [process(1, 0), ran(1, 0, 10), ran(1, 20, 30), ran(1, 100, 110)]
    second = [process(1, 1, "m"), ran(1, 150, 160), ran(1, 50, 60), ran(1, 70, 80)]
    assert shifts(tmp_path, first, second) == [("m", -50.0, 10.0, 3)]


def test_a_machine_is_joined_by_way_of_another_one(tmp_path):
    middle = [process(1, 1, "m"), ran(1, 100, 110, "a"), ran(1, 120, 130, "b", communicator="two")]
    last = [process(1, 2, "n"), ran(1, 320, 330, "b", communicator="two")]
    found = shifts(tmp_path, [process(1, 0), ran(1, 0, 10, "a")], last, middle)
    assert sorted(found) == [("m", -100.0, 10.0, 1), ("n", -300.0, 10.0, 1)]


def test_of_several_devices_the_last_begin_and_the_first_end_count(tmp_path):
    first = [process(1, 0), process(2, 0), ran(1, 0, 12), ran(2, 4, 10)]
    assert shifts(tmp_path, first, [process(1, 1, "m"), ran(1, 100, 106)]) == [("m", -96.0, 6.0, 1)]


@pytest.mark.parametrize("op_type", ["EplBroadcast", "EplReduce", "MatMul"])
def test_what_may_end_before_all_have_begun_aligns_nothing(tmp_path, op_type):
    first, second = (
        [process(1, 0), ran(1, 0, 10, op_type=op_type)],
        [process(1, 1, "m"), ran(1, 50, 60, op_type=op_type)],
    )
    assert shifts(tmp_path, first, second) == [("m", None, 0.0, 0)]


def test_equal_keys_of_different_communicators_are_different_collectives(tmp_path):
    first, second = [process(1, 0), ran(1, 0, 10)], [process(1, 1, "m"), ran(1, 50, 60, communicator="other")]
    assert shifts(tmp_path, first, second) == [("m", None, 0.0, 0)]


def refused(tmp_path, *paths):
    with pytest.raises(TraceError) as error:
        merged_trace.merge(paths, str(tmp_path / "all.json"))
    assert not (tmp_path / "all.json").exists()
    return str(error.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        (b'{"traceEvents": [', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"{}", "is JSON but no Chrome trace"),
        (b"3", "is JSON but no Chrome trace"),
        (b'[{"name": "no pid"}]', "is JSON but no Chrome trace"),
        (b"[]", "is a Chrome trace without events"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text, expected):
    (tmp_path / "odd.json").write_bytes(text)
    path = str(tmp_path / "odd.json")
    assert refused(tmp_path, path).startswith(f"{path} {expected}")


def test_two_traces_of_one_worker_are_refused(tmp_path):
    paths = [write(tmp_path, name, [process(1, worker)]) for name, worker in (("a", 1), ("b", 0), ("c", 1))]
    assert f"{paths[0]} and {paths[2]} are both of worker 1" in refused(tmp_path, *paths)


def test_traces_of_different_runs_are_refused(tmp_path):
    paths = [write(tmp_path, str(worker), [process(1, worker)], run=2 + worker) for worker in (0, 1)]
    assert f"{paths[0]} is of run 2 and {paths[1]} of run 3" in refused(tmp_path, *paths)


# The command.


def test_the_command_says_what_it_did(tmp_path, capsys):
    first = write(tmp_path, "0.json", [process(1, 0), ran(1, 0, 1000)])
    second = write(tmp_path, "1.json", [process(1, 1, "m"), ran(1, 2000, 3000)])
    third = write(tmp_path, "2.json", [process(1, 2, "n"), ran(1, 200, 400)])
    fourth = write(tmp_path, "3.json", [process(1, 3, "o")])
    out = str(tmp_path / "all.json")
    assert merged_trace.main(["merge", out, first, second, third, fourth]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 4 process(es)",
        "  worker 0 CPU:0",
        "  worker 1 CPU:0",
        "  worker 2 CPU:0",
        "  worker 3 CPU:0",
        "clock of m: -2.000 ms, within 1.000 ms, by 1 collective(s)",
        "clock of n: agrees with that of the first worker within 0.800 ms, by 1 collective(s)",
        "clock of o: not aligned: no collective joins it with that of the first worker",
    ]


def test_the_command_reports_a_bad_file_in_one_line(tmp_path, capsys):
    assert merged_trace.main(["merge", str(tmp_path / "all.json"), str(tmp_path / "none.json")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("epl-trace: error: ") and "none.json" in error and error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["x.json", "y.json"], ["--overwrite", "x.json", "x.json"]])
def test_the_command_does_not_write_over_a_trace(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(str(tmp_path))
    for name in ("x.json", "y.json"):
        write(tmp_path, name, [process(1, 0)])
    with pytest.raises(SystemExit) as end:
        merged_trace.main(["merge"] + arguments)
    assert end.value.code == 2 and "the file to be written comes first" in capsys.readouterr().err


def test_overwrite_replaces_the_file(tmp_path):
    trace, out = write(tmp_path, "0.json", [process(1, 0)]), write(tmp_path, "all.json", [])
    assert merged_trace.main(["merge", "--overwrite", out, trace]) == 0


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as end:
        merged_trace.main([])
    assert end.value.code == 2 and "epl-trace merge OUT IN" in capsys.readouterr().err


def test_the_console_script_loads_no_tensorflow(tmp_path):
    trace = write(tmp_path, "0.json", [process(1, 0)])
    code = "import sys, epl_trace; code = epl_trace.main(); assert 'tensorflow' not in sys.modules; sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", code, "merge", str(tmp_path / "all.json"), trace],
        env=dict(os.environ, PYTHONPATH=ROOT), timeout=60, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
