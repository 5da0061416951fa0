"""The ops that make a step as long as it is, and why each started when it did."""

import random

import pytest

from epl.planner.simulator.critical_path import StartReason, critical_path
from epl.planner.simulator.engine import simulate
from tests.planner.simulator.programs import program_of, random_program, timed


def path(*ops, **kwargs):
    program = program_of(*ops, **kwargs)
    return [tuple(step) for step in critical_path(program, simulate(program, "t"))]


def test_inputs_and_waits_lead_back_to_the_begin():
    ops = [timed(2), timed(1), timed(3, 0), timed(1, after=[2])]
    assert path(*ops, threads=(2,)) == [(0, "begin", -1), (2, "input", -1), (3, "after", -1)]


def test_of_two_inputs_the_later_one_is_on_the_path():
    assert path(timed(2), timed(3), timed(1, 0, 1), threads=(2,)) == [(1, "begin", -1), (2, "input", -1)]


def test_a_busy_device_is_a_reason():
    assert path(timed(2), timed(3)) == [(0, "begin", -1), (1, "pool", -1)]


def test_a_busy_link_is_a_reason():
    ops = [timed(4, pool=1), timed(1), timed(4, 1, pool=1)]
    assert path(*ops, threads=(1, 1)) == [(0, "begin", -1), (2, "pool", -1)]


def test_a_rank_that_comes_late_is_a_reason():
    ops = [timed(1), timed(3, device=1), timed(2, 0, pool=2), timed(2, 1, device=1, pool=2)]
    found = path(*ops, devices=2, threads=(1, 1, 1), collectives=[(2, 3)])
    assert found == [(1, "begin", -1), (2, "rank", 3)]


def test_a_rank_that_waits_for_its_device_is_a_reason():
    ops = [timed(1), timed(2), timed(2, device=1)]
    assert path(*ops, devices=2, threads=(1, 1), collectives=[(1, 2)]) == [(0, "begin", -1), (1, "pool", -1)]


def test_a_program_without_ops_has_no_path():
    assert path() == []


@pytest.mark.parametrize("part", range(5))
def test_times_of_the_path_add_up_to_the_step(part):
    for seed in range(part * 100, part * 100 + 100):
        program = random_program(random.Random(seed))
        run = simulate(program, "t")
        found = critical_path(program, run)
        assert run.starts[found[0].op] == 0 and found[0].reason == StartReason.BEGIN, seed
        for before, step in zip(found, found[1:]):
            assert run.ends[before.op] == run.starts[step.op] and step.reason != StartReason.BEGIN, seed
        assert run.ends[found[-1].op] == run.seconds, seed
