"""`import whale as wh`, as the slides of the paper write it."""

import subprocess
import sys
from typing import Tuple

import pytest

LINE = "EPL: `import whale` gives you EPL, which was called Whale at first. New scripts write `import epl`.\n"


def run(code: str) -> Tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, "".join(line for line in done.stderr.splitlines(True) if line.startswith("EPL: "))


def test_its_names_are_those_of_epl_and_one_line_says_so() -> None:
    code = """
import epl
import tensorflow.compat.v1 as tf
import whale as wh
assert all(getattr(wh, name) is getattr(epl, name) for name in epl.__all__)
assert wh.__all__ == epl.__all__ and wh.__version__ == epl.__version__
wh.init()
with wh.replicate(1):
    tf.constant(1.0)
print(epl.Graph.get(may_create=True).taskgraphs[0].strategy)
"""
    out, told = run(code)
    assert "replicate" in out.lower() and told == LINE


@pytest.mark.parametrize("module", ["whale.cluster", "whale.epl"])
def test_it_has_no_modules_of_its_own(module: str) -> None:
    """A second copy of EPL's modules would have a state of its own."""
    out, _ = run(f"try:\n    import {module}\nexcept ImportError as error:\n    print(error)\n")
    assert "'whale' is not a package" in out
