"""Evaluation in training keeps the best checkpoint; a SavedModel takes image files and names their classes."""

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


def test_the_best_checkpoint_is_kept(tmp_path, monkeypatch, capsys):
    measured = {1: 0.5, 2: 0.75, 3: 0.25, 4: 0.75}
    step = [0]
    monkeypatch.setattr(evaluate_images, "evaluate", lambda *_: {"top_1": measured[step[0]]})
    for step[0] in (0, 1, 2, 3, 4):
        # A new one each time: it finds what an earlier run has kept.
        evaluation = evaluate_images.Evaluation(DATASET, str(tmp_path), "test", MODEL)
        with tf.Graph().as_default(), tf.Session() as session:
            tf.Variable(float(step[0]), name="v")
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), step[0])
            evaluation.after_save(session, step[0])
    assert evaluate_images.latest(str(tmp_path / "best")) == str(tmp_path / "best" / "model.ckpt-2")
    assert tf.train.load_checkpoint(str(tmp_path / "best")).get_tensor("v") == 2.0
    assert sorted(path.name for path in (tmp_path / "best").glob("*.index")) == ["model.ckpt-2.index"]
    assert capsys.readouterr().out.splitlines()[1] == "test after step 2: top_1 0.7500"


def test_a_saved_model_names_the_classes_of_files(tmp_path, capsys):
    checkpoint, folder = save(tmp_path, 7), str(tmp_path / "export")
    for _ in range(2):  # the second replaces the first
        export_images.export(DATASET, checkpoint, folder, MODEL)
    files = []
    with tf.Session() as session:
        for name, encode in (("a.png", tf.image.encode_png), ("b.jpg", tf.image.encode_jpeg)):
            files.append(str(tmp_path / name))
            with open(files[-1], "wb") as target:
                target.write(session.run(encode(tf.zeros([20, 30, 3], tf.uint8))))
    predict_images.main(["--model", folder] + files)
    lines = capsys.readouterr().out.splitlines()
    for path, line in zip(files, lines):
        name, probability = line.replace(path + ": ", "").split()
        assert name in DATASET.classes and 0.5 <= float(probability) <= 1.0


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no checkpoint, and no folder with one"):
        evaluate_images.latest(str(tmp_path))
