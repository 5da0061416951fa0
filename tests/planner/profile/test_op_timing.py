"""Ops are measured by themselves, forward and backward; what cannot be measured says why."""

import pytest
import tensorflow.compat.v1 as tf

from epl.planner.profile.op_chains import MOST_COPIES, ChainBuilder
from epl.planner.profile.op_timing import NO_TIME, MeasuredDevice, measure, summary
from tests.planner.profile import profiled_ops as ops

CPU = MeasuredDevice("/device:CPU:0", 1, 1e9)


def measured(*signatures, device=CPU):
    return [found for _, found in measure(signatures, device, 0.005)]


def test_an_op_takes_time_forward_and_backward():
    (found,) = measured(ops.matmul(256, 256, 256))
    assert found.problem == "" and found.forward.runs >= 3
    assert 1e-6 < found.forward.seconds < found.backward.seconds


def test_an_op_without_a_gradient_that_is_wanted_takes_no_time_backward():
    (found,) = measured(ops.matmul(256, 256, 256, wanted=(False, False)))
    assert found.forward.seconds > 0 and found.backward == NO_TIME


def test_indices_are_rows_of_the_table():
    first, second, third = measured(ops.gather(1000), ops.gather(3), ops.resource_gather())
    assert first.problem == second.problem == third.problem == ""
    assert third.backward.seconds >= 0


@pytest.mark.long
def test_more_ops_than_a_graph_gets_are_measured_in_order():
    numbers = [number for number, found in measure([ops.matmul(columns=4 + i) for i in range(10)], CPU, 0.001)]
    assert numbers == list(range(10))


@pytest.mark.parametrize(
    "op, device, problem",
    [
        (ops.matmul(4096, 4096, 4096), CPU._replace(memory=1e6), "take more than the 0 MB there are"),
        (ops.pad(), CPU, "the size of an output depends on values that are not known"),
        (ops.matmul()._replace(type="NoSuchOp"), CPU, "NoSuchOp"),
        (ops.matmul()._replace(inputs=ops.gather(9).inputs[:2]), CPU, ""),
        (
            ops.signature("Reshape", [((4,), tf.string)], [((4,), tf.string)], [False]), CPU, "input of string cannot",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_says_why(op, device, problem):
    (found,) = measured(op, device=device)
    assert found.forward is None and found.problem and problem in found.problem


def test_copies_run_one_after_the_other_and_keep_their_outputs():
    builder = ChainBuilder("", 1e9)
    chain = builder.forward(ops.matmul(2, 2, 2))
    assert chain.copies == MOST_COPIES
    copies = [op for op in builder.graph.get_operations() if op.type == "MatMul"]
    assert len(copies) == chain.copies and copies[0] is chain.first
    assert [op.control_inputs for op in copies[1:]] == [[op] for op in copies[:-1]]
    assert {tensor.op for tensor in chain.last.inputs} == set(copies)


def test_the_spread_is_that_of_the_middle_half():
    assert summary([1.0, 2.0, 3.0, 4.0, 100.0, 2.0, 3.0, 3.0]) == (3.0, 1 / 3, 8)
    assert summary([5.0]) == (5.0, 0.0, 1)
