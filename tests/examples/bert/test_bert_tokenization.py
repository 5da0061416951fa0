"""Words and word pieces, and where they stand in the text."""

import glob
import hashlib
import json
import os
import re

import pytest
import squad
import tokenization
from hypothesis import given
from hypothesis import strategies as st
from tokenization import SPECIAL, WordPieces

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def texts(tokens):
    return [token.text for token in tokens]


def places(text, *known, lower_case=True):
    """What stands in the text where the pieces are from."""
    found = WordPieces(list(SPECIAL) + list(known), lower_case).tokenize(text)
    return [text[token.start : token.end] for token in found]


def pieces(*known):
    return WordPieces(list(SPECIAL) + list(known))


def test_words_are_lower_case_and_without_accents():
    assert tokenization.words("HeLLo Ünïcödé façade") == ["hello", "unicode", "facade"]


def test_cased_words_keep_case_and_accents():
    assert tokenization.words("HeLLo Ü", lower_case=False) == ["HeLLo", "Ü"]


def test_punctuation_stands_alone():
    assert tokenization.words("don't (say) $5.00`") == "don ' t ( say ) $ 5 . 00 `".split()


def test_punctuation_of_other_scripts_stands_alone():
    assert tokenization.words("¿qué? – “so”") == "¿ que ? – “ so ”".split()


def test_every_chinese_character_is_a_word():
    assert tokenization.words("ah博推zz") == ["ah", "博", "推", "zz"]


def test_all_kinds_of_white_space_part_words():
    assert tokenization.words("a\tb\nc\u00a0d\u2028e") == ["a", "b", "c", "d", "e"]


def test_what_is_never_shown_is_left_out():
    assert tokenization.words("a\x00b\u200bc\ufffdd") == ["abcd"]


def test_a_letter_that_becomes_two_in_lower_case_keeps_the_places_right():
    assert tokenization.words("İstanbul") == ["istanbul"]
    assert places("İstanbul is", "istanbul", "is") == ["İstanbul", "is"]


def test_an_accent_of_its_own_belongs_to_the_letter_before():
    assert places("cafe\u0301 x e\u0323\u0301", "cafe", "x", "e") == ["cafe\u0301", "x", "e\u0323\u0301"]
    assert places("cafe\u0301 x", "cafe\u0301", "x", lower_case=False) == ["cafe\u0301", "x"]


@given(st.text())
def test_places_are_in_order_and_within_the_text(text):
    for lower_case in (True, False):
        end = 0
        for token in WordPieces(SPECIAL, lower_case).tokenize(text):
            assert end <= token.start < token.end <= len(text)
            end = token.end


def test_the_longest_piece_is_taken_first():
    known = pieces("un", "##aff", "##able", "##a", "##f")
    assert texts(known.tokenize("unaffable")) == ["un", "##aff", "##able"]


def test_a_word_with_a_rest_that_has_no_piece_is_unknown():
    assert texts(pieces("un").tokenize("unaffable un")) == ["[UNK]", "un"]


def test_a_very_long_word_is_unknown():
    known = pieces("a", "##a")
    assert len(known.tokenize("a" * 200)) == 200
    assert texts(known.tokenize("a" * 201)) == ["[UNK]"]


def test_pieces_know_their_places():
    text = " Unaffable, no"
    tokens = pieces("un", "##aff", "##able", ",").tokenize(text)
    assert [text[token.start : token.end] for token in tokens] == ["Un", "aff", "able", ",", "no"]


def test_special_tokens_in_a_text_are_no_special_tokens():
    assert "[SEP]" not in texts(pieces("[", "]", "sep").tokenize("a [SEP] b"))


def test_ids_are_the_lines_of_the_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(list(SPECIAL) + ["é", "##a"]) + "\n", encoding="utf-8")
    vocabulary = tokenization.read_vocabulary(str(path))
    assert WordPieces(vocabulary).id_of("##a") == 6 == len(vocabulary) - 1


def test_a_vocabulary_without_a_special_token_is_refused():
    with pytest.raises(ValueError, match=r"lacks \[MASK\]"):
        WordPieces(SPECIAL[:-1])


def test_a_vocabulary_with_a_piece_twice_is_refused():
    with pytest.raises(ValueError, match="more than once: a"):
        WordPieces(list(SPECIAL) + ["a", "a"])


def test_pieces_and_places_of_the_small_set(bert_folder):
    """The numbers of a tokenizer in Python that was written for this example; the library gives the same."""
    data = os.path.join(bert_folder, "data")
    known = WordPieces(tokenization.read_vocabulary(os.path.join(data, "vocab.txt")))
    questions = squad.read(os.path.join(data, "small-v1.1.json"))
    windows = list(squad.windows(questions, known, squad.WindowSizes(128, 64, 24)))
    numbers = [
        [window.input_ids, window.start_position, window.end_position, [token[1:] for token in window.tokens]]
        for window in windows
    ]
    assert len(windows) == 224
    assert hashlib.sha256(json.dumps(numbers).encode()).hexdigest().startswith("660fa680d21fa349")


def test_the_extra_and_all_requirements_pin_one_release():
    with open(os.path.join(ROOT, "setup.py"), encoding="utf-8") as source:
        (pin,) = re.findall(r"'(tokenizers==[\d.]+);", source.read())
    for path in glob.glob(os.path.join(ROOT, "requirements", "py*.txt")):
        with open(path, encoding="utf-8") as source:
            assert f"\n{pin}\n" in source.read(), path
