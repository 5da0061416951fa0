"""The rule that divides a file list over workers (`epl/parallel/io_slicing/shares.py`)."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.parallel.io_slicing.shares import slice_files

JOBS = st.lists(st.integers(1, 6), min_size=1, max_size=5)
FILES = st.integers(0, 60).map(lambda n: [b"f%d" % i for i in range(n)])


def shares(files, replicas, unbalanced=False, drop_last=False):
    """Returns the files of every worker."""
    return [slice_files(files, replicas, w, unbalanced, drop_last).files for w in range(len(replicas))]


def parts_of(replicas):
    unit = next(g for g in range(min(replicas), 0, -1) if not any(r % g for r in replicas))
    return unit, sum(replicas) // unit


@pytest.mark.parametrize(
    "replicas, expected",
    [
        ((1, 1), [b"ace", b"bdf"]),
        ((4, 4), [b"ace", b"bdf"]),
        ((2, 1), [b"abde", b"cf"]),
        ((1, 2), [b"ad", b"bcef"]),
        ((2, 4), [b"ad", b"bcef"]),
        ((3, 3, 3), [b"ad", b"be", b"cf"]),
        ((1, 1, 1, 3), [b"a", b"b", b"c", b"def"]),
    ],
)
def test_even_list(replicas, expected):
    files = [bytes([c]) for c in b"abcdef"]
    assert [b"".join(share) for share in shares(files, replicas)] == expected


def test_remainder_keeps_the_list_whole():
    assert shares([b"a", b"b", b"c"], (1, 1)) == [(b"a", b"b", b"c")] * 2


def test_remainder_unbalanced():
    assert shares([b"a", b"b", b"c"], (1, 1), unbalanced=True) == [(b"a", b"c"), (b"b",)]


def test_remainder_dropped():
    assert shares([b"a", b"b", b"c"], (1, 1), drop_last=True) == [(b"a",), (b"b",)]


def test_unbalanced_wins_over_drop_last():
    assert shares([b"a", b"b", b"c"], (1, 1), unbalanced=True, drop_last=True) == [(b"a", b"c"), (b"b",)]


def test_fewer_files_than_parts_repeat_the_list_by_replicas():
    one, two = shares([b"a", b"b"], (1, 2), unbalanced=True, drop_last=True)
    assert one == (b"a", b"b")
    assert sorted(two) == [b"a", b"a", b"b", b"b"]


def test_reason_names_the_remedy():
    reason = slice_files([b"a", b"b", b"c"], (1, 1), 0, False, False).reason
    assert "3 files" in reason and "2 parts" in reason and "io.unbalanced_io_slicing" in reason


@pytest.mark.parametrize("replicas, worker", [((), 0), ((1, 0), 0), ((1, 1), 2), ((1, 1), -1)])
def test_impossible_job_is_refused(replicas, worker):
    with pytest.raises(ValueError, match="expected"):
        slice_files([b"a"], replicas, worker, False, False)


@given(FILES, JOBS, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_each_file_is_read_once_or_by_all(files, replicas, unbalanced, drop_last):
    unit, parts = parts_of(replicas)
    seen = shares(files, replicas, unbalanced, drop_last)
    counts = Counter(name for share in seen for name in share)
    sliced = len(files) >= parts and (unbalanced or drop_last or len(files) % parts == 0)
    if not sliced:
        for share, count in zip(seen, replicas):
            assert Counter(share) == Counter(files * (count // unit))
    elif drop_last and not unbalanced:
        kept = files[: len(files) - len(files) % parts]
        assert counts == Counter(kept)
    else:
        assert counts == Counter(files)


@given(FILES, JOBS, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_shares_follow_the_replicas(files, replicas, unbalanced, drop_last):
    unit, _ = parts_of(replicas)
    seen = [len(share) for share in shares(files, replicas, unbalanced, drop_last)]
    per_part = [size / (count // unit) for size, count in zip(seen, replicas)]
    if unbalanced:
        assert max(per_part) - min(per_part) <= 1
    else:
        assert len(set(per_part)) == 1


@given(FILES, JOBS, st.booleans(), st.booleans(), st.data())
def test_indices_name_the_files_and_a_second_call_agrees(files, replicas, unbalanced, drop_last, data):
    worker = data.draw(st.integers(0, len(replicas) - 1))
    result = slice_files(files, replicas, worker, unbalanced, drop_last)
    assert result.files == tuple(files[i] for i in result.indices)
    assert result == slice_files(files, replicas, worker, unbalanced, drop_last)
    assert "\n" not in result.reason


@given(FILES, JOBS, st.booleans(), st.booleans())
def test_no_worker_is_left_without_files(files, replicas, unbalanced, drop_last):
    assert all(shares(files, replicas, unbalanced, drop_last)) or not files
