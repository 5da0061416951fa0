"""What is in memory while a program runs: buffers, aliases, memory that is taken over, order."""

import pytest

from epl.planner.simulator.engine import SimulatedOp, SimulatedOutput, SimulatedProgram, simulate

NONE = (-1, 0)


def op(
    *inputs, size=0, after=(), alias=-1, in_place=(), temporary=0, device=0, role="a", stores=NONE, persistent=False
):
    """An op of one output of `size` bytes that takes output 0 of the ops `inputs`."""
    output = SimulatedOutput(size, alias, in_place, role, persistent)
    return SimulatedOp(device, 1.0, False, tuple((i, 0) for i in inputs), tuple(after), (output,), temporary, stores)


def peaks(*ops, devices=1, threads=1, fetched=(), collectives=()):
    return simulate(SimulatedProgram(list(ops), (0,) * devices, (threads,), tuple(fetched), tuple(collectives)), "t")


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


def test_ops_that_wait_for_each_other_are_an_error():
    with pytest.raises(ValueError, match="2 of 2 ops"):
        peaks(op(after=[1]), op(after=[0]))
