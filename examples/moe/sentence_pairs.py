"""Pairs of sentences: lines of text files to records that are read in every epoch.

Owns both formats. A text file has a pair in each line, with a tab between; further columns, such as where the pair is
from, are left out. Beside the records lies a `.json` with their number and lengths, so that training knows its number
of steps without reading all.
"""

import json
from typing import Iterable, Iterator, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf

_SHUFFLED = 100000  # pairs held in memory while shuffling

Pair = Tuple[List[int], List[int]]


class Summary(NamedTuple):
    """What a record file holds.

    Attributes:
      pairs: how many.
      source_length, target_length: ids in the longest sentences.
      vocabulary: different ids there may be.
    """

    pairs: int
    source_length: int
    target_length: int
    vocabulary: int


def read(path: str, columns: Tuple[int, int] = (0, 1)) -> Iterator[Tuple[str, str]]:
    """Yields the pairs in a text file; empty lines are left out.

    Args:
      path: of the file.
      columns: that of the sentence, and that of its translation.

    Raises:
      ValueError: a line lacks one of the two.
    """
    with open(path, encoding="utf-8") as source:
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            cells = [cell.strip() for cell in line.rstrip("\n").split("\t")]
            if len(cells) <= max(columns) or not all(cells[column] for column in columns):
                raise ValueError(
                    "{}, line {}: {!r} has no sentence in column {} or {}; expected a sentence, a tab, and its "
                    "translation.".format(path, number, line.strip()[:60], *[column + 1 for column in columns])
                )
            yield cells[columns[0]], cells[columns[1]]


def write(path: str, pairs: Iterable[Pair], vocabulary: int) -> Summary:
    """Writes the ids of pairs, and returns what the file holds.

    Raises:
      ValueError: there is no pair.
    """
    lengths: List[Tuple[int, int]] = []
    with tf.io.TFRecordWriter(path) as writer:
        for source, target in pairs:
            features = {"source": _integers(source), "target": _integers(target)}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
            lengths.append((len(source), len(target)))
    if not lengths:
        raise ValueError(f"there are no pairs to write to {path}.")
    found = Summary(len(lengths), *[max(ends) for ends in zip(*lengths)], vocabulary)
    with open(path + ".json", "w", encoding="utf-8") as target_file:
        json.dump(found._asdict(), target_file)
    return found


def summary(path: str) -> Summary:
    """Returns what a record file holds.

    Raises:
      ValueError: it was not made by `write`.
    """
    try:
        with open(path + ".json", encoding="utf-8") as source:
            return Summary(**json.load(source))
    except FileNotFoundError:
        message = "{0}.json does not exist, so {0} is no complete file of records; make it by prepare_pairs.py."
        raise ValueError(message.format(path)) from None


def batches(
    path: str, batch_size: int, workers: int = 1, worker: int = 0, seed: int = None
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids of sentences and of their translations, [batch, longest], filled up with 0; without end.

    Args:
      path: a file that `write` made.
      batch_size: pairs; an epoch's rest goes into a batch with the beginning of the next one.
      workers: processes that read the file, each its share.
      worker: which of them this is.
      seed: repeats an order; it is new in every epoch.
    """
    found = summary(path)
    dataset = tf.data.TFRecordDataset(path).shard(workers, worker)
    dataset = dataset.shuffle(min(_SHUFFLED, found.pairs), seed).repeat().batch(batch_size, drop_remainder=True)
    dataset = dataset.map(lambda records: _parsed(records, batch_size, found)).prefetch(2)
    source, target = dataset.make_one_shot_iterator().get_next()
    return source, target


def _parsed(records: tf.Tensor, batch_size: int, found: Summary) -> Tuple[tf.Tensor, tf.Tensor]:
    values = tf.io.parse_example(records, {name: tf.io.VarLenFeature(tf.int64) for name in ("source", "target")})

    def dense(name: str, length: int) -> tf.Tensor:
        sparse = values[name]
        full = tf.sparse.to_dense(tf.SparseTensor(sparse.indices, sparse.values, [batch_size, length]))
        return tf.cast(tf.reshape(full, [batch_size, length]), tf.int32)

    return dense("source", found.source_length), dense("target", found.target_length)


def _integers(values: Iterable[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
