"""Learns a vocabulary of word pieces from the texts of SQuAD files, for a model that starts from nothing.

    python examples/bert/vocabulary.py --size 800 --output vocab.txt train.json

Owns the learner: pairs of neighbouring pieces are merged, the most frequent first (Sennrich et al., 2016, algorithm 1),
until the size is reached. A published model brings its own vocabulary and needs none of this.

The trainer of the library `tokenizers` decides between equal frequencies by the order of a hash table: five runs of
release 0.12.1 on the small set gave five vocabularies, in each of which 150 of the 800 pieces are others than here.
Workers that prepare their data for themselves must get the same numbers, and a run that is repeated the same losses.
"""

import argparse
import heapq
from collections import Counter, defaultdict
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from squad import read
from tokenization import CONTINUED, SPECIAL, words

_Pair = Tuple[str, str]


def learn(texts: Iterable[str], size: int, lower_case: bool = True) -> List[str]:
    """Returns a vocabulary: the special tokens, the characters of the texts, then merged pieces as they were found.

    Every character is there as the beginning of a word and as its continuation, so that no word made of them is
    unknown. Equal frequencies are decided by the alphabet, so that a text always gives the same vocabulary.

    Args:
      texts: what is learnt from.
      size: pieces in all; fewer come back when nothing is left to merge.
      lower_case: as the tokenizer that will use it.

    Raises:
      ValueError: the size has no room for the characters.
    """
    counts = Counter(word for text in texts for word in words(text, lower_case))
    characters = sorted({character for word in counts for character in word})
    vocabulary = list(SPECIAL) + characters + [CONTINUED + character for character in characters]
    if len(vocabulary) > size:
        message = "the size {} has no room for the {} different characters of the texts; expected {} or more."
        raise ValueError(message.format(size, len(characters), len(vocabulary)))
    pairs = _Pairs(counts)
    seen: Set[str] = set(vocabulary)
    while len(vocabulary) < size:
        pair = pairs.most_frequent()
        if pair is None:
            break
        merged = pair[0] + pair[1][len(CONTINUED) :]
        pairs.merge(pair, merged)
        if merged not in seen:
            seen.add(merged)
            vocabulary.append(merged)
    return vocabulary


class _Pairs:
    """The pairs of neighbouring pieces in words, and how often each occurs, while pieces are merged."""

    def __init__(self, counts: Dict[str, int]) -> None:
        self._words = [[word[0]] + [CONTINUED + character for character in word[1:]] for word in counts]
        self._counts = list(counts.values())
        self._totals: Dict[_Pair, int] = Counter()
        self._where: Dict[_Pair, Set[int]] = defaultdict(set)  # numbers of words
        for number in range(len(self._words)):
            self._count(number, 1)
        # Has an entry with the total of each pair, and others with totals that were.
        self._by_total = [(-total, pair) for pair, total in self._totals.items()]
        heapq.heapify(self._by_total)

    def most_frequent(self) -> Optional[_Pair]:
        """Returns the pair that occurs most often, of several the first one by the alphabet; None if there is none."""
        while self._by_total:
            total, pair = self._by_total[0]
            if 0 < self._totals[pair] == -total:
                return pair
            heapq.heappop(self._by_total)
        return None

    def merge(self, pair: _Pair, merged: str) -> None:
        """Makes one piece of a pair in all words."""
        changed: Set[_Pair] = set()
        for number in list(self._where[pair]):
            changed |= self._count(number, -1)
            self._words[number] = _merge(self._words[number], pair, merged)
            changed |= self._count(number, 1)
        for one in changed:
            heapq.heappush(self._by_total, (-self._totals[one], one))

    def _count(self, number: int, sign: int) -> Set[_Pair]:
        """Adds the pairs of a word, or takes them away; returns them."""
        word = self._words[number]
        pairs = list(zip(word, word[1:]))
        for pair in pairs:
            self._totals[pair] += sign * self._counts[number]
            if sign > 0:
                self._where[pair].add(number)
            else:
                self._where[pair].discard(number)
        return set(pairs)


def _merge(word: List[str], pair: _Pair, merged: str) -> List[str]:
    result: List[str] = []
    rest = iter(range(len(word)))
    for number in rest:
        if tuple(word[number : number + 2]) == pair:
            result.append(merged)
            next(rest)
        else:
            result.append(word[number])
    return result


def main(arguments: Any = None) -> None:
    """Writes a vocabulary file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", nargs="+", help="files of SQuAD v1.1")
    parser.add_argument("--size", type=int, default=30000, help="pieces (default: %(default)s)")
    parser.add_argument("--output", required=True, help="the vocabulary, one piece per line")
    parser.add_argument("--cased", action="store_true", help="keep upper case and accents")
    options = parser.parse_args(arguments)
    questions = [question for path in options.data for question in read(path)]
    texts = sorted({question.passage for question in questions}) + [question.text for question in questions]
    vocabulary = learn(texts, options.size, lower_case=not options.cased)
    with open(options.output, "w", encoding="utf-8") as target:
        target.writelines(piece + "\n" for piece in vocabulary)
    print(f"{len(vocabulary)} pieces from {len(texts)} texts: {options.output}")


if __name__ == "__main__":
    main()
