"""Learns a vocabulary of word pieces from the texts of SQuAD files, for a model that starts from nothing.

    python examples/bert/vocabulary.py --size 800 --output vocab.txt train.json

Owns the learner: pairs of neighbouring pieces are merged, the most frequent first (Sennrich et al., 2016, algorithm 1),
until the size is reached. A published model brings its own vocabulary and needs none of this.
"""

import argparse
from collections import Counter
from typing import Any, Dict, Iterable, List, Set, Tuple

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
    counts = Counter(word.text for text in texts for word in words(text, lower_case))
    characters = sorted({character for word in counts for character in word})
    vocabulary = list(SPECIAL) + characters + [CONTINUED + character for character in characters]
    if len(vocabulary) > size:
        message = "the size {} has no room for the {} different characters of the texts; expected {} or more."
        raise ValueError(message.format(size, len(characters), len(vocabulary)))
    cut = {word: [word[0]] + [CONTINUED + character for character in word[1:]] for word in counts}
    seen: Set[str] = set(vocabulary)
    while len(vocabulary) < size:
        pairs = _pairs(cut, counts)
        if not pairs:
            break
        pair = min(pairs, key=lambda candidate: (-pairs[candidate], candidate))
        merged = pair[0] + pair[1][len(CONTINUED) :]
        for word, pieces in cut.items():
            cut[word] = _merge(pieces, pair, merged)
        if merged not in seen:
            seen.add(merged)
            vocabulary.append(merged)
    return vocabulary


def _pairs(cut: Dict[str, List[str]], counts: Dict[str, int]) -> Dict[_Pair, int]:
    pairs: Dict[_Pair, int] = Counter()
    for word, pieces in cut.items():
        for pair in zip(pieces, pieces[1:]):
            pairs[pair] += counts[word]
    return pairs


def _merge(pieces: List[str], pair: _Pair, merged: str) -> List[str]:
    result: List[str] = []
    rest = iter(range(len(pieces)))
    for number in rest:
        if tuple(pieces[number : number + 2]) == pair:
            result.append(merged)
            next(rest)
        else:
            result.append(pieces[number])
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
