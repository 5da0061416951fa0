"""Classifies image files by a SavedModel: plain TensorFlow, without the code of the network.

python examples/image_classification/predict_images.py --saved_model my_export rose.jpg daisy.png
"""

import argparse
import os
import sys
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import saved_models
import tensorflow.compat.v1 as tf


def main(arguments: Any = None) -> None:
    """Prints class and probability of each file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--saved_model", required=True, help="folder of a SavedModel, made by export_images.py")
    parser.add_argument("files", nargs="+", help="JPEG or PNG")
    options = parser.parse_args(arguments)
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = saved_models.load(session, options.saved_model)
        encoded = []
        for path in options.files:
            with open(path, "rb") as source:
                encoded.append(source.read())
        found = session.run([tensors["class"], tensors["probability"]], {tensors["encoded"]: encoded})
    for path, name, probability in zip(options.files, *found):
        print(f"{path}: {name.decode()} {probability:.3f}")


if __name__ == "__main__":
    main()
