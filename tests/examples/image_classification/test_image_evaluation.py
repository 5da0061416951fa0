"""A SavedModel takes image files and says of them what evaluation says of records."""

import argparse

import export_images
import image_records
import numpy as np
import predict_images
import resnet
import tensorflow.compat.v1 as tf

MODEL = argparse.Namespace(depth=18, width=2, image_size=16)
SEED = 2
DATASET = image_records.Dataset("records", ["rose", "daisy"], {"train": 4, "test": 2})


def save(folder, step):
    """Saves a checkpoint of a network that was not trained, and whose answers differ from image to image."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(SEED)
        resnet.logits(resnet.features(tf.zeros([1, 16, 16, 3]), MODEL.depth, MODEL.width, training=False), 2)
        session.run(tf.global_variables_initializer())
        session.run([v.assign(200.0 * v) for v in tf.trainable_variables() if v.shape.ndims == 2])  # the head
        return tf.train.Saver().save(session, str(folder / "model.ckpt"), step)


def scores(folder, checkpoint):
    """What evaluation makes of the images of a folder of records."""
    dataset = DATASET._replace(folder=folder)
    with tf.Graph().as_default(), tf.Session() as session:
        images, _ = image_records.evaluation_batches(dataset, "test", 2, MODEL.image_size)
        logits = resnet.logits(resnet.features(images, MODEL.depth, MODEL.width, training=False), 2)
        tf.train.Saver().restore(session, checkpoint)
        return session.run(tf.nn.softmax(logits))


def test_a_saved_model_says_of_files_what_evaluation_says_of_records(tmp_path, capsys):
    checkpoint, folder = save(tmp_path, 7), str(tmp_path / "export")
    export_images.export(DATASET, checkpoint, folder, MODEL)
    files, encoded = [], []
    pixels = np.random.RandomState(1).randint(0, 256, [2, 20, 30, 3]).astype(np.uint8)
    with tf.Session() as session:
        for name, encode, image in (("a.png", tf.image.encode_png, 0), ("b.jpg", tf.image.encode_jpeg, 1)):
            files.append(str(tmp_path / name))
            encoded.append(session.run(encode(pixels[image])))
            with open(files[-1], "wb") as target:
                target.write(encoded[-1])
    image_records.write(str(tmp_path / "records"), "test", zip(encoded, [0, 1]), 1)
    predict_images.main(["--saved_model", folder] + files)
    lines = capsys.readouterr().out.splitlines()
    expected = scores(str(tmp_path / "records"), checkpoint)
    assert lines == [f"{path}: {DATASET.classes[row.argmax()]} {row.max():.3f}" for path, row in zip(files, expected)]
    assert np.ptp(expected[:, 0]) > 0.01  # the images are told apart
