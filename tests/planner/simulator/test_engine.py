"""What is in memory while a program runs: buffers, aliases, memory that is taken over, order."""

import pytest

from epl.planner.simulator.engine import simulate
from epl.planner.simulator.program import SharedCores, SimulatedOp, SimulatedOutput, SimulatedProgram
from tests.planner.simulator.programs import NONE, program_of, timed


def op(
    *inputs, size=0, after=(), alias=-1, in_place=(), temporary=0, device=0, role="a", stores=NONE, persistent=False
):
    """An op of one output of `size` bytes that takes output 0 of the ops `inputs`."""
    output = SimulatedOutput(size, alias, in_place, role, persistent)
    return SimulatedOp(device, 1.0, False, tuple((i, 0) for i in inputs), tuple(after), (output,), temporary, stores)


def peaks(*ops, devices=1, threads=1, fetched=(), collectives=()):
    program = SimulatedProgram(list(ops), (0,) * devices, (threads,), tuple(fetched), tuple(collectives))
    return simulate(program, "t").peaks


def peak(*ops, **kwargs):
    return peaks(*ops, **kwargs)[0].bytes


def test_a_buffer_is_free_once_its_last_consumer_has_run():
    assert peak(op(size=8), op(0, size=4), op(1, size=2)) == 12


def test_a_buffer_that_is_needed_later_stays():
    assert peak(op(size=8), op(0, size=4), op(1, size=2), op(2, 0, size=1)) == 8 + 4 + 2


def test_what_is_fetched_stays():
    assert peak(op(size=8), op(0, size=4), op(1, size=2), fetched=[0]) == 8 + 4 + 2


def test_an_alias_takes_nothing_and_keeps_its_source():
    assert peak(op(size=8), op(0, size=8, alias=0), op(1, size=4), op(2, size=2)) == 12
    assert peak(op(size=8), op(0, size=8, alias=0), op(size=1, after=[1]), op(2, 1, size=4)) == 8 + 1 + 4


def test_memory_is_taken_over_when_nobody_else_needs_it():
    assert peak(op(size=8), op(0, size=8, in_place=(0,)), op(1, size=1)) == 9
    assert peak(op(size=8), op(0, size=8, in_place=(0,)), op(1, 0, size=1)) == 17
    assert peak(op(size=8), op(0, 0, size=8, in_place=(0, 1))) == 16  # both inputs are the same tensor


def test_persistent_memory_counts_nothing_and_is_not_taken_over():
    assert peak(op(size=0, persistent=True), op(0, size=8, in_place=(0,))) == 8


def test_temporary_memory_is_there_while_the_op_runs():
    found = peaks(op(size=8, temporary=100), op(0, size=4))[0]
    assert found.bytes == 108 and found.by_role == {"a": 8, "t": 100} and found.op == 0


def test_a_stack_grows_until_its_last_consumer_has_run():
    stack = op(size=0)
    push = op(0, 1, size=4, alias=1, stores=(0, 40))
    assert peak(stack, op(size=4), push, op(2, size=1), op(0, size=2, after=[3])) == 4 + 40 + 1


def test_devices_are_counted_by_themselves():
    first, second = peaks(op(size=8), op(0, size=4, device=1), op(1, size=2, device=1), devices=2)
    assert (first.bytes, second.bytes) == (8, 6)


def test_roles_tell_what_is_held_at_the_peak():
    found = peaks(op(size=8, role="x"), op(0, size=4, role="y"))[0]
    assert found.by_role == {"x": 8, "y": 4}


def test_memory_that_is_taken_over_changes_its_role():
    found = peaks(op(size=8, role="x"), op(0, size=8, role="y", in_place=(0,)), op(1, size=1))[0]
    assert found.by_role == {"x": 0, "y": 8, "a": 1}


def test_threads_run_ops_at_the_same_time():
    ops = [op(size=1), op(0, size=8, temporary=50), op(0, size=8, temporary=50)]
    assert peak(*ops, threads=1) < peak(*ops, threads=2) == 1 + 16 + 100


def test_a_collective_begins_with_its_last_rank():
    first, last = op(size=8), op(1, size=8, device=1)
    ops = [first, op(size=4, device=1), last, op(size=50), op(3, size=1)]
    assert peaks(*ops, devices=2)[0].bytes == 50 + 1  # the first rank has run before
    assert peaks(*ops, devices=2, collectives=[(0, 2)])[0].bytes == 8 + 50  # it begins after op 1


