"""Sentences to numbers and back: word pieces, by the tokenizer and the learner of examples/bert.

Upper case and accents stay. What a vocabulary needs beside its pieces is that [PAD] is its first. Sentences are put
together here: of the 472 of the small set 461 come back as they were, 323 by the decoder of the library `tokenizers`.
"""

import os
import sys
from typing import Iterable, List, Sequence

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bert"))

from tokenization import CONTINUED, PAD, SEPARATOR, WordPieces, read_vocabulary
from vocabulary import learn

_NO_SPACE_BEFORE = frozenset(".,;:!?)")


class Subwords:
    """The pieces of a vocabulary.

    Attributes:
      end: the id that ends a sentence.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        """Takes the pieces in the order of their ids.

        Raises:
          ValueError: they are no vocabulary of word pieces, or [PAD] is not the first.
        """
        if not vocabulary or vocabulary[0] != PAD:
            raise ValueError(f"the first piece is {list(vocabulary[:1])!r}; expected {PAD}.")
        self._pieces = list(vocabulary)
        self._tokenizer = WordPieces(vocabulary, lower_case=False)
        self.end = self._tokenizer.id_of(SEPARATOR)

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> List[int]:
        """Returns the ids of a sentence, with that of its end."""
        return [self._tokenizer.id_of(token.text) for token in self._tokenizer.tokenize(text)] + [self.end]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the sentence of ids, up to its end; marks stand behind words without a space."""
        text = ""
        for number in ids:
            if number == self.end:
                break
            piece = self._pieces[number]
            if piece.startswith(CONTINUED):
                text += piece[len(CONTINUED) :]
            else:
                text += piece if not text or piece in _NO_SPACE_BEFORE else " " + piece
        return text


def read_subwords(path: str) -> Subwords:
    """Returns the pieces in a vocabulary file, one per line."""
    return Subwords(read_vocabulary(path))


def learn_subwords(sentences: Iterable[str], size: int) -> List[str]:
    """Returns a vocabulary of at most so many pieces for the sentences of both languages."""
    return learn(sentences, size, lower_case=False)
