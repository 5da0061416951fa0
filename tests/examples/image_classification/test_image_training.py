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


@pytest.mark.parametrize("depth,parameters", [(18, 11689512), (50, 25557032)])
def test_the_network_is_the_published_one(depth, parameters):
    features = resnet.features(tf.placeholder(tf.float32, [None, 224, 224, 3]), depth, 64, training=True)
    resnet.logits(features, 1000)
    assert sum(v.shape.num_elements() for v in tf.trainable_variables()) == parameters


def test_a_depth_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no ResNet-20; depths are 18, 34, 50, 101, 152"):
        resnet.features(tf.zeros([1, 32, 32, 3]), 20, 64, training=True)
