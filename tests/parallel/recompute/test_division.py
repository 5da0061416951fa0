"""The cuts of a chain: the dynamic program against every possible division, and the figure that is promised."""

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.parallel.recompute import candidates as recompute_chain
from epl.parallel.recompute.division import Chain, fewest_flops, least_peak


def peak_of(chain, cuts, whole):
    """Bytes alive at once, counted tensor by tensor."""
    starts = [0] + list(cuts) + [len(chain.sizes)]
    segments = list(zip(starts, starts[1:]))
    held = peak = 0
    for number, (start, end) in enumerate(segments):
        kept = own = 0
        for at in range(start, end):
            crosses = chain.last[at] >= end
            kept += chain.sizes[at] if crosses else 0
            own += chain.sizes[at] if chain.saved[at] and not crosses else 0
        peak = max(peak, held + kept + own)
        held += kept + (own if number in whole else 0)
    return peak


def flops_of(chain, cuts, whole):
    """What is computed a second time."""
    starts = [0] + list(cuts) + [len(chain.sizes)]
    return sum(
        sum(chain.flops[start:end])
        for number, (start, end) in enumerate(zip(starts, starts[1:]))
        if number not in whole
    )


def all_cuts(count):
    """Every set of cuts of a chain."""
    for size in range(count):
        for cuts in combinations(range(1, count), size):
            yield cuts


@st.composite
def chains(draw):
    """Chains of up to seven ops with sizes, skips, and ops that the backward pass does not take."""
    count = draw(st.integers(1, 7))
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    last = [draw(st.integers(at, count - 1)) for at in range(count)]
    saved = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    flops = [float(draw(st.integers(0, 9))) for _ in range(count)]
    return Chain(sizes, last, saved, flops)


def equal_layers(count):
    """Layers of one activation each, which the backward pass takes and the next layer too."""
    return Chain([1] * count, [min(at + 1, count - 1) for at in range(count)], [True] * count, [1.0] * count)


@settings(max_examples=60, deadline=None)
@given(chains())
def test_the_peak_is_the_least_of_all_divisions(chain):
    count = len(chain.sizes)
    division = least_peak(chain, range(count))
    best = min(peak_of(chain, cuts, (len(cuts),)) for cuts in all_cuts(count))
    assert division.peak == best
    assert peak_of(chain, division.cuts, division.whole) <= best
    assert division.whole == (len(division.cuts),)


@settings(max_examples=40, deadline=None)
@given(chains(), st.integers(0, 40), st.booleans())
def test_with_a_budget_no_division_recomputes_less(chain, budget, last_is_whole):
    count = len(chain.sizes)
    division = fewest_flops(chain, range(count), budget, last_is_whole)
    possible = []
    for cuts in all_cuts(count):
        for bits in range(2 ** (len(cuts) + 1)):
            whole = [number for number in range(len(cuts) + 1) if bits >> number & 1]
            if (len(cuts) in whole or not last_is_whole) and peak_of(chain, cuts, whole) <= budget:
                possible.append(flops_of(chain, cuts, whole))
    if division is None:
        assert not possible
    else:
        assert division.flops == min(possible) == flops_of(chain, division.cuts, division.whole)
        assert peak_of(chain, division.cuts, division.whole) <= division.peak <= budget


@pytest.mark.parametrize("layers", [4, 16, 64, 100, 500])
def test_a_chain_of_equal_layers_peaks_at_its_optimum(layers):
    chain = equal_layers(layers)
    division = least_peak(chain, recompute_chain.cut_candidates(chain))
    # Segments of k, k - 1, ... 1 layers, one of each kept: the exact optimum; the usual 2 sqrt(L) is more.
    optimum = math.ceil((math.sqrt(8 * layers + 1) - 1) / 2)
    assert division.peak <= 1.1 * optimum
    assert division.peak <= 1.1 * 2 * math.sqrt(layers)
    assert division.flops < layers


def test_fewer_places_to_cut_are_considered_in_a_long_chain():
    assert len(recompute_chain.cut_candidates(equal_layers(3000))) <= recompute_chain.MAX_CANDIDATES + 1


def test_where_less_is_alive_is_a_place_to_cut_in_a_long_chain():
    count = 1000
    chain = Chain([9, 1] * (count // 2), [min(at + 1, count - 1) for at in range(count)], [True] * count, [1.0] * count)
    assert all(cut % 2 == 0 for cut in recompute_chain.cut_candidates(chain))


def test_with_room_for_everything_nothing_is_recomputed():
    assert fewest_flops(equal_layers(8), range(8), 8).flops == 0


def test_a_budget_below_the_least_peak_cannot_be_kept():
    chain = equal_layers(36)
    least = least_peak(chain, range(36)).peak
    assert fewest_flops(chain, range(36), least) is not None
    assert fewest_flops(chain, range(36), least - 1) is None
