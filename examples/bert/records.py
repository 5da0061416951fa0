"""Windows in TFRecord files: written once, read in every epoch.

Owns the format of a record and the input pipeline of training. Beside `x.tfrecord` lies `x.tfrecord.json` with the
number of windows and their sizes, so that training knows its number of steps without reading all.
"""

import json
from typing import Dict, Iterable, NamedTuple, Tuple

import tensorflow.compat.v1 as tf
from model import Inputs
from squad import Window, WindowSizes

_SEQUENCES = Inputs._fields
_POSITIONS = ("start_position", "end_position")
_SHUFFLED = 10000  # windows held in memory while shuffling


class Summary(NamedTuple):
    """What a record file holds."""

    windows: int
    sizes: WindowSizes


class Share(NamedTuple):
    """The part of the windows that a process reads: those whose number is `index`, counted modulo `count`."""

    count: int = 1
    index: int = 0


EVERYTHING = Share()


def write(path: str, windows: Iterable[Window], sizes: WindowSizes) -> Summary:
    """Writes the windows and returns how many there were."""
    count = 0
    with tf.io.TFRecordWriter(path) as writer:
        for window in windows:
            features = {name: _integers(getattr(window, name)) for name in _SEQUENCES}
            features.update((name, _integers([getattr(window, name)])) for name in _POSITIONS)
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
            count += 1
    with open(path + ".json", "w", encoding="utf-8") as target:
        json.dump(dict(sizes._asdict(), windows=count), target)
    return Summary(count, sizes)


def summary(path: str) -> Summary:
    """Returns what a record file holds.

    Raises:
      ValueError: it was not made by `write`.
    """
    try:
        with open(path + ".json", encoding="utf-8") as source:
            values = json.load(source)
    except FileNotFoundError:
        raise ValueError(
            f"{path}.json does not exist, so {path} is no complete file of records; make it by prepare.py."
        ) from None
    return Summary(values.pop("windows"), WindowSizes(**values))


def batches(
    path: str, batch_size: int, share: Share = EVERYTHING, seed: int = None
) -> Tuple[Inputs, Tuple[tf.Tensor, tf.Tensor]]:
    """Returns the next batch and the positions of its answers, without end, in an order that is new in every epoch.

    Args:
      path: a file that `write` made.
      batch_size: windows in a batch; an epoch's rest goes into a batch with the beginning of the next one.
      share: what this process reads.
      seed: repeats an order.
    """
    length = summary(path).sizes.max_seq_length
    dataset = tf.data.TFRecordDataset(path).shard(share.count, share.index)
    dataset = dataset.shuffle(_SHUFFLED, seed).repeat().batch(batch_size, drop_remainder=True)
    dataset = dataset.map(lambda records: _parsed(records, length)).prefetch(2)
    batch = dataset.make_one_shot_iterator().get_next()
    return Inputs(*[batch[name] for name in _SEQUENCES]), (batch[_POSITIONS[0]], batch[_POSITIONS[1]])


def _parsed(records: tf.Tensor, length: int) -> Dict[str, tf.Tensor]:
    shapes = dict([(name, [length]) for name in _SEQUENCES] + [(name, []) for name in _POSITIONS])
    features = {name: tf.io.FixedLenFeature(shape, tf.int64) for name, shape in shapes.items()}
    return {name: tf.cast(value, tf.int32) for name, value in tf.io.parse_example(records, features).items()}


def _integers(values: Iterable[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
