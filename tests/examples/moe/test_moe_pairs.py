"""Lines of text become records and batches; what is no pair is refused."""

import hashlib
import json
import os

import numpy as np
import prepare_pairs
import pytest
import sentence_pairs
import subwords
import tensorflow.compat.v1 as tf

TEXT = "A house.\tEin Haus.\tfrom me\n\nThe house is old!\tDas Haus ist alt!\tfrom me\nold\talt\tx\n"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def prepare(text, folder, *options):
    prepare_pairs.main(["--pairs", text, "--output", str(folder), "--vocabulary_size", "60"] + list(options))
    return os.path.join(str(folder), prepare_pairs.RECORDS), os.path.join(str(folder), prepare_pairs.VOCABULARY)


def test_pairs_come_back(text, tmp_path):
    path, vocabulary = prepare(text, tmp_path / "out")
    known = subwords.read_subwords(vocabulary)
    assert sentence_pairs.summary(path).pairs == 3 and sentence_pairs.summary(path).vocabulary == len(known)
    batch = sentence_pairs.batches(path, 3, seed=1)
    with tf.Session() as session:
        for _ in range(2):
            source, target = session.run(batch)
            pairs = {(known.decode(row), known.decode(other)) for row, other in zip(source, target)}
            assert pairs == set(sentence_pairs.read(text))
    assert batch[0].shape.as_list() == [3, sentence_pairs.summary(path).source_length]


def test_workers_read_different_pairs(text, tmp_path):
    path, _ = prepare(text, tmp_path / "out")
    shares = [sentence_pairs.batches(path, size, workers=2, worker=number) for number, size in enumerate((2, 1))]
    with tf.Session() as session:
        rows = [tuple(row) for source, _ in session.run(shares) for row in source]
    assert len(set(rows)) == 3


def test_columns_can_be_chosen_and_long_pairs_are_left_out(text, tmp_path, capsys):
    path, vocabulary = prepare(text, tmp_path / "out", "--columns", "2", "1", "--max_length", "3")
    assert "2 pairs with more than 3 pieces are left out\n1 pairs" in capsys.readouterr().out
    known = subwords.read_subwords(vocabulary)
    with tf.Session() as session:
        source, target = session.run(sentence_pairs.batches(path, 1))
    assert (known.decode(source[0]), known.decode(target[0])) == ("alt", "old")


def test_a_given_vocabulary_is_taken(text, tmp_path):
    _, first = prepare(text, tmp_path / "out")
    _, second = prepare(text, tmp_path / "again", "--vocabulary", first)
    with open(first, encoding="utf-8") as one, open(second, encoding="utf-8") as other:
        assert one.read() == other.read()


def test_lines_that_are_no_pair_are_named(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("a\tb\nonly this\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: 'only this' has no sentence in column 1 or 2"):
        list(sentence_pairs.read(str(path)))


def test_what_holds_no_pairs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there are no pairs"):
        sentence_pairs.write(str(tmp_path / "x"), [], 5)
    with pytest.raises(ValueError, match="no complete file of records"):
        sentence_pairs.summary(str(tmp_path / "y"))
    with pytest.raises(ValueError, match=r"expected \[PAD\]"):
        subwords.Subwords(["a"])


def test_the_small_set_is_made_of_pairs_that_say_where_they_are_from(moe_folder):
    path = os.path.join(moe_folder, "data", "verses.tsv")
    pairs = list(sentence_pairs.read(path))
    assert len(pairs) == len(set(pairs)) == len(list(sentence_pairs.read(path, (0, 2))))
    words = subwords.learn_subwords([text for pair in pairs for text in pair], 400)
    known = subwords.Subwords(words)
    back = [(text, known.decode(known.encode(text))) for pair in pairs for text in pair]
    same = [np.array_equal(text.split(" "), other.split(" ")) for text, other in back]
    assert np.mean(same) > 0.9  # but for hyphens and apostrophes


def test_vocabulary_and_pieces_of_the_small_set(moe_folder):
    """The numbers of a tokenizer in Python that was written for these examples; the library gives the same."""
    pairs = list(sentence_pairs.read(os.path.join(moe_folder, "data", "verses.tsv")))
    sentences = [text for pair in pairs for text in pair]
    vocabulary = subwords.learn_subwords(sentences, 1200)
    known = subwords.Subwords(vocabulary)
    found = [
        hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]
        for of in (vocabulary, list(map(known.encode, sentences)))
    ]
    assert found == ["dd4dcf91d07e2662", "7816aba8b0b6272c"]
