"""Text to word pieces, each with the characters of the original text that it came from.

The library `tokenizers` does both steps of BERT's tokenizer: words (white space, punctuation, CJK characters; also
lower case without accents), then the longest known pieces of each word from its left (Wu et al., 2016, section 4.1).
As every piece knows its place, answers need no search to be found in the original text again. This module owns the
check of the vocabulary, and that an accent of its own belongs to its letter.

The library makes each character lower case by itself: a Greek sigma at the end of a word becomes an ordinary one.
"""

import unicodedata
from typing import Dict, List, NamedTuple, Sequence

try:
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers
except ImportError as error:
    raise ImportError(
        'BERT and translation need the package tokenizers, an extra of EPL: pip install ".[examples]" in the checkout.'
    ) from error

PAD, UNKNOWN, CLASS, SEPARATOR, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = (PAD, UNKNOWN, CLASS, SEPARATOR, MASK)
CONTINUED = "##"  # begins a piece that does not begin a word
MAX_WORD = 200  # characters; longer words are unknown


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
        self._lower_case = lower_case
        self._tokenizer = tokenizers.Tokenizer(
            models.WordPiece(self._ids, unk_token=UNKNOWN, max_input_chars_per_word=MAX_WORD)
        )
        self._tokenizer.normalizer = _normalizer(lower_case)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def __len__(self) -> int:
        return len(self._ids)

    def tokenize(self, text: str) -> List[Token]:
        """Returns the pieces of a text, in order; a word that has no pieces is one `[UNK]`."""
        found = self._tokenizer.encode(text)
        ends = [_after_accents(text, end) if self._lower_case else end for _, end in found.offsets]
        return [Token(piece, start, end) for piece, (start, _), end in zip(found.tokens, found.offsets, ends)]

    def id_of(self, piece: str) -> int:
        """Returns the id of a piece that is in the vocabulary."""
        return self._ids[piece]


def read_vocabulary(path: str) -> List[str]:
    """Returns the pieces in a vocabulary file, one per line, in the order of their ids."""
    with open(path, encoding="utf-8") as source:
        return [line.strip() for line in source.read().rstrip("\n").split("\n")]


def words(text: str, lower_case: bool = True) -> List[str]:
    """Returns the words and punctuation marks of a text, in order."""
    normal = _normalizer(lower_case).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]


def _normalizer(lower_case: bool) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(lowercase=lower_case, strip_accents=lower_case)


def _after_accents(text: str, end: int) -> int:
    """The place after the accents that stand at a place as characters of their own."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
