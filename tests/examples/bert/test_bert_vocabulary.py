"""A vocabulary that is learnt."""

import os

import pytest
import vocabulary
from tokenization import SPECIAL, WordPieces, read_vocabulary


def test_the_most_frequent_pair_is_merged_first():
    learnt = vocabulary.learn(["low low lower"], size=5 + 10 + 2)
    assert learnt[-2:] == ["##ow", "low"]


def test_it_stops_when_every_word_is_a_piece():
    learnt = vocabulary.learn(["low lower"], size=1000)
    assert {"low", "lower"} < set(learnt) and len(learnt) < 30


def test_every_word_of_its_characters_has_pieces():
    pieces = WordPieces(vocabulary.learn(["abc"], size=20))
    assert "[UNK]" not in [token.text for token in pieces.tokenize("cab bca")]


def test_of_equally_frequent_pairs_the_first_by_the_alphabet_is_merged():
    assert vocabulary.learn(["cd ab"], size=5 + 8 + 2)[-2:] == ["ab", "cd"]


def test_a_piece_that_occurs_twice_in_a_word_is_merged_twice():
    learnt = vocabulary.learn(["xababab xabab"], size=1000)
    assert learnt[-4:] == ["##ab", "##abab", "xabab", "xababab"]


def test_a_size_below_the_characters_is_refused():
    with pytest.raises(ValueError, match="no room for the 3 different characters .* expected 11 or more"):
        vocabulary.learn(["abc"], size=10)


def test_the_file_that_ships_is_what_its_command_makes(bert_folder, tmp_path):
    data = os.path.join(bert_folder, "data")
    made = str(tmp_path / "vocab.txt")
    vocabulary.main(["--size", "800", "--output", made, os.path.join(data, "small-v1.1.json")])
    assert read_vocabulary(made) == read_vocabulary(os.path.join(data, "vocab.txt"))
    assert read_vocabulary(made)[:5] == list(SPECIAL)
