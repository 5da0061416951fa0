"""TensorBoard shows what epl.StepStatsHook writes: by its HTTP interface and in a browser, and in docs/tensorboard.md.

    make test-long ARGS="tests/docs/test_tensorboard.py --update-pictures"

makes the picture of the page anew.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.docs import browser
from tests.parallel.in_process import init  # noqa: F401

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PICTURE = os.path.join(ROOT, "docs", "tensorboard.png")
SIZE = (1480, 760)  # three curves in a row
LARGEST = 150000  # bytes of the picture
CURVE = (255, 112, 67)  # the colour that TensorBoard gives to its first run
MIXED = {"amp__level": "O1", "amp__dtype": "bfloat16"}  # a CPU is slow in float16
TAGS = {
    "epl/" + tag
    for tag in (
        "loss", "samples_per_second", "tflops_per_second", "loss_scale", "exposed_communication",
        "peak_memory_mb/CPU_0", "peak_memory_mb/CPU_1",
    )
}  # fmt: skip


def train(folder, steps):
    """Trains two replicas with mixed precision and the hook; rows that overflow come once."""
    random = np.random.RandomState(0)
    x, y = tf.placeholder(tf.float32, [None, 32]), tf.placeholder(tf.float32, [None, 1])
    loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.dense(x, 256, tf.tanh), 1) - y))
    train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    hook = epl.StepStatsHook(str(folder), samples_per_run=512, save_steps=2, trace_steps=max(2, steps // 20))
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
        for step in range(steps):
            rows = random.randn(512, 32)
            target = np.sin(rows[:, :1]) * (np.inf if step == steps // 3 else 1.0)
            session.run(train_op, {x: rows, y: target})
    tf.summary.FileWriterCache.clear()


@contextlib.contextmanager
def tensorboard(folder, log):
    """Starts TensorBoard for a folder; its address. It has read all files then."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder.name, "--host", "127.0.0.1", "--port", "0"]
    command += ["--reload_interval", "0"]
    with open(str(log), "w") as output:
        server = subprocess.Popen(command, cwd=str(folder.parent), stdout=output, stderr=output)
    try:
        address = soon(lambda: re.search(r"at (http://\S+/)", log.read_text()), log).group(1)
        soon(lambda: tags_of(address), log)
        yield address
    finally:
        server.terminate()
        server.wait()


def soon(find, log, seconds=60):
    """What a function finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while True:
        found = find()
        if found:
            return found
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def tags_of(address):
    """The tags of all runs, as TensorBoard's page asks for them."""
    with urllib.request.urlopen(address + "data/plugin/scalars/tags") as answer:
        return {tag for run in json.loads(answer.read().decode()).values() for tag in run}


@pytest.mark.timeout(900)  # where Chromium has to be installed
def test_a_browser_shows_the_scalars_of_the_hook(init, tmp_path):  # noqa: F811
    init(2, **MIXED)
    train(tmp_path / "logs", steps=4)
    with tensorboard(tmp_path / "logs", tmp_path / "log") as address:
        assert tags_of(address) == TAGS
        page = browser.run(tmp_path / "profile", "--dump-dom", address + "#scalars")
    assert page.count("<vz-line-chart-tooltip ") == len(TAGS)  # each curve has one; the curves are in shadow trees


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_picture_of_the_page(init, tmp_path, pytestconfig):  # noqa: F811
    from PIL import Image

    init(2, **MIXED)
    train(tmp_path / "logs", steps=400)
    shot, made = str(tmp_path / "shot.png"), str(tmp_path / "tensorboard.png")
    with tensorboard(tmp_path / "logs", tmp_path / "log") as address:
        assert tags_of(address) == TAGS
        size = "--window-size={},{}".format(*SIZE)
        browser.run(tmp_path / "profile", f"--screenshot={shot}", size, address + "#scalars")
    with Image.open(shot) as image:
        image.convert("RGB").quantize(64).save(made, optimize=True)
    check(made)
    if pytestconfig.getoption("update_pictures"):
        shutil.copy(made, PICTURE)


def test_the_picture_that_the_page_shows():
    with open(os.path.join(ROOT, "docs", "tensorboard.md"), encoding="utf-8") as source:
        assert "](tensorboard.png)" in source.read()
    check(PICTURE)


def check(path):
    """That a picture is of the size of the window, small, and has the curve of each tag."""
    from PIL import Image

    assert os.path.getsize(path) < LARGEST
    with Image.open(path) as image:
        assert image.size == SIZE
        pixels = np.asarray(image.convert("RGB")).astype(int)
    curve = np.abs(pixels - CURVE).sum(-1) < 60
    assert curve.sum() > 1000
