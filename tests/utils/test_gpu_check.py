"""`make gpu-check` can be rehearsed without a GPU."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_rehearsal_reports_what_it_has_seen(tmp_path):
    report = tmp_path / "report.md"
    settings = dict(os.environ, GPU_CHECK="cpu", GPU_CHECK_REPORT=str(report))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    text = report.read_text()
    assert "(rehearsed without a GPU)" in text
    assert "| collectives, 3 ranks, shm: 224 cases, 3 times | right |" in text
    assert text.count("right: ") == 22 and "**" not in text
    assert "one killed in a training | named after" in text
