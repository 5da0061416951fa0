"""What gives variables in parts their values runs in every worker; where it runs in some alone, EPL says so."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.parity.launching import ROOT
from tests.runtime.jobs import partial_restores
from tests.runtime.spanning import codes, outputs, run_workers

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder with a checkpoint of one device, and its losses after that."""
    folder = str(tmp_path_factory.mktemp("plain"))
    command = [sys.executable, "-W", "ignore", partial_restores.__file__, "plain", "", folder]
    return folder, losses(subprocess.check_output(command, cwd=ROOT, universal_newlines=True))


def losses(output):
    """What a job printed."""
    return [float(number) for number in re.search(r"losses \[(.*)\]", output).group(1).split(",")]


def run(layout, done, folder, tmp_path):
    """Two workers, which have ended."""
    return run_workers("partial_restores.py", [layout, done, folder], tmp_path, ["127.0.0.1"] * 2, 100)


@pytest.mark.parametrize(
    "layout,done",
    [
        ("replicate", "restored by worker 0"),
        ("v1", "restored by all"),
        pytest.param("v2", "restored by all", marks=pytest.mark.long),
        pytest.param("split", "restored by all", marks=pytest.mark.long),
    ],
)
def test_the_training_goes_on(plain, tmp_path, layout, done):
    folder, expected = plain
    workers = run(layout, done, folder, tmp_path)
    assert codes(workers) == [0, 0], outputs(workers)
    found = [losses(worker.output)[: len(expected) - 1] for worker in workers]
    found = found[0] if layout == "split" else np.mean(found, axis=0)
    np.testing.assert_allclose(found, expected[1:], rtol=1e-5)


@pytest.mark.parametrize(
    "layout,done,way",
    [
        ("v1", "restored by worker 0", "a restore"),
        ("split", "restored by worker 0", "a restore"),
        ("v0", "restored by worker 0 and read", "a restore"),
        pytest.param("v0", "restored by worker 0", "a restore", marks=pytest.mark.long),
        pytest.param("v2", "restored by worker 0", "a restore", marks=pytest.mark.long),
        pytest.param("v2", "assigned by worker 0", "an assignment", marks=pytest.mark.long),
        pytest.param("split", "assigned by worker 0", "an assignment", marks=pytest.mark.long),
    ],
)
def test_a_worker_whose_parts_have_other_values_is_named(plain, tmp_path, layout, done, way):
    workers = run(layout, done, plain[0], tmp_path)
    assert codes(workers) == [1, 1], outputs(workers)
    for worker in workers:
        assert f"'fc/kernel' has its values in worker 0 by {way}, and in worker 1 by an initializer" in worker.output


def test_a_checkpoint_of_parts_that_do_not_belong_together_is_not_published(plain, tmp_path):
    workers = run("v1", "restored by worker 0 and saved", plain[0], tmp_path)
    assert codes(workers) == [1, 1], outputs(workers)
    words = "since the last step 'fc/kernel' has got its values in worker 0 by a restore, and here by an initializer"
    assert words in workers[0].output
    assert not os.path.exists(plain[0] + "/second.index")
