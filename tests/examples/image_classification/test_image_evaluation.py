"""A SavedModel takes image files and names their classes; what is no checkpoint is refused."""

import argparse

import evaluate_images
import export_images
import image_records
import predict_images
import pytest
import resnet
import tensorflow.compat.v1 as tf

MODEL = argparse.Namespace(depth=18, width=2, image_size=16)
DATASET = image_records.Dataset("records", ["rose", "daisy"], {"train": 4, "test": 2})


def save(folder, step):
    """Saves a checkpoint of a network that was not trained."""
    with tf.Graph().as_default(), tf.Session() as session:
        resnet.logits(resnet.features(tf.zeros([1, 16, 16, 3]), MODEL.depth, MODEL.width, training=False), 2)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(folder / "model.ckpt"), step)


def test_a_saved_model_names_the_classes_of_files(tmp_path, capsys):
    checkpoint, folder = save(tmp_path, 7), str(tmp_path / "export")
    export_images.export(DATASET, checkpoint, folder, MODEL)
    files = []
    with tf.Session() as session:
        for name, encode in (("a.png", tf.image.encode_png), ("b.jpg", tf.image.encode_jpeg)):
            files.append(str(tmp_path / name))
            with open(files[-1], "wb") as target:
                target.write(session.run(encode(tf.zeros([20, 30, 3], tf.uint8))))
    predict_images.main(["--saved_model", folder] + files)
    lines = capsys.readouterr().out.splitlines()
    for path, line in zip(files, lines):
        name, probability = line.replace(path + ": ", "").split()
        assert name in DATASET.classes and 0.5 <= float(probability) <= 1.0


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no checkpoint, and no folder with one"):
        evaluate_images.latest(str(tmp_path))
