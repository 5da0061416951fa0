"""docs/composition.md has every pair of features; the tests that it names exist, what it calls refused is refused."""

import importlib.util
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import error_text, init, rewritten  # noqa: F401

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SPEC = importlib.util.spec_from_file_location("composition", os.path.join(ROOT, "tools", "gen_composition_docs.py"))
composition = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(composition)


def stages(begin):
    """Two stages of two replicas."""
    begin(4, annotate=False, zero__level="v2")
    hidden = tf.placeholder(tf.float32, [None, 4])
    for _ in range(2):
        with epl.replicate(1):
            hidden = tf.layers.dense(hidden, 4)
    _train(hidden)


def on_the_host(begin):
    """Weights in host memory."""
    begin(2, zero__level="v2", offload__level="v0")
    _train(tf.layers.dense(tf.placeholder(tf.float32, [None, 4]), 8))


def split(begin):
    """A split over all devices."""
    begin(2, annotate=False, zero__level="v2")
    with epl.split(2):
        loss = tf.reduce_mean(tf.layers.dense(tf.placeholder(tf.float32, [None, 4]), 8))
    _train(loss)


def split_in_stages(begin):
    """A split in the second of two stages."""
    begin(4, annotate=False, zero__level="v1")
    with epl.replicate(1):
        hidden = tf.layers.dense(tf.placeholder(tf.float32, [None, 4]), 4)
    with epl.replicate(1), epl.split(2):
        loss = tf.reduce_mean(tf.layers.dense(hidden, 8))
    _train(loss)


def _train(output):
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(output))
    rewritten()


REFUSED = [stages, on_the_host, split, split_in_stages]


def test_the_page_is_up_to_date():
    with open(composition.PAGE, encoding="utf-8") as page:
        assert page.read() == composition.render(), "run: python tools/gen_composition_docs.py"


def test_every_pair_has_one_cell():
    seen = [frozenset(cell.features) for cell in composition.CELLS]
    assert sorted(map(sorted, seen)) == sorted(map(sorted, composition.pairs()))
    for cell in composition.CELLS:
        assert bool(cell.tests) + bool(cell.note) == 1, cell


def test_the_named_tests_exist():
    ids = sorted({"tests/parity/" + test for cell in composition.CELLS for test in cell.tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"] + ids,
        cwd=ROOT, universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "rror" in line)


@pytest.mark.parametrize(
    "refusal, model", zip(composition.REFUSALS, REFUSED), ids=[model.__name__ for model in REFUSED]
)
def test_what_is_called_refused_is_refused(init, refusal, model):  # noqa: F811
    assert refusal.error in error_text(model, init)
