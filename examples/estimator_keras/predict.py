"""Tells the test images apart by a SavedModel, with plain TensorFlow: python predict.py my_model/export/best."""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import numpy as np
import saved_models
import tensorflow.compat.v1 as tf
from quickstart import digits


def newest(folder: str) -> str:
    """Returns the SavedModel with the largest number in a folder of such.

    Raises:
      ValueError: it holds none.
    """
    numbers = [int(name) for name in os.listdir(folder) if name.isdigit()] if os.path.isdir(folder) else []
    if not numbers:
        raise ValueError(f"{folder} holds no SavedModel: expected a folder with a number, such as {folder}/1600000000.")
    return os.path.join(folder, str(max(numbers)))


def predict(model: str, images: np.ndarray) -> np.ndarray:
    """Returns the digit of each image."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = saved_models.load(session, model)
        return session.run(tensors["digit"], {tensors["image"]: images})


def main(folder: str) -> None:
    """Prints the first answers and the share of right ones."""
    images, labels = digits.images_and_labels("test")
    model = newest(folder)
    found = predict(model, images)
    print(f"{model}: {' '.join(map(str, found[:10]))} ... accuracy {np.mean(found == labels):.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
