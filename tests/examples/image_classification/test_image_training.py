"""The launch script trains a network that knows digits: real launcher, training and evaluation."""

import json
import os
import subprocess
import sys

import pytest
import resnet
import tensorflow.compat.v1 as tf

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def launch(folder, images_folder, script, options=(), settings=None):
    """Runs a launch script; returns what it printed about the test images."""
    env = dict(os.environ, PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="", OUTPUT=str(folder / "run"), **settings or {})
    done = subprocess.run(
        [os.path.join(images_folder, "scripts", script)] + list(options), cwd=str(folder), env=env, timeout=1000,
        check=False, universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.strip().split("\n")[-1])


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_small_network_learns_digits(tmp_path, images_folder):
    settings = {"DEPTH": "18", "WIDTH": "8", "IMAGE_SIZE": "16", "EPOCHS": "8"}
    result = launch(tmp_path, images_folder, "split.sh", ["--seed", "1"], settings)
    assert result["images"] == 359 and result["top_1"] > 0.8


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", ["dp.sh", "split.sh"])
def test_the_scripts_as_they_stand(script, tmp_path, images_folder):
    assert launch(tmp_path, images_folder, script, ["--seed", "1"])["top_1"] > 0.9


CLASSES = 300  # of which the head is large enough to be cut


def write_images(folder):
    """Writes an image to train with and one to test with for each of many classes."""
    with tf.Session() as session:
        data = session.run(tf.image.encode_png(tf.fill([8, 8, 3], tf.constant(90, tf.uint8))))
    for number in range(CLASSES):
        for part in ("train", "test"):
            inside = folder / part / f"class_{number:03d}"
            inside.mkdir(parents=True)
            (inside / "0.png").write_bytes(data)


# Every process of a script shows what EPL decides.
SHOWN = """import logging
logging.getLogger("epl").setLevel(logging.INFO)
logging.getLogger("epl").addHandler(logging.StreamHandler())
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_classes_are_dealt_out_and_folders_and_records_are_real(tmp_path, images_folder):
    """The head is cut; what the split has trained goes on under data parallelism, with records that are there."""
    write_images(tmp_path / "images")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "sitecustomize.py").write_text(SHOWN)
    settings = {"DEPTH": "18", "WIDTH": "8", "IMAGE_SIZE": "16", "BATCH": "16", "EPOCHS": "1"}
    settings["PYTHONPATH"] = str(tmp_path / "shown")
    result = launch(tmp_path, images_folder, "split.sh", ["--seed", "1"], dict(settings, IMAGES="images"))
    assert result["images"] == CLASSES
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").rglob("*") if path.is_file())
    assert "MatMul head/MatMul: full, shard(1: 150+150) -> shard(1: 150+150)" in logs
    reader = tf.train.load_checkpoint(str(tmp_path / "run" / "model"))
    assert reader.get_variable_to_shape_map()["head/kernel"] == [64, CLASSES]
    steps = reader.get_tensor("global_step")
    again = dict(settings, RECORDS="run/records", TEST_SPLIT="train", EPOCHS="2")
    assert launch(tmp_path, images_folder, "dp.sh", ["--seed", "1"], again)["images"] == CLASSES
    assert tf.train.load_checkpoint(str(tmp_path / "run" / "model")).get_tensor("global_step") == 2 * steps


@pytest.mark.parametrize("depth,parameters", [(18, 11689512), (50, 25557032)])
def test_the_network_is_the_published_one(depth, parameters):
    features = resnet.features(tf.placeholder(tf.float32, [None, 224, 224, 3]), depth, 64, training=True)
    resnet.logits(features, 1000)
    assert sum(v.shape.num_elements() for v in tf.trainable_variables()) == parameters


def test_a_depth_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no ResNet-20; depths are 18, 34, 50, 101, 152"):
        resnet.features(tf.zeros([1, 32, 32, 3]), 20, 64, training=True)
