"""The pipeline strategies (`epl/parallel/plan/schedule_generators.py`): orders, and what all of them keep."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.parallel.plan.schedule import peak_in_flight, sources_of_stages, validate
from epl.parallel.plan.schedule_generators import GENERATORS, generate, in_flight_bound
from epl.parallel.plan.schedule_simulator import bubble_bound, simulate

STRATEGIES = st.sampled_from(sorted(GENERATORS))
EXTRA = {"PreferBackward": 0, "PreferBackwardOptimizer": 1}
IRREGULAR = [(0, 1, 1, 0), (0, 0, 1, 1), (0, 1, 0), (0, 1, 2, 0, 1)]
STAGES, MICRO_BATCHES = st.integers(1, 8), st.integers(1, 16)


@st.composite
def assignments(draw):
    """A device for each of 1 to 8 stages; the devices are numbered as they first appear, or in another order."""
    drawn = draw(st.lists(st.integers(0, 7), min_size=1, max_size=8))
    used = draw(st.permutations(sorted(set(drawn))))
    return tuple(used.index(device) for device in drawn)


def orders(strategy, num_stages, num_micro_batch):
    """Per stage its order, like "F0 F1 B0 B1"."""
    schedule = generate(strategy, range(num_stages), num_micro_batch)
    return [" ".join(str(action)[len(str(action.stage)) :] for action in actions) for actions in schedule.actions]


# The orders of EPL.


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_prefer_forward(num_stages):
    assert orders("PreferForward", num_stages, 4) == ["F0 F1 F2 F3 B0 B1 B2 B3"] * num_stages


@pytest.mark.parametrize(
    "strategy, num_stages, num_micro_batch, expected",
    [
        ("PreferBackward", 2, 4, [
            "F0 F1 B0 F2 B1 F3 B2 B3",
            "F0 B0 F1 B1 F2 B2 F3 B3",
        ]),
        ("PreferBackward", 4, 6, [
            "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
            "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
            "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
        ]),
        ("PreferBackward", 3, 2, ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        ("PreferBackward", 2, 1, ["F0 B0", "F0 B0"]),
        ("PreferBackwardOptimizer", 2, 4, [
            "F0 F1 F2 B0 F3 B1 B2 B3",
            "F0 B0 F1 B1 F2 B2 F3 B3",
        ]),
        ("PreferBackwardOptimizer", 4, 6, [
            "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
            "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5",
            "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
        ]),
        ("PreferBackwardOptimizer", 1, 2, ["F0 B0 F1 B1"]),
    ],
)  # fmt: skip
def test_one_forward_one_backward(strategy, num_stages, num_micro_batch, expected):
    assert orders(strategy, num_stages, num_micro_batch) == expected


def rules_of_epl(strategy, num_stages, num_micro_batch, stage):
    """The control dependencies of EPL within one stage, pairs of (kind, micro batch)."""
    last = num_micro_batch - 1
    for m in range(1, num_micro_batch):
        if strategy == "PreferForward":
            yield ("F", m - 1), ("F", m)
            yield ("B", m - 1), ("B", m)
            if m == last:
                yield ("F", m), ("B", 0)
        elif stage == num_stages - 1:
            yield ("B", m - 1), ("F", m)
        elif m + stage >= num_stages + EXTRA[strategy]:
            r = m + stage - num_stages - EXTRA[strategy]
            yield ("F", m - 1), ("B", r)
            yield ("B", r), ("F", m)
            if m == last:
                yield ("F", m), ("B", r + 1)
        else:
            yield ("F", m - 1), ("F", m)
            yield ("B", num_micro_batch - m - 1), ("B", num_micro_batch - m)


@given(STRATEGIES, STAGES, MICRO_BATCHES)
@settings(deadline=None, max_examples=300)
def test_orders_obey_the_rules_of_epl(strategy, num_stages, num_micro_batch):
    for stage, actions in enumerate(generate(strategy, range(num_stages), num_micro_batch).actions):
        place = {(action.kind, action.micro_batch): index for index, action in enumerate(actions)}
        rules = list(rules_of_epl(strategy, num_stages, num_micro_batch, stage))
        assert [(a, b) for a, b in rules if place[a] >= place[b]] == []


@given(st.sampled_from(sorted(EXTRA)), STAGES, MICRO_BATCHES)
@settings(deadline=None, max_examples=300)
def test_the_rules_of_epl_leave_no_other_order(strategy, num_stages, num_micro_batch):
    """Where there are enough micro batches; neighbours in an order follow from a rule, or from forward to backward."""
    for stage, actions in enumerate(generate(strategy, range(num_stages), num_micro_batch).actions):
        if num_micro_batch > in_flight_bound(num_stages, EXTRA[strategy])[stage]:
            rules = set(rules_of_epl(strategy, num_stages, num_micro_batch, stage))
            steps = [(action.kind, action.micro_batch) for action in actions]
            free = [(a, b) for a, b in zip(steps, steps[1:]) if (a, b) not in rules and a[1] != b[1]]
            assert free == []


# What holds for all.


@given(STRATEGIES, assignments(), MICRO_BATCHES)
@settings(deadline=None, max_examples=300)
def test_every_schedule_is_valid(strategy, device_of_stage, num_micro_batch):
    schedule = generate(strategy, device_of_stage, num_micro_batch)
    validate(schedule)
    assert schedule[:3] == (strategy, num_micro_batch, device_of_stage)


@given(STRATEGIES, assignments(), MICRO_BATCHES, st.data())
@settings(deadline=None)
def test_every_schedule_serves_any_data_flow(strategy, device_of_stage, num_micro_batch, data):
    stages = range(len(device_of_stage))
    pairs = [(a, b) for b in stages for a in range(b)]
    flow = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    validate(generate(strategy, device_of_stage, num_micro_batch), dependencies=flow)


@given(st.sampled_from(sorted(EXTRA)), STAGES, MICRO_BATCHES)
@settings(deadline=None)
def test_micro_batches_in_flight_of_one_stage_per_device(strategy, num_stages, num_micro_batch):
    expected = [
        min(num_micro_batch, num_stages - s + EXTRA[strategy] * (s < num_stages - 1)) for s in range(num_stages)
    ]
    assert list(peak_in_flight(generate(strategy, range(num_stages), num_micro_batch))) == expected


@given(assignments(), MICRO_BATCHES)
@settings(deadline=None)
def test_prefer_forward_keeps_all_micro_batches_in_flight(device_of_stage, num_micro_batch):
    schedule = generate("PreferForward", device_of_stage, num_micro_batch)
    assert set(peak_in_flight(schedule)) == {num_micro_batch}


@given(st.integers(1, 8), st.integers(1, 4), MICRO_BATCHES)
@settings(deadline=None, max_examples=300)
def test_strategies_in_order_of_memory_where_stages_are_dealt_round_robin(num_devices, turns, num_micro_batch):
    """Of other assignments only the bounds are in order: how far a stage stays below its own depends on the others."""
    backward, optimizer, forward = (
        peak_in_flight(generate(strategy, list(range(num_devices)) * turns, num_micro_batch))
        for strategy in ("PreferBackward", "PreferBackwardOptimizer", "PreferForward")
    )
    assert all(a <= b <= c for a, b, c in zip(backward, optimizer, forward))


@given(STAGES, MICRO_BATCHES, st.integers(1, 5), st.integers(1, 5))
@settings(deadline=None)
def test_one_forward_one_backward_is_no_slower_than_prefer_forward(num_stages, num_micro_batch, forward, backward):
    slow = simulate(generate("PreferForward", range(num_stages), num_micro_batch), forward, backward)
    for strategy in EXTRA:
        fast = simulate(generate(strategy, range(num_stages), num_micro_batch), forward, backward)
        assert fast.total_s <= slow.total_s + 1e-9


def test_the_devices_of_the_stages_may_be_in_any_order():
    straight, reverse = generate("PreferBackward", (0, 1, 2), 4), generate("PreferBackward", (2, 1, 0), 4)
    assert reverse.actions == straight.actions[::-1]


# Stages that share a device.


def test_prefer_forward_of_shared_devices_goes_stage_by_stage():
    schedule = generate("PreferForward", (0, 1, 0), 2)
    assert [str(action) for action in schedule.actions[0]] == "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1".split()


def test_interleaved_order_of_the_first_device():
    """Two stages for two micro batches each, in turn: figure 4 of Narayanan et al. 2021, for two devices."""
    schedule = generate("PreferBackward", (0, 1, 0, 1), 4)
    expected = "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"
    assert " ".join(str(action) for action in schedule.actions[0]) == expected


def test_interleaved_with_one_more_in_flight_runs_one_forward_pass_ahead_but_on_the_last_device():
    warm_up = [
        "".join(action.kind for action in actions).index("B")
        for strategy in ("PreferBackward", "PreferBackwardOptimizer")
        for actions in generate(strategy, (0, 1, 0, 1), 4).actions
    ]
    assert warm_up == [5, 3, 6, 3]


@given(
    st.sampled_from(sorted(EXTRA)), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12), st.integers(1, 5),
    st.integers(1, 5),
)  # fmt: skip
@settings(deadline=None)
def test_stages_dealt_round_robin_reach_the_bubble_bound(strategy, num_devices, turns, more, forward, backward):
    num_micro_batch = num_devices + more
    schedule = generate(strategy, list(range(num_devices)) * turns, num_micro_batch)
    simulation = simulate(schedule, forward, backward)
    assert simulation.total_s == (turns * num_micro_batch + num_devices - 1) * (forward + backward)
    assert simulation.bubble == pytest.approx([bubble_bound(num_devices, num_micro_batch, turns)] * num_devices)


@given(st.sampled_from(sorted(EXTRA)), assignments(), MICRO_BATCHES)
@settings(deadline=None, max_examples=300)
def test_micro_batches_in_flight_of_irregular_assignments(strategy, device_of_stage, num_micro_batch):
    num_stages, num_devices = len(device_of_stage), max(device_of_stage) + 1
    if device_of_stage != tuple(range(num_devices)) * (num_stages // num_devices):
        bounds = in_flight_bound(num_stages, EXTRA[strategy])
        validate(generate(strategy, device_of_stage, num_micro_batch), max_in_flight=bounds)


@pytest.mark.parametrize("device_of_stage", IRREGULAR)
def test_irregular_assignments_prefer_backward(device_of_stage):
    """No forward pass starts while a later backward pass of its device has all that it reads."""
    schedule = generate("PreferBackward", device_of_stage, 8)
    simulation, sources = simulate(schedule, 1, 2), sources_of_stages(len(device_of_stage))
    for actions in schedule.actions:
        for index, action in enumerate(actions):
            for later in actions[index:]:
                if action.kind == "F" and later.kind == "B":
                    ready = max(simulation.end_s[source] for source in sources.of(later))
                    assert ready > simulation.start_s[action], (str(action), str(later))


@pytest.mark.parametrize("device_of_stage", IRREGULAR)
def test_irregular_assignments_keep_the_fullest_device_busy(device_of_stage):
    simulation = simulate(generate("PreferBackward", device_of_stage, 16), 1, 2)
    (_, most), *_ = collections.Counter(device_of_stage).most_common(1)
    assert simulation.total_s <= 1.25 * 16 * most * 3


# Refusals.


def test_the_strategy_is_found_in_any_case():
    assert generate("preferbackward", (0,), 1).name == "PreferBackward"


def test_an_unknown_strategy_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'Prefer'.*PreferForward, PreferBackward, PreferBackwardOptimizer"):
        generate("Prefer", (0,), 1)


@pytest.mark.parametrize("device_of_stage", [(), (1,), (0, 2), (0, -1)])
def test_devices_without_stages_are_refused(device_of_stage):
    with pytest.raises(ValueError, match="expected (indices from 0 on|one or more)"):
        generate("PreferForward", device_of_stage, 1)


def test_no_micro_batch_is_refused():
    with pytest.raises(ValueError, match="the number of micro batches is 0: expected 1 or more"):
        generate("PreferForward", (0,), 0)
