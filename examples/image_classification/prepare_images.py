"""Makes TFRecord files of images that lie in folders, one folder per class.

    python examples/image_classification/prepare_images.py --images flowers --output records
    python examples/image_classification/prepare_images.py --small --output records
    python examples/image_classification/prepare_images.py --describe imagenet --classes 1000 --first_label 1

`flowers/train/rose/1.jpg` and `flowers/test/rose/2.png` are of class "rose"; where there is no folder for each split, a
part of each class is kept for the split "test". `--small` writes the handwritten digits that come with scikit-learn, as
PNG files, below the output, and takes those. `--describe` adds what is missing to records that are there already.
"""

import argparse
import os
import random
from typing import Any, Dict, Iterator, List, Tuple

import image_records
import tensorflow.compat.v1 as tf

_ENDINGS = (".jpg", ".jpeg", ".png")
_SPLITS = ("train", "test")


def classes_of(folder: str) -> List[str]:
    """Names of the classes: the folders in a folder, by name.

    Raises:
      ValueError: there are none.
    """
    names = sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))
    if not names:
        raise ValueError(f"{folder} holds no folders; images are expected in one folder per class.")
    return names


def images_of(folder: str, classes: List[str]) -> List[Tuple[str, int]]:
    """Path and label of every image.

    Raises:
      ValueError: a folder of no known class, a class without images, or an empty file.
    """
    unknown = sorted(set(classes_of(folder)) - set(classes))
    if unknown:
        raise ValueError("{} has folders of classes that are not trained: {}.".format(folder, ", ".join(unknown)))
    found = []
    for label, name in enumerate(classes):
        inside = os.path.join(folder, name)
        names = sorted(os.listdir(inside)) if os.path.isdir(inside) else []
        paths = [os.path.join(inside, file) for file in names if file.lower().endswith(_ENDINGS)]
        if not paths:
            raise ValueError("{} has no images ({}).".format(inside, ", ".join(_ENDINGS)))
        empty = [path for path in paths if not os.path.getsize(path)]
        if empty:
            raise ValueError(f"{empty[0]} is empty.")
        found += [(path, label) for path in paths]
    return found


def split(images: List[Tuple[str, int]], test_share: float, seed: int) -> Dict[str, List[Tuple[str, int]]]:
    """Keeps a part of each class, at least one image, for the test."""
    by_label: Dict[int, List[Tuple[str, int]]] = {}
    for image in images:
        by_label.setdefault(image[1], []).append(image)
    parts: Dict[str, List[Tuple[str, int]]] = {name: [] for name in _SPLITS}
    for label in sorted(by_label):
        own = by_label[label]
        random.Random(seed).shuffle(own)
        kept = max(1, int(round(test_share * len(own))))
        parts["test"] += own[:kept]
        parts["train"] += own[kept:]
    return parts


def write_digits(folder: str) -> None:
    """Writes scikit-learn's handwritten digits as PNG files of 8 x 8 pixels, one folder per digit."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    with tf.Graph().as_default(), tf.Session() as session:
        pixels = tf.placeholder(tf.uint8, [8, 8, 1])
        encoded = tf.image.encode_png(pixels)
        for number, (image, digit) in enumerate(zip(digits.images, digits.target)):
            inside = os.path.join(folder, str(digit))
            os.makedirs(inside, exist_ok=True)
            values = (image * (255 / 16.0)).round().astype("uint8")[:, :, None]
            with open(os.path.join(inside, f"{number:04d}.png"), "wb") as target:
                target.write(session.run(encoded, {pixels: values}))


def prepare(folder: str, output: str, test_share: float, files: int, seed: int) -> image_records.Dataset:
    """Writes the records of a folder of images, and returns what was written."""
    if os.path.isdir(os.path.join(folder, _SPLITS[0])):
        classes = classes_of(os.path.join(folder, _SPLITS[0]))
        names = [name for name in _SPLITS if os.path.isdir(os.path.join(folder, name))]
        parts = {name: images_of(os.path.join(folder, name), classes) for name in names}
    else:
        classes = classes_of(folder)
        parts = split(images_of(folder, classes), test_share, seed)
    counts = {}
    for name, images in parts.items():
        random.Random(seed).shuffle(images)  # a file's images are not all of one class
        counts[name] = image_records.write(output, name, _read(images), min(files, len(images)))
    dataset = image_records.Dataset(output, classes, counts)
    image_records.describe(dataset)
    return dataset


def describe(folder: str, classes: int, first_label: int) -> image_records.Dataset:
    """Describes records that were made elsewhere, such as a usual conversion of ImageNet; counts their images."""
    names = {os.path.basename(path).split("-")[0] for path in tf.io.gfile.glob(os.path.join(folder, "*-*-of-*"))}
    counts = {
        name: sum(
            1
            for path in tf.io.gfile.glob(os.path.join(folder, name + "-*-of-*"))
            for _ in tf.python_io.tf_record_iterator(path)
        )
        for name in sorted(names)
    }
    if "train" not in counts:
        raise ValueError(f"{folder} has no files train-*-of-*.")
    labels = [str(label) for label in range(first_label, first_label + classes)]
    dataset = image_records.Dataset(folder, labels, counts, first_label)
    image_records.describe(dataset)
    return dataset


def _read(images: List[Tuple[str, int]]) -> Iterator[Tuple[bytes, int]]:
    for path, label in images:
        with open(path, "rb") as source:
            yield source.read(), label


def parse(arguments: Any) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", help="folder with one folder per class, or with train/ and test/ that have them")
    source.add_argument("--small", action="store_true", help="the handwritten digits of scikit-learn")
    source.add_argument("--describe", help="folder of records that are there already")
    parser.add_argument("--output", help="folder of the records")
    parser.add_argument("--test_share", type=float, default=0.2, help="kept for the test (default: %(default)s)")
    parser.add_argument("--files", type=int, default=8, help="per split (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the split (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="for --describe (default: %(default)s)")
    parser.add_argument("--first_label", type=int, default=0, help="for --describe; 1 in most ImageNet records")
    options = parser.parse_args(arguments)
    if not options.describe and not options.output:
        parser.error("--output is missing: the folder of the records.")
    return options


def main(arguments: Any = None) -> None:
    """Prepares the images."""
    options = parse(arguments)
    if options.describe:
        dataset = describe(options.describe, options.classes, options.first_label)
    else:
        folder = options.images
        if options.small:
            folder = os.path.join(options.output, "images")
            write_digits(folder)
        dataset = prepare(folder, options.output, options.test_share, options.files, options.seed)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(dataset.images.items()))
    print(f"{dataset.folder}: {len(dataset.classes)} classes; images: {counts}")


if __name__ == "__main__":
    main()
