"""What both training scripts share: the digits, the network, their progress, and the test.

The 1,797 images of handwritten digits (8 x 8 pixels) ship inside scikit-learn; nothing is downloaded.
"""

import json
import os
import sys
from typing import Tuple

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import numpy as np
import progress
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

RESULT = "result.json"


def images_and_labels(part: str) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the images, scaled to [0, 1], and the labels of the "train" or the "test" part."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split((images / 16).astype(np.float32), labels.astype(np.int64), test_size=0.2, random_state=0)
    return (split[0], split[2]) if part == "train" else (split[1], split[3])


def batches(batch_size: int) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the next batch of training images and labels, in an order that is new in every epoch and process."""
    rows = tf.data.Dataset.from_tensor_slices(images_and_labels("train"))
    rows = rows.shuffle(2000).repeat().batch(batch_size, drop_remainder=True)
    return rows.make_one_shot_iterator().get_next()


def network(images: tf.Tensor) -> tf.Tensor:
    """Returns the logits of the ten digits."""
    hidden = tf.layers.dense(images, 128, tf.nn.relu, name="hidden1")
    hidden = tf.layers.dense(hidden, 64, tf.nn.relu, name="hidden2")
    return tf.layers.dense(hidden, 10, name="logits")


class Progress(progress.Progress):
    """Shows the progress; leaves the figures in `<directory>/result.json`."""

    def __init__(self, loss: tf.Tensor, steps: int, batch_size: int, directory: str) -> None:
        super().__init__(loss, steps, batch_size * progress.devices())
        self._directory = directory

    def end(self, session: tf.Session) -> None:
        super().end(session)
        if self.display.steps_per_second:  # not where all steps were there already
            with open(os.path.join(self._directory, RESULT), "w") as stream:
                json.dump({"loss": self.display.loss, "steps_per_second": self.display.steps_per_second}, stream)


def test_accuracy(checkpoint: str) -> float:
    """Returns the share of test images that the network with the weights of a checkpoint gets right."""
    images, labels = images_and_labels("test")
    with tf.Graph().as_default(), tf.Session() as sess:
        predictions = tf.argmax(network(tf.constant(images)), 1)
        tf.train.Saver().restore(sess, checkpoint)
        return float(np.mean(sess.run(predictions) == labels))


def main() -> None:
    """Adds the test to the figures of a training run: digits.py DIRECTORY."""
    path = os.path.join(sys.argv[1], RESULT)
    with open(path) as stream:
        result = json.load(stream)
    gpus = len(tf.config.experimental.list_physical_devices("GPU"))
    result.update(accuracy=test_accuracy(tf.train.latest_checkpoint(sys.argv[1])), gpus=gpus)
    with open(path, "w") as stream:
        json.dump(result, stream)


if __name__ == "__main__":
    main()
