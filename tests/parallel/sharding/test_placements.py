"""Sizes of parts: balanced, or in given ratios."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.parallel.sharding.placements import balanced_sizes, proportional_sizes, shard, shares

RATIOS = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@pytest.mark.parametrize(
    "size, ratios, granularity, sizes",
    [
        (1003, (3, 1), 1, (752, 251)),
        (7, (4, 3), 1, (4, 3)),
        (640, (3, 1), 64, (512, 128)),
        (3, (100, 1, 1), 1, (1, 1, 1)),
        (4, (100, 1, 1), 1, (2, 1, 1)),
        (2, (1, 1, 1), 1, None),
        (10, (3, 1), 4, None),
        (8, (1, 0), 1, (8, 0)),
        (1, (0, 1), 1, (0, 1)),
        (7, (2, 0, 1), 1, (5, 0, 2)),
        (640, (2, 0, 1), 64, (448, 0, 192)),
        (1, (2, 0, 1), 1, None),
    ],
)
def test_sizes_in_ratios(size, ratios, granularity, sizes):
    assert proportional_sizes(size, ratios, granularity) == sizes


@given(st.integers(1, 500), RATIOS)
def test_sizes_add_up_and_are_as_near_as_they_come(size, ratios):
    sizes = proportional_sizes(size, ratios)
    if sizes is None:
        assert size < len(ratios)
        return
    assert sum(sizes) == size and min(sizes) > 0
    exact = [size * ratio / sum(ratios) for ratio in ratios]
    if min(exact) >= 1:
        assert all(abs(one - other) < 1 for one, other in zip(sizes, exact))


@given(st.integers(1, 500), RATIOS, st.integers(0, 6))
def test_a_ratio_of_0_leaves_the_sizes_of_the_others(size, ratios, place):
    sizes = proportional_sizes(size, ratios)
    extended = proportional_sizes(size, ratios[:place] + [0] + ratios[place:])
    assert extended == (None if sizes is None else sizes[:place] + (0,) + sizes[place:])


@given(st.integers(1, 500), st.integers(1, 6), st.integers(1, 4))
def test_equal_ratios_are_balanced_and_sizes_are_their_own_ratios(size, ranks, granularity):
    sizes = balanced_sizes(size, ranks, granularity)
    assert proportional_sizes(size, (1,) * ranks, granularity) == sizes
    if sizes is not None:
        assert proportional_sizes(size, sizes) == sizes


def test_costs_count_balanced_parts_as_equal():
    assert shares(shard(0), 4) == (0.25,) * 4
    assert shares(shard(0, (2, 2, 2, 1)), 4) == (0.25,) * 4
    assert shares(shard(0, (256, 192, 192)), 3) == shares(shard(0), 3)
    assert shares(shard(0, (3, 1)), 2) == (0.75, 0.25)
    assert shares(shard(0, (8, 0)), 2) == (1.0, 0.0)
