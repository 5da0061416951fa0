"""Images in TFRecord files, in the format of the usual ImageNet conversions; and the input pipelines that read them.

A record has `image/encoded` (the JPEG or PNG file as it is) and `image/class/label` (an integer). A data set is a
folder with `<split>-<number>-of-<count>` files and `dataset.json`, which says how many images a split has and what the
classes are, so that training knows its number of steps without reading everything.
"""

import json
import os
import sys
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Tuple

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import tensorflow.compat.v1 as tf

ENCODED = "image/encoded"
LABEL = "image/class/label"
_SUMMARY = "dataset.json"
# Means and deviations of the colours of ImageNet, as everyone uses them; images are in 0..1 before.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_SHUFFLED = 4096  # encoded images held in memory while shuffling
_LOOKED_AT = 0.875  # of the shorter side, in evaluation


class Dataset(NamedTuple):
    """What a folder of records holds.

    Attributes:
      folder: its path.
      classes: their names, by label less `first_label`.
      images: split -> number of images.
      first_label: the label of class 0 in the files; 1 in the usual conversions of ImageNet.
    """

    folder: str
    classes: List[str]
    images: Dict[str, int]
    first_label: int = 0


class Share(NamedTuple):
    """The part of the images that a process reads: those whose number is `index`, counted modulo `count`."""

    count: int = 1
    index: int = 0


EVERYTHING = Share()


def write(folder: str, split: str, images: Iterable[Tuple[bytes, int]], files: int) -> int:
    """Writes encoded images with their labels, dealt over `files` files; returns how many there were."""
    os.makedirs(folder, exist_ok=True)
    names = [os.path.join(folder, f"{split}-{n:05d}-of-{files:05d}") for n in range(files)]
    writers = [tf.io.TFRecordWriter(name) for name in names]
    count = 0
    try:
        for encoded, label in images:
            features = {
                ENCODED: tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
                LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writers[count % files].write(example.SerializeToString())
            count += 1
    finally:
        for writer in writers:
            writer.close()
    return count


def describe(dataset: Dataset) -> None:
    """Writes what a folder holds beside its records."""
    with open(os.path.join(dataset.folder, _SUMMARY), "w", encoding="utf-8") as target:
        json.dump({key: value for key, value in dataset._asdict().items() if key != "folder"}, target, indent=1)


def read_dataset(folder: str) -> Dataset:
    """What a folder of records holds.

    Raises:
      ValueError: it has no description.
    """
    try:
        with open(os.path.join(folder, _SUMMARY), encoding="utf-8") as source:
            return Dataset(folder=folder, **json.load(source))
    except FileNotFoundError:
        raise ValueError(
            "{0}/{1} does not exist, so {0} is no folder of records; make it by prepare_images.py, or for records that "
            "are there already, by prepare_images.py --describe.".format(folder, _SUMMARY)
        ) from None


class Distortion(NamedTuple):
    """How training images are varied.

    Attributes:
      least_area: of the image that is at least looked at, from 0 to 1; 1 looks at all of it.
      flip: whether left and right are exchanged at random.
    """

    least_area: float = 0.08
    flip: bool = True


USUAL = Distortion()


def training_batches(
    dataset: Dataset,
    batch_size: int,
    size: int,
    distortion: Distortion = USUAL,
    share: Share = EVERYTHING,
    seed: int = None,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the next images and labels, without end: random parts of the images, in an order new in every epoch.

    Args:
      dataset: with the split "train".
      batch_size: of the images; an epoch's rest goes into a batch with the beginning of the next one.
      size: height and width of the images, in pixels.
      distortion: how they are varied.
      share: what this process reads.
      seed: repeats an order, and what is cut out.

    Returns:
      float32 [batch_size, size, size, 3], and int32 [batch_size] from 0.
    """
    records = tf.data.TFRecordDataset(_files(dataset, "train")).shard(share.count, share.index)
    records = records.shuffle(_SHUFFLED, seed).repeat()

    def example(record: tf.Tensor) -> Any:
        encoded, label = _parsed(record, dataset)
        image = _resized(_random_part(encoded, distortion.least_area, seed or 0), size)
        return tf.image.random_flip_left_right(image, seed) if distortion.flip else image, label

    images = records.map(example, num_parallel_calls=2).batch(batch_size, drop_remainder=True).prefetch(2)
    return images.make_one_shot_iterator().get_next()


def evaluation_batches(dataset: Dataset, split: str, batch_size: int, size: int) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the next images and labels of one pass over a split; the middle of each image."""
    records = tf.data.TFRecordDataset(_files(dataset, split))

    def example(record: tf.Tensor) -> Any:
        encoded, label = _parsed(record, dataset)
        return middle(encoded, size), label

    return records.map(example, num_parallel_calls=2).batch(batch_size).make_one_shot_iterator().get_next()


def middle(encoded: tf.Tensor, size: int) -> tf.Tensor:
    """The middle of a JPEG or PNG, as evaluation and prediction look at it: float32 [size, size, 3]."""
    return _resized(_middle(encoded), size)


def _files(dataset: Dataset, split: str) -> List[str]:
    files = sorted(tf.io.gfile.glob(os.path.join(dataset.folder, split + "-*-of-*")))
    if not files:
        raise ValueError(f"{dataset.folder} has no files {split}-*-of-*.")
    return files


def _parsed(record: tf.Tensor, dataset: Dataset) -> Tuple[tf.Tensor, tf.Tensor]:
    features = tf.io.parse_single_example(
        record, {ENCODED: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64)}
    )
    return features[ENCODED], tf.cast(features[LABEL], tf.int32) - dataset.first_label


def _part(encoded: tf.Tensor, window: Callable[[tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
    """The window of an image that `window` chooses by its shape; of a JPEG no more is decoded."""

    def of_jpeg() -> tf.Tensor:
        begin, extent = window(tf.image.extract_jpeg_shape(encoded))
        return tf.image.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], extent[:2]], 0), channels=3)

    def of_png() -> tf.Tensor:
        image = tf.image.decode_png(encoded, channels=3)
        begin, extent = window(tf.shape(image))
        return tf.slice(image, begin, extent)

    return tf.cond(tf.image.is_jpeg(encoded), of_jpeg, of_png)


def _random_part(encoded: tf.Tensor, least_area: float, seed: int) -> tf.Tensor:
    def window(shape: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            seed=seed,
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4.0, 4 / 3.0),
            area_range=(least_area, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        return begin, extent

    return _part(encoded, window)


def _middle(encoded: tf.Tensor) -> tf.Tensor:
    """The square in the middle, `_LOOKED_AT` of the shorter side wide."""

    def window(shape: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        side = tf.cast(tf.round(tf.cast(tf.reduce_min(shape[:2]), tf.float32) * _LOOKED_AT), tf.int32)
        begin = tf.concat([(shape[:2] - side) // 2, [0]], 0)
        return begin, tf.stack([side, side, 3])

    return _part(encoded, window)


def _resized(image: tf.Tensor, size: int) -> tf.Tensor:
    """Of the given height and width, with the mean and deviation of ImageNet's colours taken out."""
    image = tf.image.resize_bilinear([image], [size, size])[0] / 255.0
    image.set_shape([size, size, 3])
    return (image - _MEAN) / _DEVIATION
