"""The timeline of a step: fields of the Trace Event Format, lanes, and that no event of a thread overlaps another."""

import collections
import json
import re

import pytest
import tensorflow.compat.v1 as tf

from epl.profiler import chrome_trace
from epl.profiler.trace_hook import TraceHook, trace_step
from tests.parallel.in_process import Linear, error_text
from tests.parallel.pipelines import Chain, begin
from tests.profiler.models import estimator
from tests.tensorflows import WITH_ESTIMATOR


def traced(train_op, feed, folder):
    """The events of the second step."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, feed)
        trace_step(sess, train_op, feed, str(folder), 2)
    with open(str(folder / "trace_step_2.json")) as source:
        return json.load(source)["traceEvents"]


def lanes(events):
    """Process -> thread -> its events."""
    titles = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["name"] in ("process_name", "thread_name")
    }
    found = collections.OrderedDict()
    for event in events:
        if event["ph"] == "X":
            process, thread = titles[event["pid"], None], titles[event["pid"], event["tid"]]
            found.setdefault(process, collections.OrderedDict()).setdefault(thread, []).append(event)
    return found


@pytest.fixture(scope="module")
def once():
    """What is made once for all tests."""
    return {}


@pytest.fixture
def pipeline(init, tmp_path, once):
    """The events of a pipeline of two stages and two micro batches, on two replicas."""
    if not once:
        begin(init, 2, 4)
        model = Chain(2)
        once["events"] = traced(model.minimize(), model.feed(8), tmp_path)
    return once["events"]


def test_events_have_the_fields_of_the_format(pipeline):
    assert {event["ph"] for event in pipeline} == {"X", "M", "C"}
    for event in pipeline:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert isinstance(event["tid"], int) and event["ts"] > 0 and event["dur"] >= 0 and event["cat"]
        if event["ph"] == "C":
            assert event["ts"] > 0 and event["args"]["bytes"] >= 0


def test_a_thread_has_one_event_at_a_time(pipeline):
    for threads in lanes(pipeline).values():
        for events in threads.values():
            ordered = sorted(events, key=lambda event: event["ts"])
            assert all(a["ts"] + a["dur"] <= b["ts"] + 0.5 for a, b in zip(ordered, ordered[1:]))  # float64


def test_devices_stages_micro_batches_and_communicators_have_lanes(pipeline):
    found = lanes(pipeline)
    assert list(found) == [
        "CPU:0, replica 0, stage 0",
        "CPU:1, replica 0, stage 1",
        "CPU:2, replica 1, stage 0",
        "CPU:3, replica 1, stage 1",
    ]
    for process, threads in found.items():
        stage = process[-1]
        for copy in (0, 1):
            for name in ("forward", "backward"):
                events = threads[f"stage {stage}, micro batch {copy}, {name}"]
                assert {event["args"]["micro batch"] for event in events} == {copy}
                assert {event["cat"] for event in events} == {name}
        assert any(re.match(rf"communicator graph\d+/apply0/stage{stage}/0$", thread) for thread in threads)
        assert f"stage {stage}, update" in threads


def test_the_first_lane_shows_the_schedule(pipeline):
    orders = [[event["name"] for event in threads["actions"]] for threads in lanes(pipeline).values()]
    assert orders == 2 * [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


def test_lanes_of_a_model_of_one_stage(init, tmp_path):
    init(2)
    model = Linear()
    found = lanes(traced(model.minimize(), model.feed(), tmp_path))
    assert list(found) == ["CPU:0, replica 0", "CPU:1, replica 1"]
    for threads in found.values():
        assert {"forward", "backward", "update", "plan"} <= set(threads)
        assert [thread for thread in threads if re.match(r"communicator graph\d+/apply0/0$", thread)]


def test_a_plain_graph_has_one_lane_for_each_op_at_a_time(init, tmp_path):
    init(1, annotate=False)
    model = Linear()
    found = lanes(traced(model.minimize(), model.feed(), tmp_path))
    assert list(found) == ["CPU:0"] and {name.split(" ")[0] for name in found["CPU:0"]} == {"other"}


def test_a_run_that_was_not_traced_is_refused():
    text = error_text(chrome_trace.events_of_step, tf.RunMetadata(), tf.Graph())
    assert text.startswith("ValueError") and "FULL_TRACE" in text


def test_the_values_of_a_traced_step_come_back(init, tmp_path):
    init(2)
    model = Linear()
    train_op = model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        loss = sess.run(model.loss, model.feed())
        assert trace_step(sess, [train_op, model.loss], model.feed(), str(tmp_path))[1] == pytest.approx(loss)


@WITH_ESTIMATOR
def test_an_estimator_takes_the_hook(init, tmp_path):
    init(2)
    model, input_fn = estimator(tmp_path / "model")
    model.train(input_fn, hooks=[TraceHook(2, 2, str(tmp_path / "trace"))], steps=3)
    with open(str(tmp_path / "trace" / "trace_step_2.json")) as source:
        found = lanes(json.load(source)["traceEvents"])
    assert [name for name in found if "replica" in name] == ["CPU:0, replica 0", "CPU:1, replica 1"]
