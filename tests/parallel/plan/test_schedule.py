"""Schedules as data (`epl/parallel/plan/schedule.py`): the text form and the validator."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.parallel.plan.schedule import (
    Action,
    Schedule,
    chain,
    execution_order,
    from_text,
    peak_in_flight,
    to_text,
    validate,
)

ONE_F_ONE_B = """
schedule PreferBackward stages=2 micro_batches=2 device_of_stage=0,1
device 0: 0F0 0F1 0B0 0B1
device 1: 1F0 1B0 1F1 1B1
"""

INDEX = st.integers(0, 20)
ACTIONS = st.lists(st.builds(Action, INDEX, st.sampled_from("FB"), INDEX), max_size=8).map(tuple)
SCHEDULES = st.builds(
    Schedule,
    st.text("aZ0-_.", min_size=1),
    INDEX,
    st.lists(INDEX, min_size=1, max_size=8).map(tuple),
    st.lists(ACTIONS, max_size=8).map(tuple),
)


def with_devices(*lines, stages="stages=2 micro_batches=2 device_of_stage=0,1"):
    return from_text("\n".join(["schedule Mine " + stages] + list(lines)))


def refusal(schedule, **more):
    with pytest.raises(ValueError) as error:
        validate(schedule, **more)
    return str(error.value)


# Text form.


def test_an_action_is_written_as_stage_kind_micro_batch():
    assert str(Action(2, "F", 0)) == "2F0"


def test_a_text_is_read_and_written_back():
    schedule = from_text(ONE_F_ONE_B)
    assert (schedule.num_stages, schedule.num_devices, schedule.num_micro_batch) == (2, 2, 2)
    assert schedule.actions[1][2] == Action(1, "F", 1)
    assert to_text(schedule) == ONE_F_ONE_B.lstrip()


@given(SCHEDULES)
@settings(deadline=None)
def test_every_schedule_comes_back_from_its_text(schedule):
    assert from_text(to_text(schedule)) == schedule


@pytest.mark.parametrize(
    "before, after, pieces",
    [
        ("schedule PreferBackward", "PreferBackward", ["line 1", "expected a line like 'schedule PreferBackward"]),
        ("stages=2", "stages=3", ["line 1", "stages=3", "device_of_stage=0,1", "one device per stage"]),
        ("device 1:", "device 2:", ["line 3", "device 2:", "'device 1:'"]),
        ("1B0", "1C0", ["line 3", "action 2", "'1C0'", "like '2F0'"]),
        ("0F1", "0F-1", ["line 2", "action 2", "'0F-1'"]),
    ],
)
def test_a_wrong_text_is_refused_with_its_place(before, after, pieces):
    with pytest.raises(ValueError) as error:
        from_text(ONE_F_ONE_B.replace(before, after))
    assert [piece for piece in pieces if piece not in str(error.value)] == []


# Validator.


def test_a_schedule_that_does_all_of_the_work_is_valid():
    validate(from_text(ONE_F_ONE_B), max_in_flight=(2, 1))


@pytest.mark.parametrize(
    "before, after, expected",
    [
        (" 1F1 1B1", " 1F1", "device 1: 1B1 is missing"),
        ("0F1", "0F0", "device 0: 0F0 is there twice"),
        ("0F1", "1F1", "device 0: 1F1 belongs to device 1"),
        ("0F1", "0F2", "device 0: 0F2 does not exist: expected stages 0 to 1 and micro batches 0 to 1"),
        ("0F1", "2F1", "device 0: 2F1 does not exist"),
        ("1F0 1B0", "1B0 1F0", "device 1: 1B0 stands before 1F0"),
        ("1F0 1B0 1F1 1B1", "1F0 1F1 1B1 1B0", "device 1: 1B1 stands before 1B0: expected the micro batches"),
        ("device 1: 1F0 1B0 1F1 1B1", "", "actions for 1 devices and stages on 2"),
        ("micro_batches=2", "micro_batches=0", "has 0 micro batches"),
        ("device_of_stage=0,1", "device_of_stage=0,2", "there is none on device 1"),
    ],
)
def test_a_wrong_schedule_is_refused(before, after, expected):
    assert expected in refusal(from_text(ONE_F_ONE_B.replace(before, after)))


@pytest.mark.parametrize("action", [Action(-1, "F", 1), Action(0, "X", 1), Action(0, "F", -1)])
def test_an_action_that_text_cannot_say_is_refused(action):
    schedule = from_text(ONE_F_ONE_B)
    own = (schedule.actions[0][0], action) + schedule.actions[0][2:]
    assert "does not exist" in refusal(schedule._replace(actions=(own, schedule.actions[1])))


def test_a_circle_of_waiting_devices_is_named():
    schedule = with_devices("device 0: 0F0 0B0 0F1 0B1", "device 1: 1F0 1F1 1B0 1B1")
    assert refusal(schedule).endswith(
        "would wait for ever: device 0 waits at 0B0 for 1B0, which device 1 runs after 1F1; "
        "device 1 waits at 1F1 for 0F1, which device 0 runs after 0B0"
    )


def test_a_device_outside_of_the_circle_is_not_named():
    schedule = with_devices(
        "device 0: 0F0 0F1 0B0 0B1", "device 1: 1F0 1B0 1F1 1B1", "device 2: 2F0 2F1 2B0 2B1",
        stages="stages=3 micro_batches=2 device_of_stage=0,1,2",
    )  # fmt: skip
    assert "device 0" not in refusal(schedule)


def test_a_device_that_waits_for_itself_is_named():
    schedule = with_devices("device 0: 1F0 0F0 1B0 0B0", stages="stages=2 micro_batches=1 device_of_stage=0,0")
    assert "device 0 waits at 1F0 for 0F0, which device 0 runs after 1F0" in refusal(schedule)


def test_execution_order_names_what_no_device_runs():
    schedule = with_devices("device 0: 0F0 0B0", "device 1: 1F0", stages="stages=2 micro_batches=1 device_of_stage=0,1")
    with pytest.raises(ValueError, match="device 0 waits at 0B0 for 1B0, which no device runs"):
        execution_order(schedule)


def test_more_micro_batches_in_flight_than_allowed_are_refused():
    expected = "stage 0 has 2 micro batches in flight: expected 1 at most"
    assert expected in refusal(from_text(ONE_F_ONE_B), max_in_flight=(1, 1))


def test_in_flight_bounds_are_one_per_stage():
    assert "max_in_flight has 1 entries" in refusal(from_text(ONE_F_ONE_B), max_in_flight=(1,))


def test_activations_are_in_memory_from_forward_to_backward():
    assert peak_in_flight(from_text(ONE_F_ONE_B)) == (2, 1)


# Data flow.


def test_without_data_flow_stages_run_in_any_order():
    schedule = with_devices("device 0: 1F0 0F0 1B0 0B0", stages="stages=2 micro_batches=1 device_of_stage=0,0")
    validate(schedule, dependencies=())


def test_a_skip_connection_is_waited_for():
    schedule = with_devices(
        "device 0: 0F0 0B0", "device 1: 1F0 2F0 1B0 2B0", stages="stages=3 micro_batches=1 device_of_stage=0,1,1"
    )
    validate(schedule, dependencies=[(0, 2)])
    assert "device 1 waits at 1B0 for 2B0" in refusal(schedule, dependencies=[(0, 2), (1, 2)])


def test_gradients_flow_against_the_data():
    schedule = with_devices("device 0: 0F0 0B0 1F0 1B0", stages="stages=2 micro_batches=1 device_of_stage=0,0")
    assert "device 0 waits at 0B0 for 1B0" in refusal(schedule, dependencies=chain(2))


@pytest.mark.parametrize("pair", [(1, 0), (1, 1), (-1, 1), (0, 2)])
def test_data_flows_from_an_earlier_to_a_later_stage(pair):
    assert "expected pairs of an earlier and a later stage" in refusal(from_text(ONE_F_ONE_B), dependencies=[pair])


def test_execution_order_holds_every_action_behind_what_it_reads():
    order = [str(action) for action in execution_order(from_text(ONE_F_ONE_B))]
    assert sorted(order) == ["0B0", "0B1", "0F0", "0F1", "1B0", "1B1", "1F0", "1F1"]
    assert order.index("0F1") < order.index("1F1") < order.index("1B1") < order.index("0B1")
