"""Cutting a chain of costs: exact, against all cuts tried one by one."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from epl.utils.linear_partition import cut_chain

TIMES = st.lists(st.integers(1, 50), min_size=1, max_size=9)


def all_cuts(times, boundaries, num_stages):
    """(longest stage, sum of boundaries) of every way to cut."""
    for starts in itertools.combinations(range(1, len(times)), num_stages - 1):
        edges = (0,) + starts + (len(times),)
        longest = max(sum(times[a:b]) for a, b in zip(edges, edges[1:]))
        yield longest, sum(boundaries[start - 1] for start in starts)


@given(TIMES, st.data(), st.integers(1, 5), st.sampled_from([0.0, 0.05, 0.5]))
@settings(deadline=None, max_examples=300)
def test_the_cuts_are_the_best_of_all(times, data, num_stages, slack):
    size = len(times) - 1
    boundaries = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    found = cut_chain([float(t) for t in times], boundaries, num_stages, slack)
    ways = list(all_cuts(times, boundaries, num_stages))
    if not ways:
        assert found is None
        return
    limit = min(longest for longest, _ in ways) * (1 + slack)
    cut, longest = min((cut, longest) for longest, cut in ways if longest <= limit)
    assert (found.cut, found.longest) == (cut, longest)


@given(TIMES, st.integers(1, 5))
@settings(deadline=None)
def test_the_cuts_are_what_they_say(times, num_stages):
    found = cut_chain([float(t) for t in times], [1] * (len(times) - 1), num_stages)
    if found is not None:
        edges = found.starts + (len(times),)
        assert edges[0] == 0 and list(edges) == sorted(set(edges)) and len(found.starts) == num_stages
        assert found.longest == max(sum(times[a:b]) for a, b in zip(edges, edges[1:]))
        assert found.cut == num_stages - 1


def test_stages_of_almost_the_same_time_are_cut_where_least_crosses():
    assert cut_chain([10.0, 0.1, 10.0], [7, 1], 2).starts == (0, 2)


def test_a_shorter_stage_wins_over_a_smaller_cut():
    assert cut_chain([10.0, 5.0, 10.0, 5.0], [1, 9, 9], 2).starts == (0, 2)


def test_too_few_elements_cannot_be_cut():
    assert cut_chain([1.0, 1.0], [1], 3) is None
