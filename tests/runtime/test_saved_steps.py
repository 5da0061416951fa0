"""A checkpoint holds the parts of all workers after one and the same step."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parity.launching import ROOT
from tests.runtime.jobs import fed_slots
from tests.runtime.spanning import run_workers

NAMES = ["table", "table/Adam", "table/Adam_1"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Checkpoints of one device that is fed the rows of both workers."""
    folder = str(tmp_path_factory.mktemp("plain"))
    subprocess.run([sys.executable, "-W", "ignore", fed_slots.__file__, "plain", folder], cwd=ROOT, check=True)
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "level", [pytest.param("v0", marks=pytest.mark.long), "v1", pytest.param("v2", marks=pytest.mark.long)]
)
def test_a_worker_that_runs_ahead_leaves_its_slots_to_the_save(plain, tmp_path, level):
    workers = run_workers("fed_slots.py", [level, str(tmp_path)], tmp_path, ["127.0.0.1"] * 2, 100)
    assert [worker.code for worker in workers] == [0, 0], [worker.output for worker in workers]
    for step in range(1, fed_slots.STEPS + 1):
        for name in NAMES:
            saved = tf.train.load_variable(f"{tmp_path}/{level}-{step}", name)
            expected = tf.train.load_variable(f"{plain}/plain-{step}", name)
            np.testing.assert_allclose(saved, expected, rtol=1e-4, atol=1e-7, err_msg=f"{name} after step {step}")
