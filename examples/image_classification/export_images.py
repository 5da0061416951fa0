"""Exports a trained ResNet as a SavedModel, which takes JPEG and PNG files as they are: plain TensorFlow.

python examples/image_classification/export_images.py --records records --checkpoint my_model/best --output my_export
"""

import argparse
from typing import Any

import image_records  # it finds what all examples share
import resnet
import saved_models
import tensorflow.compat.v1 as tf
from best_checkpoint import find_checkpoint
from evaluate_images import add_model_options


def export(dataset: image_records.Dataset, checkpoint: str, output: str, model: argparse.Namespace) -> None:
    """Writes a SavedModel.

    Its signature `serving_default` has the input `encoded`, string [n], and the outputs `class`, string [n], and
    `probability`, float32 [n].

    Raises:
      ValueError: there is no checkpoint, or the folder exists.
    """
    path = find_checkpoint(checkpoint)
    with tf.Graph().as_default(), tf.Session() as session:
        encoded = tf.placeholder(tf.string, [None], "encoded")
        images = tf.map_fn(lambda one: image_records.middle(one, model.image_size), encoded, tf.float32)
        features = resnet.features(images, model.depth, model.width, training=False)
        probabilities = tf.nn.softmax(resnet.logits(features, len(dataset.classes)))
        found = {
            "class": tf.gather(tf.constant(dataset.classes), tf.argmax(probabilities, 1)),
            "probability": tf.reduce_max(probabilities, 1),
        }
        tf.train.Saver().restore(session, path)
        saved_models.write(session, output, {"encoded": encoded}, found)


def main(arguments: Any = None) -> None:
    """Exports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", required=True, help="folder of prepare_images.py, which names the classes")
    parser.add_argument("--checkpoint", required=True, help="folder of the checkpoints, or one of them")
    parser.add_argument("--output", required=True, help="folder of the SavedModel")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    export(image_records.read_dataset(options.records), options.checkpoint, options.output, options)
    print(f"SavedModel: {options.output}")


if __name__ == "__main__":
    main()
