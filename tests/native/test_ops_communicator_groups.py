"""Communicators of groups of ranks: who meets whom, and that they move data side by side."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.communicator_groups import SubCommunicators
from epl.ops.job import Job


def test_each_rank_has_a_group_and_a_rank_in_it():
    groups = SubCommunicators("c", [(0, 2), (1, 3)], [0, 0, 1, 1])
    assert [groups.place(rank) for rank in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [groups.name_at(rank) for rank in range(4)] == ["c/0", "c/1", "c/0", "c/1"]


def test_one_group_is_the_communicator_of_that_name():
    groups = SubCommunicators("c", [(0, 1)], [0, 0])
    assert [groups.name_at(rank) for rank in range(2)] == ["c", "c"]


@pytest.mark.parametrize("members", [[(0, 1), (2, 3)], [(0, 2), (1, 3)]])
def test_groups_reduce_side_by_side(members):
    with Job.start(["localhost:0"], 0), tf.Graph().as_default(), tf.Session() as sess:
        groups = SubCommunicators("side_by_side", members, [0] * 4)
        groups.open(0)
        sums = [
            groups.at(rank).all_reduce(tf.constant(10.0**rank), groups.place(rank).rank, "sum") for rank in range(4)
        ]
        expected = [sum(10.0**other for other in members[groups.place(rank).group]) for rank in range(4)]
        np.testing.assert_array_equal(sess.run(sums), expected)
        groups.close()
