"""A prediction as a Chrome trace has the times and bytes of the prediction."""

import json

import pytest

from epl.planner.prediction.prediction import predict
from epl.planner.prediction.prediction_trace import write_prediction
from tests.planner.prediction.hand_made import HandCosts, Layer, machine, stages, strategy


@pytest.fixture
def prediction():
    costs = HandCosts([Layer(weight=2000, output=10.0, kept=True), Layer(weight=4000)])
    planned = strategy(costs, devices=4, pipeline__num_micro_batch=2, **stages(costs, 1))
    return predict(planned, costs, machine([["a"] * 4], bandwidth=1e3), 4)


@pytest.fixture
def events(prediction, tmp_path):
    with open(write_prediction(prediction, str(tmp_path / "t.json"))) as source:
        return json.load(source)["traceEvents"]


def test_devices_and_links_have_names(prediction, events):
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    devices = [f"simulated: {one.name}" for one in prediction.devices]
    assert titles == ["simulated: critical path"] + devices + ["simulated: links"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    links = {f"link {number}: {what}" for number, what in enumerate(["transfers"] * 2 + ["collectives"] * 2)}
    assert lanes == {"critical path", "computes"} | links


def test_passes_are_in_the_lanes_of_their_devices(events):
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found = {processes[event["pid"]] for event in events if event["ph"] == "X" and event["name"].startswith("1F0")}
    assert "simulated: links" not in found and len(found) >= 1


def test_times_are_those_of_the_prediction(prediction, events):
    assert max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") == pytest.approx(
        1e6 * prediction.seconds
    )


def test_the_largest_number_of_live_bytes_is_the_peak(prediction, events):
    for number, one in enumerate(prediction.devices):
        (pid,) = {event["pid"] for event in events if event["args"].get("name") == f"simulated: {one.name}"}
        live = [event["args"]["bytes"] for event in events if event["ph"] == "C" and event["pid"] == pid]
        assert max(live) == one.memory.peak, number
