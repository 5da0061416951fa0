"""The plan of buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.ops.bucketing import plan_buckets

DTYPES = st.sampled_from(["float32", "float16", "int64"])
TENSORS = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 10**9)), DTYPES), max_size=60)


@st.composite
def problems(draw):
    tensors = draw(TENSORS)
    order = draw(st.permutations(list(range(len(tensors)))))
    return [size for size, _ in tensors], [dtype for _, dtype in tensors], order, draw(st.integers(1, 12))


@given(problems())
def test_every_tensor_is_in_one_bucket_of_its_dtype(problem):
    sizes, dtypes, order, max_splits = problem
    plan = plan_buckets(sizes, dtypes, order, max_splits)
    assert sorted(t for bucket in plan.buckets for t in bucket.tensors) == list(range(len(sizes)))
    assert all(dtypes[t] == bucket.dtype for bucket in plan.buckets for t in bucket.tensors)


@given(problems())
def test_number_of_buckets(problem):
    sizes, dtypes, order, max_splits = problem
    assert len(plan_buckets(sizes, dtypes, order, max_splits).buckets) <= max(max_splits, len(set(dtypes)))


@given(problems())
def test_filled_and_issued_in_the_order_of_readiness(problem):
    sizes, dtypes, order, max_splits = problem
    ready = {tensor: position for position, tensor in enumerate(order)}
    buckets = plan_buckets(sizes, dtypes, order, max_splits).buckets
    for dtype in set(dtypes):
        filled = [ready[t] for bucket in buckets if bucket.dtype == dtype for t in bucket.tensors]
        assert filled == sorted(filled)
    complete = [max(ready[t] for t in bucket.tensors) for bucket in buckets]
    assert complete == sorted(complete)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60), st.integers(1, 12))
def test_no_bucket_holds_more_than_its_share_and_one_tensor(sizes, max_splits):
    plan = plan_buckets(sizes, ["float32"] * len(sizes), list(range(len(sizes))), max_splits)
    share = sum(sizes) / min(max_splits, len(sizes))
    assert max(bucket.bytes for bucket in plan.buckets) <= share + max(sizes)


@given(problems())
def test_deterministic(problem):
    assert plan_buckets(*problem) == plan_buckets(*problem)


def test_unknown_sizes_count_as_the_mean():
    assert [b.bytes for b in plan_buckets([10, None, 30], ["f"] * 3, [0, 1, 2], 1).buckets] == [60]


def test_equal_tensors_are_shared_out_evenly():
    plan = plan_buckets([100] * 6, ["float32"] * 6, [5, 4, 3, 2, 1, 0], 3)
    assert [bucket.tensors for bucket in plan.buckets] == [(5, 4), (3, 2), (1, 0)]


def test_more_dtypes_than_splits_gives_one_bucket_each():
    assert len(plan_buckets([1, 1, 1], ["a", "b", "c"], [0, 1, 2], 2).buckets) == 3


def test_more_bytes_get_more_buckets():
    plan = plan_buckets([100] * 8 + [1] * 8, ["a"] * 8 + ["b"] * 8, list(range(16)), 5)
    assert [bucket.dtype for bucket in plan.buckets] == ["a"] * 4 + ["b"]


def test_printed_plan_names_dtype_size_and_tensors():
    text = repr(plan_buckets([1024, 1024, 2048], ["float32"] * 3, [0, 1, 2], 2))
    assert text == "2 buckets\n  0: 2 x float32, 2.0 KiB: 0-1\n  1: 1 x float32, 2.0 KiB: 2"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (([1], ["a"], [0], 0), "max_splits is 0"),
        (([1, 2], ["a", "a"], [0, 0], 1), "the order"),
        (([1, 2], ["a"], [0, 1], 1), "1 dtypes"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        plan_buckets(*arguments)
