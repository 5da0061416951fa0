"""The launch script trains a network that knows digits: real launcher, training and evaluation."""

import json
import os
import subprocess
import sys

import pytest
import resnet
import tensorflow.compat.v1 as tf

from tests.examples import slurm

SMALL = {"DEPTH": "18", "WIDTH": "8", "IMAGE_SIZE": "16"}


def run(folder, command, settings):
    """Runs a command; returns what it printed."""
    env = dict(os.environ, PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="", OUTPUT=str(folder / "run"), **settings)
    done = subprocess.run(
        command, cwd=str(folder), env=env, timeout=1000,
        check=False, universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def figures(printed):
    """What was printed about the test images."""
    return json.loads(printed.strip().split("\n")[-1])


def launch(folder, images_folder, script, options=(), settings=None):
    """Runs a launch script; returns what it printed about the test images."""
    return figures(run(folder, [os.path.join(images_folder, "scripts", script)] + list(options), settings or {}))


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_small_network_learns_digits_and_predicts(tmp_path, images_folder):
    result = launch(tmp_path, images_folder, "split.sh", ["--seed", "1"], dict(SMALL, EPOCHS="8"))
    assert result["images"] == 359 and result["top_1"] > 0.8
    files = [str(path) for path in sorted((tmp_path / "run" / "records" / "images" / "7").glob("*.png"))]
    program = os.path.join(images_folder, "predict_images.py")
    lines = run(tmp_path, [sys.executable, program, "--saved_model", "run/saved_model"] + files, {}).splitlines()
    assert len(lines) == len(files) and sum(": 7 0." in line or ": 7 1." in line for line in lines) > 0.8 * len(files)
    assert list((tmp_path / "run" / "model").glob("events.out.tfevents.*"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_run_the_training_script_and_go_on(tmp_path, images_folder):
    script = os.path.join(images_folder, "scripts", "train_dp.sh")
    launcher = [sys.executable, os.path.join(slurm.ROOT, "tools", "epl-launch"), "--num_workers", "2"]
    command = launcher + ["--gpu_per_worker", "1", script]
    first = run(tmp_path, command, dict(SMALL, EPOCHS="1"))
    assert "step 44 of 44: loss" in first and "evaluated after step 44: top_1" in first and "goes on" not in first
    second = run(tmp_path, command, dict(SMALL, EPOCHS="2"))
    assert "goes on from step 44 of 89" in second and "evaluated after step 89: top_1" in second
    assert "records: 10 classes" in first and "records: 10 classes" not in second  # prepared once


@pytest.mark.long
@pytest.mark.timeout(300)
def test_zero_amp_and_gradient_checkpoint_go_together(tmp_path, images_folder):
    script = os.path.join(images_folder, "scripts", "zero.sh")
    printed = run(tmp_path, [script], dict(SMALL, EPOCHS="0.2", EPL_AMP_DTYPE="float16", EPL_EXPLAIN="1"))
    assert "ZeRO v1: " in printed and "recomputed for" in printed and "_EPL_AMP_float16" in printed


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_slurm_script_trains_one_job(tmp_path):
    folder = slurm.checkout(tmp_path)
    batch = "examples/image_classification/scripts/train.sbatch"
    printed = slurm.sbatch(folder, batch, "train_split.sh", "--seed", "1", **dict(SMALL, EPOCHS="1", OUTPUT="run"))
    assert "0: EPL: 1 replica split over 2 devices = 2 workers" in printed
    assert "0: evaluated after step 44: top_1" in printed and (folder / "run" / "model" / "best").is_dir()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", ["dp.sh", "split.sh", "zero.sh"])
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
