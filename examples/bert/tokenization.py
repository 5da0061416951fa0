"""Text to word pieces, each with the characters of the original text that it came from.

Owns the vocabulary and the two steps of BERT's tokenizer: words (white space, punctuation, CJK characters; optionally
lower case without accents), then the longest known pieces of each word from its left (Wu et al., 2016, section 4.1).
As every piece knows its place, answers need no search to be found in the original text again.
"""

import unicodedata
from functools import lru_cache
from typing import Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

PAD, UNKNOWN, CLASS, SEPARATOR, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = (PAD, UNKNOWN, CLASS, SEPARATOR, MASK)
CONTINUED = "##"  # begins a piece that does not begin a word
MAX_WORD = 200  # characters; longer words are unknown

_SPACE, _DROPPED, _CJK, _PUNCTUATION, _LETTER = range(5)
_CJK_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
# ASCII characters that Unicode calls symbols; to BERT they are punctuation, too.
_SYMBOLS = frozenset("$+<=>^`|~")


_Character = Tuple[str, int, int]  # a character as the vocabulary has it, and its place in the original text


class Token(NamedTuple):
    """A word or a piece of one, and the characters [start, end) of the original text that it stands for."""

    text: str
    start: int
    end: int


class WordPieces:
    """The tokenizer of a vocabulary."""

    def __init__(self, vocabulary: Sequence[str], lower_case: bool = True) -> None:
        """Takes the pieces in the order of their ids.

        Raises:
          ValueError: a piece stands there twice, or a special token is missing.
        """
        self._ids: Dict[str, int] = {piece: number for number, piece in enumerate(vocabulary)}
        self._lower_case = lower_case
        self._cut: Dict[str, Optional[List[str]]] = {}
        if len(self._ids) != len(vocabulary):
            twice = [piece for number, piece in enumerate(vocabulary) if self._ids[piece] != number]
            raise ValueError("pieces that stand in the vocabulary more than once: {}.".format(", ".join(twice[:10])))
        missing = [piece for piece in SPECIAL if piece not in self._ids]
        if missing:
            raise ValueError(
                "the vocabulary of {} pieces lacks {}; expected a vocab.txt of BERT, one piece per line.".format(
                    len(vocabulary), ", ".join(missing)
                )
            )

    def __len__(self) -> int:
        return len(self._ids)

    def tokenize(self, text: str) -> List[Token]:
        """Returns the pieces of a text, in order; a word that has no pieces is one `[UNK]`."""
        found = []
        for word in _words(text, self._lower_case):
            pieces = self._pieces("".join(character for character, _, _ in word))
            if pieces is None:
                found.append(Token(UNKNOWN, word[0][1], word[-1][2]))
                continue
            first = 0
            for piece in pieces:
                last = first + len(piece) - (len(CONTINUED) if first else 0)
                found.append(Token(piece, word[first][1], word[last - 1][2]))
                first = last
        return found

    def id_of(self, piece: str) -> int:
        """Returns the id of a piece that is in the vocabulary."""
        return self._ids[piece]

    def _pieces(self, word: str) -> Optional[List[str]]:
        if word not in self._cut:
            self._cut[word] = longest_pieces(word, self._ids) if len(word) <= MAX_WORD else None
        return self._cut[word]


def read_vocabulary(path: str) -> List[str]:
    """Returns the pieces in a vocabulary file, one per line, in the order of their ids."""
    with open(path, encoding="utf-8") as source:
        return [line.strip() for line in source.read().rstrip("\n").split("\n")]


def longest_pieces(word: str, known: Container[str]) -> Optional[List[str]]:
    """Returns the pieces of a word: from its left, always the longest known one; None if some rest has none."""
    pieces, first = [], 0
    while first < len(word):
        prefix = CONTINUED if first else ""
        for last in range(len(word), first, -1):
            if prefix + word[first:last] in known:
                pieces.append(prefix + word[first:last])
                break
        else:
            return None
        first = last
    return pieces


def words(text: str, lower_case: bool = True) -> List[Token]:
    """Returns the words and punctuation marks of a text, in order."""
    return [
        Token("".join(character for character, _, _ in word), word[0][1], word[-1][2])
        for word in _words(text, lower_case)
    ]


def _words(text: str, lower_case: bool) -> Iterator[List[_Character]]:
    """Yields the characters of each word and punctuation mark."""
    for chunk in _chunks(text):
        word: List[_Character] = []
        for character in _folded(chunk) if lower_case else chunk:
            if _kind(character[0]) in (_PUNCTUATION, _CJK):
                if word:
                    yield word
                    word = []
                yield [character]
            else:
                word.append(character)
        if word:
            yield word


def _chunks(text: str) -> Iterator[List[_Character]]:
    """Yields the characters between white space, without those that are never shown."""
    chunk: List[_Character] = []
    for place, character in enumerate(text):
        kind = _kind(character)
        if kind == _SPACE:
            if chunk:
                yield chunk
                chunk = []
        elif kind != _DROPPED:
            chunk.append((character, place, place + 1))
    if chunk:
        yield chunk


def _folded(chunk: List[_Character]) -> List[_Character]:
    """Returns the characters in lower case and without accents; an accent lies within the place of its letter."""
    string = "".join(character for character, _, _ in chunk)
    # What a letter becomes in lower case may depend on its neighbours (a sigma at the end of a word), but not how many.
    lower = iter(string.lower())
    folded: List[_Character] = []
    for original, start, end in chunk:
        bare = "".join(_bare(next(lower)) for _ in original.lower())
        if not bare and folded:
            folded[-1] = (folded[-1][0], folded[-1][1], end)
        folded.extend((character, start, end) for character in bare)
    return folded


@lru_cache(maxsize=None)
def _bare(character: str) -> str:
    """The character without accents; nothing for an accent."""
    return "".join(part for part in unicodedata.normalize("NFD", character) if unicodedata.category(part) != "Mn")


@lru_cache(maxsize=None)
def _kind(character: str) -> int:
    category, number = unicodedata.category(character), ord(character)
    if character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
        return _SPACE
    if category in ("Cc", "Cf") or number == 0xFFFD:
        return _DROPPED
    if category.startswith("P") or character in _SYMBOLS:
        return _PUNCTUATION
    return _CJK if any(first <= number <= last for first, last in _CJK_RANGES) else _LETTER
