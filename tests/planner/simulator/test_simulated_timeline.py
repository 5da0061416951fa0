"""A simulated run as a Chrome trace."""

import random

import pytest

from epl.planner.simulator.engine import simulate
from epl.planner.simulator.timeline import FIRST_PID, ProgramNames, timeline_events
from tests.planner.simulator.programs import program_of, random_program, timed


def names_of(program):
    return ProgramNames(
        [f"op {number}" for number in range(len(program.ops))],
        ["forward"] * len(program.ops),
        [f"device {number}" for number in range(len(program.pools))],
        [f"pool {number}" for number in range(len(program.threads))],
    )


def events_of(program, **kwargs):
    return timeline_events(program, simulate(program, "t"), names_of(program), **kwargs)


def lanes(events):
    """(process, lane) -> (name, microsecond, microseconds) of each slice."""
    titles = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["name"] in ("process_name", "thread_name")
    }
    found = {}
    for event in events:
        if event["ph"] == "X":
            lane = (titles[event["pid"], None], titles[event["pid"], event["tid"]])
            found.setdefault(lane, []).append((event["name"], event["ts"], event["dur"]))
    return found


SENT = program_of(timed(2), timed(1, 0, device=1, pool=2), timed(3, 1, device=1), devices=2, threads=(1, 1, 1))


def test_devices_links_and_the_critical_path_have_lanes():
    assert lanes(events_of(SENT)) == {
        ("simulated: critical path", "critical path"): [("op 0", 0, 2e6), ("op 1", 2e6, 1e6), ("op 2", 3e6, 3e6)],
        ("simulated: device 0", "pool 0"): [("op 0", 0, 2e6)],
        ("simulated: device 1", "pool 1"): [("op 2", 3e6, 3e6)],
        ("simulated: links", "pool 2"): [("op 1", 2e6, 1e6)],
    }


def test_a_collective_is_shown_once_in_a_link_and_for_each_rank_that_holds_none():
    ops = [timed(1, pool=2), timed(1, device=1, pool=2), timed(2), timed(2, device=1)]
    found = lanes(events_of(program_of(*ops, devices=2, threads=(1, 1, 1), collectives=[(0, 1), (2, 3)])))
    assert found["simulated: links", "pool 2"] == [("op 0", 0, 1e6)]
    assert found["simulated: device 0", "collectives"] == [("op 2", 0, 2e6)]
    assert found["simulated: device 1", "collectives"] == [("op 3", 0, 2e6)]


def test_threads_of_a_pool_have_rows():
    found = lanes(events_of(program_of(timed(2), timed(3), threads=(2,))))
    assert found["simulated: device 0", "pool 0"] == [("op 0", 0, 2e6)]
    assert found["simulated: device 0", "pool 0 (2)"] == [("op 1", 0, 3e6)]


def test_memory_is_a_counter():
    events = events_of(program_of(timed(2, size=8), timed(3, 0, size=4)))
    counters = [(event["name"], event["ts"], event["args"]) for event in events if event["ph"] == "C"]
    assert counters == [
        ("live bytes", 0, {"bytes": 8}), ("live bytes", 2e6, {"bytes": 12}), ("live bytes", 5e6, {"bytes": 0}),
    ]  # fmt: skip


def test_a_slice_says_what_started_it():
    events = events_of(SENT)
    last = [event for event in events if event["ph"] == "X" and event["name"] == "op 2"]
    on_path, on_device = (event["args"] for event in last)
    assert on_device == {"op": 2, "started by the end of": "op 1"} and on_path == {**on_device, "starts by": "input"}


def test_the_step_may_begin_at_any_time():
    early, late = events_of(SENT), events_of(SENT, begin_us=100.0)
    assert [e["ts"] + 100 for e in early if "ts" in e] == [e["ts"] for e in late if "ts" in e]


def test_persistent_memory_is_there_from_the_begin():
    events = events_of(program_of(timed(2), timed(1, size=8), timed(1, 1)), persistent=[100])
    counters = [(event["ts"], event["args"]["bytes"]) for event in events if event["ph"] == "C"]
    assert counters == [(0, 100), (2e6, 108), (4e6, 100)]


def test_processes_have_numbers_above_those_of_workers():
    assert {event["pid"] for event in events_of(SENT)} == {FIRST_PID + number for number in range(4)}


def test_no_slice_overlaps_another_in_its_lane():
    for seed in range(50):
        for slices in lanes(events_of(random_program(random.Random(seed)))).values():
            ordered = sorted(slices, key=lambda one: (one[1], one[1] + one[2]))
            assert all(a[1] + a[2] <= b[1] + 1e-3 for a, b in zip(ordered, ordered[1:])), seed


@pytest.mark.parametrize("what, expected", [("ops", 3), ("kinds", 3), ("devices", 2), ("pools", 3)])
def test_missing_names_are_refused(what, expected):
    names = names_of(SENT)._replace(**{what: ["one"]})
    with pytest.raises(ValueError, match=f"1 names of {what}: expected {expected}, one for each"):
        timeline_events(SENT, simulate(SENT, "t"), names)