def test_a_collective_holds_no_thread():
    ops = [op(size=8), op(size=50), op(1, size=1)]
    assert peak(*ops, threads=1) < peak(*ops, threads=1, collectives=[(0,)]) == 8 + 50


def test_what_a_collective_makes_ready_takes_its_turn():
    # A chain of gathers, each of which is copied: no gather overtakes the copy of the one before.
    ops = [op(size=0)] + [op(size=8, after=[0])]
    ops += [op(1, size=1), op(size=8, after=[1]), op(3, size=1), op(size=8, after=[3]), op(5, size=1)]
    ranks = [(1,), (3,), (5,)]
    assert peak(*ops, collectives=ranks) < 3 * 8


def test_ops_that_wait_for_each_other_are_an_error_that_names_them():
    waits = [op(size=1), op(after=[2]), op(1, after=[0]), op(2)]
    with pytest.raises(ValueError, match="^3 of 4 ops .* op 1, which waits for op 2, which waits for op 1$"):
        peaks(*waits)


def test_collectives_in_another_order_on_another_rank_are_a_circle():
    ops = [op(), op(after=[0]), op(device=1, after=[3]), op(device=1)]
    with pytest.raises(ValueError, match="op 0, which waits for op 2, which waits for op 3, which waits for op 1, "):
        peaks(*ops, devices=2, collectives=[(0, 2), (1, 3)])


def test_of_a_long_circle_some_ops_are_named():
    with pytest.raises(ValueError, match="op 6, which waits for op 5, and so on, over 4 more, for op 0$"):
        peaks(*[op(after=[(i - 1) % 10]) for i in range(10)])


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_an_op_without_a_time_is_refused(seconds):
    with pytest.raises(ValueError, match="op 1 of the program takes .* seconds: expected a number from 0 on"):
        peaks(op(), op()._replace(seconds=seconds))


def test_a_pool_without_threads_is_refused():
    with pytest.raises(ValueError, match="1 or more in each"):
        peaks(op(), threads=0)


# Times.


def run(*ops, **kwargs):
    return simulate(program_of(*ops, **kwargs), "t")


def test_an_op_starts_when_the_last_of_what_it_waits_for_has_ended():
    found = run(timed(2), timed(3), timed(1, 0, after=[1]), threads=(2,))
    assert (found.starts, found.ends, found.seconds) == ([0, 0, 3], [2, 3, 4], 4)
    assert found.causes == [-1, -1, 1]


def test_a_pool_runs_as_many_ops_at_a_time_as_it_has_threads():
    assert run(timed(2), timed(2), timed(2), threads=(1,)).starts == [0, 2, 4]
    assert run(timed(2), timed(2), timed(2), threads=(2,)).starts == [0, 0, 2]


def test_an_op_that_waited_for_a_thread_was_started_by_the_op_that_held_it():
    assert run(timed(2), timed(2)).causes == [-1, 0]


def test_a_program_without_ops_takes_no_time():
    assert run().seconds == 0


def test_the_peak_has_its_moment():
    found = run(timed(2, size=8), timed(3, 0, size=4), timed(1, 1, size=2))
    assert (found.peaks[0].bytes, found.peaks[0].seconds) == (12, 2)


def test_changes_of_memory_are_told_with_time_and_role():
    found = run(timed(2, size=8, role="x"), timed(3, 0, size=4, role="y"))
    assert found.changes == [[(0, "x", 8), (2, "y", 4), (5, "x", -8), (5, "y", -4)]]


def test_a_transfer_holds_its_link_and_not_its_device():
    ops = [timed(1, size=8), timed(5, 0, size=8, device=1, pool=2), timed(4, device=1), timed(1, 1, device=1)]
    found = run(*ops, devices=2, threads=(1, 1, 1))
    assert found.starts == [0, 1, 0, 6]
    assert found.peaks[1].bytes == 8


def test_transfers_over_one_link_follow_each_other_in_order_of_arrival():
    ops = [timed(2), timed(1, device=1)]
    ops += [timed(5, 0, device=1, pool=2), timed(5, 1, pool=2)]
    assert run(*ops, devices=2, threads=(1, 1, 1)).starts[2:] == [6, 1]


