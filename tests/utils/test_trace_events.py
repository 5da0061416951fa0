"""What traces are made of: events of the Trace Event Format."""

import json

from epl.utils.trace_events import TraceSlice, counter_events, lane_events, process_events, write_trace


def one(start_ns, end_ns):
    return TraceSlice("op", "forward", start_ns, end_ns, {"op": 1})


def test_slices_at_the_same_time_share_a_lane_of_several_threads():
    events = lane_events(7, [("lane", [one(0, 5000), one(3000, 9000), one(5000, 7000), one(8000, 9000)])])
    titles = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    rows = {
        title: [(e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid]
        for tid, title in titles.items()
    }
    assert rows == {"lane": [(0, 5), (5, 2), (8, 1)], "lane (2)": [(3, 6)]}


def test_a_slice_has_the_fields_of_the_format_in_microseconds():
    (event,) = [event for event in lane_events(7, [("lane", [one(1500, 4000)])]) if event["ph"] == "X"]
    assert event == {
        "ph": "X", "name": "op", "cat": "forward", "ts": 1.5, "dur": 2.5, "pid": 7, "tid": 1, "args": {"op": 1},
    }  # fmt: skip


def test_a_process_has_a_title_and_a_place():
    assert [(event["name"], event["args"]) for event in process_events(7, "device 0", {"worker": 1})] == [
        ("process_name", {"name": "device 0", "worker": 1}), ("process_sort_index", {"sort_index": 7}),
    ]  # fmt: skip


def test_the_last_value_of_a_moment_counts():
    events = counter_events(7, "live bytes", "bytes", [(1.0, 5), (1.0, 6), (2.0, 0)])
    assert [(event["ts"], event["args"]) for event in events] == [(1.0, {"bytes": 6}), (2.0, {"bytes": 0})]


def test_a_trace_is_written_with_what_else_is_known(tmp_path):
    path = write_trace(process_events(7, "a"), str(tmp_path / "t.json"), {"run": 3})
    with open(path) as source:
        trace = json.load(source)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"} and trace["otherData"] == {"run": 3}
