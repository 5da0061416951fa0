"""Rows for devices of different speed and memory: row counts, memory, and the best end there is."""

import itertools
import random

import pytest

from epl.planner.search.rows_by_speed import RowLoad, most_rows, share_rows
from epl.utils.errors import PlanError


def load(per_row, fixed=0.0, memory=(0.0, 0.0), limit=None):
    return RowLoad((fixed, per_row), memory, limit, "device")


def end(loads, rows):
    return max(one.seconds[0] + one.seconds[1] * count for one, count in zip(loads, rows))


def random_case(random_, devices, rows):
    loads = []
    for number in range(devices):
        limit = random_.choice([None, random_.uniform(0, 30), random_.uniform(5, 60)])
        memory = (random_.uniform(0, 6), random_.choice([0.0, random_.uniform(0.5, 4)]))
        seconds = (random_.uniform(0, 3), random_.choice([0.5, 1.0, 2.0, random_.uniform(0.1, 5)]))
        loads.append(RowLoad(seconds, memory, limit, f"device {number}"))
    return loads, rows


def fits(loads, rows, granule=1):
    return all(
        count >= granule and (one.limit is None or one.memory[0] + one.memory[1] * count <= one.limit * (1 + 1e-12))
        for one, count in zip(loads, rows)
    )


def test_rows_follow_the_speed():
    assert share_rows(9, [load(1.0), load(0.5)]) == (3, 6)
    assert share_rows(8, [load(1.0), load(1.0), load(0.5), load(0.25)]) == (1, 1, 2, 4)
    assert share_rows(32, [load(1.0)] * 4) == (8, 8, 8, 8)


def test_what_does_not_shrink_with_the_rows_counts_apart():
    assert share_rows(10, [load(1.0, fixed=4.0), load(1.0)]) == (3, 7)
    assert most_rows(load(1.0, memory=(10.0, 2.0), limit=15.0), 100) == 2
    assert share_rows(10, [load(0.1, memory=(10.0, 2.0), limit=15.0), load(1.0)]) == (2, 8)


def test_rows_come_in_granules():
    assert share_rows(16, [load(1.0), load(0.3)], granule=4) == (4, 12)
    with pytest.raises(PlanError, match="10 rows cannot be shared out in multiples of 4 to 2 replicas"):
        share_rows(10, [load(1.0), load(1.0)], granule=4)
    with pytest.raises(PlanError, match="2 rows .* to 3 replicas"):
        share_rows(2, [load(1.0)] * 3)


def test_what_does_not_fit_is_told():
    with pytest.raises(PlanError, match=r"does not fit with any rows: device lacks 2 bytes for 1 row\(s\)"):
        share_rows(4, [load(1.0, memory=(10.0, 2.0), limit=10.0), load(1.0)])
    with pytest.raises(PlanError, match="memory for 5 of the 6 rows of a batch: device for 2; device for 3"):
        share_rows(6, [load(1.0, memory=(0.0, 2.0), limit=5.0), load(1.0, memory=(0.0, 1.0), limit=3.0)])
    with pytest.raises(PlanError, match="and 3 others"):
        share_rows(7, [load(1.0, memory=(9.0, 0.0), limit=1.0)] * 7)


def test_a_thousand_random_cases_keep_rows_and_memory_and_end_within_a_row_of_the_bound():
    random_ = random.Random(0)
    solved = 0
    for _ in range(1000):
        loads, rows = random_case(random_, random_.randint(1, 16), random_.randint(1, 200))
        try:
            given = share_rows(rows, loads)
        except PlanError:
            assert (
                len(loads) > rows
                or sum(max(most_rows(one, rows), -rows) for one in loads) < rows
                or any(most_rows(one, rows) < 1 for one in loads)
            )
            continue
        solved += 1
        assert sum(given) == rows and fits(loads, given)
        # No device could take the last row of the one that ends last and end a row's time earlier.
        last = max(range(len(loads)), key=lambda at: loads[at].seconds[0] + loads[at].seconds[1] * given[at])
        for other, count in enumerate(given):
            if other != last and given[last] > 1 and most_rows(loads[other], rows) > count:
                moved = [n + (at == other) - (at == last) for at, n in enumerate(given)]
                assert end(loads, moved) >= end(loads, given) - 1e-12
    assert solved > 200


def test_the_end_is_that_of_an_exhaustive_search():
    random_ = random.Random(1)
    for _ in range(200):
        loads, rows = random_case(random_, random_.randint(1, 4), random_.randint(1, 12))
        everything = itertools.product(range(1, rows + 1), repeat=len(loads))
        possible = [given for given in everything if sum(given) == rows and fits(loads, given)]
        try:
            given = share_rows(rows, loads)
        except PlanError:
            assert not possible
        else:
            assert end(loads, given) == pytest.approx(min(end(loads, one) for one in possible), rel=1e-12)
