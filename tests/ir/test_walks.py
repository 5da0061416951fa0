"""Topological order."""

from epl.ir.walks import topological_order


def order(waits_for):
    """The order of nodes, given what each waits for."""
    return topological_order(
        {node: len(others) for node, others in waits_for.items()},
        lambda node: [other for other, awaited in waits_for.items() for one in awaited if one == node],
    )


def test_nodes_come_after_those_that_they_wait_for_and_else_by_number():
    assert order({0: [], 1: [3], 2: [], 3: [], 4: [0]}) == [0, 2, 3, 1, 4]


def test_a_node_may_wait_for_another_twice():
    assert order({0: [1, 1], 1: []}) == [1, 0]


def test_circles_are_left_out_with_what_is_behind_them():
    assert order({0: [], 1: [2], 2: [1], 3: [2]}) == [0]
