"""Windows in record files."""

import numpy as np
import pytest
import records
import squad
import tensorflow.compat.v1 as tf
from squad import Answer, Question, WindowSizes
from tokenization import SPECIAL, WordPieces

SIZES = WindowSizes(8, 2, 1)


@pytest.fixture
def written(tmp_path):
    """Ten windows, told apart by the fourth token, and their file."""
    letters = "abcdefghij"
    pieces = WordPieces(list(SPECIAL) + list(letters))
    questions = [Question(letter, "a", letter + " b", (Answer("b", 2),)) for letter in letters]
    windows = list(squad.windows(questions, pieces, SIZES))
    path = str(tmp_path / "x.tfrecord")
    assert records.write(path, windows, SIZES) == (10, SIZES)
    return path, windows


def read(path, batch_size, count, **arguments):
    """The next `count` batches: (ids, masks, segments), (starts, ends)."""
    batch = records.batches(path, batch_size, **arguments)
    with tf.Session() as session:
        return [session.run(batch) for _ in range(count)]


def keys(batches):
    return [row[3] for inputs, _ in batches for row in inputs.input_ids]


def test_what_is_read_is_what_was_written(written):
    path, windows = written
    expected = {window.input_ids: window for window in windows}
    for inputs, positions in read(path, 2, 5):
        for row in range(2):
            window = expected.pop(tuple(inputs.input_ids[row]))
            assert tuple(inputs.input_mask[row]) == window.input_mask
            assert tuple(inputs.segment_ids[row]) == window.segment_ids
            assert (positions[0][row], positions[1][row]) == (window.start_position, window.end_position) == (4, 4)
    assert not expected


def test_the_summary_tells_how_many(written):
    assert records.summary(written[0]) == records.Summary(10, SIZES)


def test_every_epoch_has_all_windows_in_an_order_of_its_own(written):
    seen = keys(read(written[0], 5, 4, seed=1))
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(5, 15))
    assert seen[:10] != seen[10:]


def test_shares_are_disjoint_and_complete(written):
    shares = []
    for index in range(2):
        with tf.Graph().as_default():
            shares.append(set(keys(read(written[0], 5, 1, share=records.Share(2, index)))))
    assert not shares[0] & shares[1] and len(shares[0] | shares[1]) == 10


def test_batches_have_known_shapes(written):
    inputs, positions = records.batches(written[0], 3)
    assert {tensor.shape.as_list() == [3, 8] for tensor in inputs} == {True}
    assert positions[0].shape.as_list() == [3] and positions[0].dtype == np.int32


def test_a_file_without_summary_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"x.tfrecord.json does not exist, .* make it by prepare.py"):
        records.summary(str(tmp_path / "x.tfrecord"))
