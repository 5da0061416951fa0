"""Words and word pieces, and where they stand in the text."""

import pytest
import tokenization
from hypothesis import given
from hypothesis import strategies as st
from tokenization import SPECIAL, WordPieces


def texts(tokens):
    return [token.text for token in tokens]


def pieces(*known):
    return WordPieces(list(SPECIAL) + list(known))


def test_words_are_lower_case_and_without_accents():
    assert texts(tokenization.words("HeLLo Ünïcödé façade")) == ["hello", "unicode", "facade"]


def test_cased_words_keep_case_and_accents():
    assert texts(tokenization.words("HeLLo Ü", lower_case=False)) == ["HeLLo", "Ü"]


def test_punctuation_stands_alone():
    assert texts(tokenization.words("don't (say) $5.00`")) == "don ' t ( say ) $ 5 . 00 `".split()


def test_punctuation_of_other_scripts_stands_alone():
    assert texts(tokenization.words("¿qué? – “so”")) == "¿ que ? – “ so ”".split()


def test_every_chinese_character_is_a_word():
    assert texts(tokenization.words("ah博推zz")) == ["ah", "博", "推", "zz"]


def test_all_kinds_of_white_space_part_words():
    assert texts(tokenization.words("a\tb\nc\u00a0d\u2028e")) == ["a", "b", "c", "d", "e"]


def test_what_is_never_shown_is_left_out():
    assert texts(tokenization.words("a\x00b\u200bc\ufffdd")) == ["abcd"]


def test_a_sigma_at_the_end_of_a_word_is_the_final_one():
    assert texts(tokenization.words("ΟΔΟΣ")) == ["οδος"]


def test_a_letter_that_becomes_two_in_lower_case_keeps_the_places_right():
    text = "İstanbul is"
    assert [text[word.start : word.end] for word in tokenization.words(text)] == ["İstanbul", "is"]


def test_an_accent_of_its_own_belongs_to_the_letter_before():
    text = "cafe\u0301 x"
    word = tokenization.words(text)[0]
    assert (word.text, text[word.start : word.end]) == ("cafe", "cafe\u0301")


@given(st.text())
def test_the_places_of_words_are_in_order_and_hold_the_words(text):
    end = 0
    for word in tokenization.words(text, lower_case=False):
        assert end <= word.start < word.end <= len(text)
        assert set(word.text) <= set(text[word.start : word.end])
        end = word.end


@given(st.text())
def test_lower_case_places_are_in_order(text):
    found = tokenization.words(text)
    assert all(0 <= word.start < word.end <= len(text) for word in found)
    assert all(one.start <= other.start for one, other in zip(found, found[1:]))


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
