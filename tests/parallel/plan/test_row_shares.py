"""The largest-remainder rule, and the proportions that `auto.balance` asks for."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

import epl
from epl.config.config import Config
from epl.env import Env
from epl.parallel.plan.row_shares import plan_row_shares, reduced, rows_for_all, share_out
from epl.parallel.replication.divide_batches import rows_of_parts
from epl.utils.errors import AnnotationError, PlanError

SHARES = st.lists(st.integers(1, 50), min_size=1, max_size=9)
ROWS = st.integers(0, 5000)


def test_an_example():
    assert share_out(96, [5, 3, 1]) == (53, 32, 11)


@given(ROWS, SHARES)
def test_no_row_is_lost(rows, shares):
    assert sum(share_out(rows, shares)) == rows


@given(ROWS, SHARES)
def test_each_has_its_quota_to_less_than_a_row(rows, shares):
    for own, share in zip(share_out(rows, shares), shares):
        assert abs(own * sum(shares) - rows * share) < sum(shares)


@given(ROWS, SHARES)
def test_each_has_a_row_from_some_number_on(rows, shares):
    assert min(share_out(rows_for_all(shares) + rows, shares)) >= 1


@given(ROWS, SHARES)
def test_a_larger_share_has_no_fewer_rows_and_an_equal_one_has_more_at_a_lower_rank(rows, shares):
    found = share_out(rows, shares)
    for one in range(len(shares)):
        for other in range(one + 1, len(shares)):
            if shares[one] >= shares[other]:
                assert found[one] >= found[other]
            else:
                assert found[one] <= found[other]


@given(st.integers(0, 500), st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_more_rows_of_two_replicas_are_no_fewer_for_either(rows, shares):
    """For more than two the rule has the Alabama paradox: a row more may move another one."""
    for own, before in zip(share_out(rows + 1, shares[:2]), share_out(rows, shares[:2])):
        assert own >= before


@given(ROWS, SHARES, st.integers(1, 9))
def test_only_proportions_count(rows, shares, factor):
    assert share_out(rows, shares) == share_out(rows, [factor * share for share in shares])
    assert reduced(shares) == reduced([factor * share for share in shares])


@given(ROWS, st.integers(1, 9))
def test_equal_shares_are_cut_as_arrays_are(rows, parts):
    assert share_out(rows, [1] * parts) == tuple(map(len, np.array_split(np.zeros(rows), parts)))
    assert reduced([3] * parts) == ()


def test_ops_compute_the_same():
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.placeholder(tf.int64, [])
        for shares in ([5, 3, 1], [1, 1, 2], [7], [2, 9, 9, 4, 2]):
            sizes = rows_of_parts(rows, shares)
            for number in (0, 1, 2, 5, 9, 16, 96, 1000):
                assert tuple(session.run(sizes, {rows: number})) == share_out(number, shares)


def planned(balance, owners=(0, 0, 0), workers=1):
    return plan_row_shares(Config({"auto.balance": balance}), owners, workers)


@pytest.mark.parametrize(
    "balance, expected", [("even", ()), ("5:3:1", (5, 3, 1)), ("10:6:2", (5, 3, 1)), ("4:4:4", ())]
)
def test_what_the_plan_has_of_the_configuration(balance, expected):
    assert planned(balance) == expected


def test_other_numbers_of_proportions_are_refused():
    with pytest.raises(PlanError, match=r'auto.balance is "5:3", proportions for 2 replica\(s\), and the job has 3'):
        planned("5:3")


def test_speed_counts_as_even_until_it_is_decided():
    assert planned("speed") == ()


def test_rows_of_a_worker_before_epl_init():
    with pytest.raises(AnnotationError, match=r"epl.local_rows was called before epl.init\(\)"):
        epl.local_rows(8)


@pytest.mark.parametrize("rows", [8.0, "8", True, None])
def test_rows_of_a_worker_that_are_no_integer(init, rows):
    init(3)
    with pytest.raises(TypeError, match="epl.local_rows expected an integer"):
        epl.local_rows(rows)


@pytest.mark.parametrize("rows", [-1, 0, 2])
def test_rows_that_are_too_few_for_all_workers(init, rows):
    init(3, auto__balance="5:3:1")
    with pytest.raises(PlanError, match=r"shares out .* in the proportions 5:3:1, .* 9 rows are enough for all"):
        epl.local_rows(rows)


def test_one_worker_has_all_rows(init):
    init(3, auto__balance="5:3:1")
    assert epl.local_rows(96) == 96
    assert epl.local_rows(np.int64(9)) == 9


def rows_of_workers(monkeypatch, rows, workers=2):
    """What `epl.local_rows` says in each worker of a job."""
    found = []
    for worker in range(workers):
        monkeypatch.setattr(Env.get(), "cluster", SimpleNamespace(worker_num=workers, worker_index=worker))
        found.append(epl.local_rows(rows))
    return found


@pytest.mark.parametrize("balance, expected", [("5:3:1:1", [77, 19]), ("3:1", [72, 24]), ("even", [48, 48])])
def test_each_worker_has_the_rows_of_its_replicas(init, monkeypatch, balance, expected):
    init(1, auto__balance=balance)
    assert rows_of_workers(monkeypatch, 96) == expected


def test_the_first_workers_have_a_row_more(init, monkeypatch):
    init(1)
    assert rows_of_workers(monkeypatch, 97) == [49, 48]


def test_replicas_that_are_not_as_many_on_each_worker(init, monkeypatch):
    init(1, auto__balance="5:3:1")
    with pytest.raises(PlanError, match="the job has 2 workers: epl.local_rows needs as many replicas on each"):
        rows_of_workers(monkeypatch, 96)


def test_replicas_that_are_not_where_they_were_counted(init):
    init(2, auto__balance="2:1")
    assert planned("2:1", (0, 0), 2) == (2, 1)
    epl.local_rows(9)
    assert planned("2:1", (0, 1), 2) == (2, 1)
    with pytest.raises(PlanError, match="counted replicas on workers 0, 1, by rank, and the model has them on .* 0, 0"):
        planned("2:1", (0, 0), 2)


def test_rows_of_a_worker_before_speed_is_decided(init):
    init(2, auto__balance="speed")
    with pytest.raises(PlanError, match='auto.balance is "speed", and EPL shares out the rows when'):
        epl.local_rows(8)
