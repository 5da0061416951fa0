"""The engine against the simulator of pipeline schedules (`epl/parallel/plan/schedule_simulator.py`)."""

import random

import pytest

from epl.parallel.plan.schedule import Action
from epl.parallel.plan.schedule_generators import GENERATORS, generate
from epl.parallel.plan.schedule_simulator import simulate as simulate_schedule
from epl.planner.simulator.engine import simulate
from tests.planner.simulator.programs import program_of_schedule


def random_schedule(seed):
    """A schedule, seconds of forward and backward passes and of transfers, and a data flow."""
    r = random.Random(seed)
    num_stages = r.randint(1, 8)
    chosen = [r.randrange(8) for _ in range(num_stages)]
    used = r.sample(sorted(set(chosen)), len(set(chosen)))
    schedule = generate(r.choice(sorted(GENERATORS)), [used.index(device) for device in chosen], r.randint(1, 12))
    times = [[r.choice([0.0, r.random(), r.random(), 1.0]) for _ in range(num_stages)] for _ in "FB"]
    pairs = [(a, b) for b in range(num_stages) for a in range(b)]
    flow = None if r.random() < 0.7 else r.sample(pairs, r.randint(0, len(pairs)))
    return schedule, times[0], times[1], r.choice([0.0, 0.1 * r.random(), r.random()]), flow


@pytest.mark.parametrize("part", range(4))
def test_starts_and_ends_are_those_of_the_simulator_of_schedules(part):
    for seed in range(50 * part, 50 * part + 50):
        schedule, forward, backward, transfer, flow = random_schedule(seed)
        expected = simulate_schedule(schedule, forward, backward, transfer, flow)
        program, number = program_of_schedule(schedule, forward, backward, transfer, flow)
        run = simulate(program, "temporary")
        for action, op in number.items():
            assert run.starts[op] == pytest.approx(expected.start_s[action], rel=0, abs=1e-9), (seed, str(action))
            assert run.ends[op] == pytest.approx(expected.end_s[action], rel=0, abs=1e-9), (seed, str(action))
        assert run.seconds == pytest.approx(expected.total_s, rel=0, abs=1e-9), seed


def test_transfers_that_share_a_link_take_longer_than_the_simulator_of_schedules_says():
    """It knows no links: in the engine, the forward passes of two stages send one after the other."""
    schedule = generate("PreferForward", (0, 1, 2), 1)
    program, number = program_of_schedule(schedule, [1.0] * 3, [1.0] * 3, 2.0, [(0, 2), (1, 2)])
    shared = program._replace(threads=program.threads[:-1] + (1,))
    last = number[Action(2, "F", 0)]
    assert simulate(program, "temporary").starts[last] == 3
    assert simulate(shared, "temporary").starts[last] == 5