def test_a_link_of_two_threads_carries_two_transfers_at_a_time():
    ops = [timed(5, pool=1) for _ in range(3)]
    assert run(*ops, threads=(1, 2)).starts == [0, 0, 5]


def test_a_link_does_not_prefer_what_its_own_transfers_make_ready():
    first = timed(1, pool=1, cheap=True)
    other = timed(1, pool=1)
    follower = timed(1, 0, pool=1, cheap=True)
    assert run(first, other, follower, threads=(1, 1)).starts == [0, 1, 2]


def ranks(*pools, seconds=2.0, inputs=()):
    """Ranks on devices 0, 1, ..., each of which names a pool; rank i takes output 0 of the op inputs[i]."""
    return [
        timed(seconds, *inputs[device : device + 1], size=8, device=device, pool=pool)
        for device, pool in enumerate(pools)
    ]


def test_a_collective_takes_as_long_as_its_longest_rank_and_begins_with_the_last():
    ops = [timed(1), timed(3, device=1), timed(2, 0), timed(4, 1, device=1)]
    found = run(*ops, devices=2, threads=(1, 1), collectives=[(2, 3)])
    assert (found.starts[2:], found.ends[2:], found.causes[2:]) == ([3, 3], [7, 7], [1, 1])


def test_ranks_that_name_a_link_hold_no_thread_of_their_devices():
    found = run(*ranks(2, 2), timed(1), timed(1, device=1), devices=2, threads=(1, 1, 1), collectives=[(0, 1)])
    assert found.starts == [0, 0, 0, 0]


def test_collectives_and_transfers_of_one_link_follow_each_other():
    ops = ranks(2, 2) + ranks(2, 2) + [timed(5, pool=2)]
    found = run(*ops, devices=2, threads=(1, 1, 1), collectives=[(0, 1), (2, 3)])
    assert found.starts == [0, 0, 2, 2, 4]
    assert found.causes == [-1, -1, 1, 1, 3]


def test_a_collective_waits_for_all_its_links_and_then_holds_all():
    busy = timed(5, pool=3)
    after = [timed(1, pool=2), timed(1, pool=3)]  # they came later
    found = run(busy, *ranks(2, 3), *after, devices=2, threads=(1, 1, 1, 1), collectives=[(1, 2)])
    assert found.starts == [0, 5, 5, 7, 7]


def test_collectives_that_share_several_links_do_not_block_each_other():
    ops = ranks(2, 3) + ranks(3, 2)
    found = run(*ops, devices=2, threads=(1, 1, 1, 1), collectives=[(0, 1), (2, 3)])
    assert found.starts == [0, 0, 2, 2]


def test_what_came_after_a_collective_to_one_link_starts_with_it_if_there_is_a_thread():
    busy = timed(5, pool=3)
    waits = timed(1, pool=2)
    found = run(busy, *ranks(2, 3), waits, devices=2, threads=(1, 1, 2, 1), collectives=[(1, 2)])
    assert found.starts == [0, 5, 5, 5] and found.causes[3] == 0


def test_a_rank_that_names_no_pool_comes_when_a_thread_of_its_device_is_free():
    ops = [timed(3)] + ranks(-1, 2)
    found = run(*ops, devices=2, threads=(1, 1, 1), collectives=[(1, 2)])
    assert found.starts == [0, 3, 3]


@pytest.mark.parametrize(
    "loads, ends",
    [
        ((), (2.0, 3.0, 4.0)),
        ((1.0, 1.0), (4.0, 5.0, 6.0)),  # op 1 alone for the last second of 5, then op 2
        ((1.0, 2.0), (6.0, 8.0, 9.0)),  # device 1 stands for two devices
    ],
)
def test_ops_on_the_same_cores_divide_them(loads, ends):
    cores = tuple(SharedCores(7, load) for load in loads)
    ops = (timed(2), timed(3, device=1), timed(1, 1))
    run = simulate(program_of(*ops, devices=2, threads=(1, 1))._replace(cores=cores), "t")
    assert tuple(run.ends) == pytest.approx(ends)


def test_a_link_uses_no_cores():
    cores = (SharedCores(0, 1.0), SharedCores(0, 1.0))
    ops = (timed(2), timed(2, device=1, pool=2))
    run = simulate(program_of(*ops, devices=2, threads=(1, 1, 1))._replace(cores=cores), "t")
    assert run.ends == [2.0, 2.0]
