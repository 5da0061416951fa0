"""Schedules with times (`epl/parallel/plan/schedule_simulator.py`), against closed forms and by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.parallel.plan.schedule import Action, from_text
from epl.parallel.plan.schedule_generators import generate
from epl.parallel.plan.schedule_simulator import bubble_bound, draw, simulate

STAGES, MICRO_BATCHES, UNITS = st.integers(1, 8), st.integers(1, 16), st.integers(1, 9)
TWO_STAGES = from_text(
    """schedule Mine stages=2 micro_batches=1 device_of_stage=0,1
    device 0: 0F0 0B0
    device 1: 1F0 1B0"""
)


@given(st.sampled_from(["PreferForward", "PreferBackward"]), STAGES, MICRO_BATCHES, UNITS, UNITS)
@settings(deadline=None)
def test_equal_stages_take_the_time_of_the_closed_form(strategy, num_stages, num_micro_batch, forward, backward):
    simulation = simulate(generate(strategy, range(num_stages), num_micro_batch), forward, backward)
    assert simulation.total_s == (num_micro_batch + num_stages - 1) * (forward + backward)
    assert simulation.bubble == pytest.approx([bubble_bound(num_stages, num_micro_batch)] * num_stages)


@given(st.lists(UNITS, min_size=1, max_size=8), MICRO_BATCHES)
@settings(deadline=None)
def test_unequal_stages_forward_take_the_time_of_a_flow_shop(seconds, num_micro_batch):
    """The last forward pass ends after all stages once and the slowest M - 1 times more."""
    simulation = simulate(generate("PreferForward", range(len(seconds)), num_micro_batch), seconds, 1)
    last = Action(len(seconds) - 1, "F", num_micro_batch - 1)
    assert simulation.end_s[last] == sum(seconds) + (num_micro_batch - 1) * max(seconds)


def test_times_of_stages_and_transfers():
    simulation = simulate(TWO_STAGES, [1, 2], [3, 4], transfer_s=0.5)
    assert {str(action): start for action, start in simulation.start_s.items()} == {
        "0F0": 0, "1F0": 1.5, "1B0": 3.5, "0B0": 8,
    }  # fmt: skip
    assert simulation.end_s[Action(0, "B", 0)] == simulation.total_s == 11
    assert simulation.bubble == pytest.approx([7 / 11, 5 / 11])


def test_what_stays_on_a_device_is_not_transferred():
    assert simulate(generate("PreferForward", (0, 0), 1), 1, 1, transfer_s=9).total_s == 4


def test_stages_without_data_flow_run_at_once():
    simulation = simulate(TWO_STAGES, 1, 1, dependencies=())
    assert simulation.start_s[Action(1, "F", 0)] == 0


def test_an_order_that_only_its_own_data_flow_allows_is_simulated():
    schedule = TWO_STAGES._replace(device_of_stage=(0, 0), actions=(TWO_STAGES.actions[1] + TWO_STAGES.actions[0],))
    assert simulate(schedule, 1, 1, dependencies=()).total_s == 4


def test_micro_batches_in_flight_are_told():
    assert simulate(generate("PreferBackward", (0, 1), 4), 1, 1).peak_in_flight == (2, 1)


def test_a_schedule_without_times_has_no_bubble():
    assert simulate(TWO_STAGES, 0, 0).bubble == (0, 0)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (([1], 1), "forward_s is .1.: expected seconds, 0 or more, for all stages or for each of 2"),
        ((1, -1), "backward_s is -1"),
        ((1, 1, -1), "transfer_s is -1"),
    ],
)
def test_wrong_times_are_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        simulate(TWO_STAGES, *arguments)


def test_a_schedule_that_waits_for_ever_is_refused():
    with pytest.raises(ValueError, match="would wait for ever"):
        simulate(
            TWO_STAGES._replace(device_of_stage=(0, 0), actions=(TWO_STAGES.actions[1] + TWO_STAGES.actions[0],)), 1, 1
        )


def test_bubble_bounds():
    assert (bubble_bound(4, 5), bubble_bound(4, 5, 3), bubble_bound(1, 1)) == (3 / 8, 3 / 18, 0)


def test_picture_of_one_stage_per_device():
    assert draw(generate("PreferBackward", (0, 1), 2)) == (
        "device 0 |F0|F1|..|..|B0:::|..|B1:::|\n"
        "device 1 |..|F0|B0:::|F1|B1:::|..|..|\n"
    )  # fmt: skip


def test_picture_of_shared_devices_names_the_stages():
    assert draw(generate("PreferForward", (0, 1, 0), 1), 1, 1) == (
        "device 0 |0F0|...|2F0|2B0|...|0B0|\n"
        "device 1 |...|1F0|...|...|1B0|...|\n"
    )  # fmt: skip


def test_columns_are_as_wide_as_the_longest_name():
    first = draw(generate("PreferForward", (0,), 11), 2, 2).split("|")
    assert first[1] == "F0 ::::" and first[11] == "F10::::"


@pytest.mark.parametrize("columns", [(0, 1), (1, 1.5)])
def test_passes_without_whole_columns_are_refused(columns):
    with pytest.raises(ValueError, match="expected whole numbers, 1 or more"):
        draw(TWO_STAGES, *columns)
