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


def split_and_zero(begin):
    """A split over all devices."""
    begin(2, annotate=False, zero__level="v1")
    with epl.split(2):
        loss = tf.reduce_mean(tf.layers.dense(tf.placeholder(tf.float32, [None, 4]), 8))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewritten()


REFUSED = {
    frozenset(["split", "zero"]): split_and_zero,
}


def test_the_page_is_up_to_date():
    with open(composition.PAGE, encoding="utf-8") as page:
        assert page.read() == composition.render(), "run: python tools/gen_composition_docs.py"


def test_every_pair_has_one_cell():
    seen = [frozenset(cell.features) for cell in composition.CELLS]
    assert sorted(map(sorted, seen)) == sorted(map(sorted, composition.pairs()))
    for cell in composition.CELLS:
        assert bool(cell.tests) + bool(cell.refusal) + bool(cell.note) == 1, cell


def test_the_named_tests_exist():
    ids = sorted({"tests/parity/" + test for cell in composition.CELLS for test in cell.tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"] + ids,
        cwd=ROOT, universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "rror" in line)


@pytest.mark.parametrize("cell", [cell for cell in composition.CELLS if cell.refusal], ids=lambda cell: str(cell[0]))
def test_what_is_called_refused_is_refused(init, cell):  # noqa: F811
    assert cell.refusal in error_text(REFUSED[frozenset(cell.features)], init)
