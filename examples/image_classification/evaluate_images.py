"""Measures a trained ResNet on the images that were kept for the test: plain TensorFlow, one device.

python examples/image_classification/evaluate_images.py --records records --checkpoint my_model/best
"""

import argparse
import json
from typing import Any, Dict

import image_records  # it finds what all examples share
import resnet
import tensorflow.compat.v1 as tf
from best_checkpoint import find_checkpoint

_BATCH = 100


def evaluate(
    dataset: image_records.Dataset, checkpoint: str, split: str, model: argparse.Namespace
) -> Dict[str, float]:
    """Returns the number of images, and the share of them whose class is the best scored, or one of the best five.

    Args:
      dataset: with the split.
      checkpoint: a folder of checkpoints, or one of them.
      split: which images.
      model: with the attributes depth, width and image_size.

    Raises:
      ValueError: there is no checkpoint, or no such split.
    """
    path = find_checkpoint(checkpoint)
    with tf.Graph().as_default():
        images, labels = image_records.evaluation_batches(dataset, split, _BATCH, model.image_size)
        features = resnet.features(images, model.depth, model.width, training=False)
        scores = resnet.logits(features, len(dataset.classes))
        best = [tf.reduce_sum(tf.cast(tf.nn.in_top_k(scores, labels, k), tf.int64)) for k in (1, 5)]
        counts = [tf.shape(labels, out_type=tf.int64)[0]] + best
        totals = [0, 0, 0]
        with tf.Session() as session:
            tf.train.Saver().restore(session, path)
            while True:
                try:
                    totals = [total + int(count) for total, count in zip(totals, session.run(counts))]
                except tf.errors.OutOfRangeError:
                    break
    return {"images": totals[0], "top_1": totals[1] / totals[0], "top_5": totals[2] / totals[0]}


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds what the network is made of: the same for training, evaluation and export."""
    parser.add_argument("--depth", type=int, default=50, help="of the ResNet (default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="channels of its first group (default: %(default)s)")
    parser.add_argument("--image_size", type=int, default=224, help="height and width (default: %(default)s)")


def main(arguments: Any = None) -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", required=True, help="folder of prepare_images.py")
    parser.add_argument("--checkpoint", required=True, help="folder of the checkpoints, or one of them")
    parser.add_argument("--split", default="test", help="(default: %(default)s)")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    dataset = image_records.read_dataset(options.records)
    print(json.dumps(evaluate(dataset, options.checkpoint, options.split, options), sort_keys=True))


if __name__ == "__main__":
    main()
