"""How long devices and links are busy."""

from epl.planner.simulator.engine import simulate
from epl.planner.simulator.occupancy import busy
from tests.planner.simulator.programs import program_of, timed


def busy_of(*ops, **kwargs):
    program = program_of(*ops, **kwargs)
    return busy(program, simulate(program, "t"))


def test_a_device_is_busy_while_it_runs_ops():
    assert busy_of(timed(2), timed(3, 0), timed(4, 1, device=1), devices=2, threads=(1, 1)) == [5, 4]


def test_ops_that_run_at_the_same_time_count_once():
    assert busy_of(timed(2), timed(3), threads=(2,)) == [3]


def test_a_transfer_keeps_its_link_busy_and_not_its_device():
    assert busy_of(timed(2), timed(4, 0, device=1, pool=2), devices=2, threads=(1, 1, 1)) == [2, 0, 4]


def test_a_collective_keeps_the_link_busy_that_its_ranks_name():
    ranks = [timed(2, pool=2), timed(3, device=1, pool=2)]
    assert busy_of(*ranks, devices=2, threads=(1, 1, 1), collectives=[(0, 1)]) == [0, 0, 3]


def test_a_collective_that_names_no_pool_keeps_none_busy():
    ranks = [timed(2), timed(3, device=1)]
    assert busy_of(*ranks, devices=2, threads=(1, 1), collectives=[(0, 1)]) == [0, 0]
