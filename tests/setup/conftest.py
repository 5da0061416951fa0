"""Makes the modules of tools/set_up importable, and describes machines to them."""

import json
import os
import re
import sys
from typing import Callable, Dict

import pytest
import tensorflow.compat.v1 as tf

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "set_up"))


def write_program(path: str, text: str) -> str:
    """Writes an executable shell script and returns its path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as target:
        target.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)
    return path


class Machine:
    """A machine of which set-up sees only what a test has put there."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.bin = os.path.join(folder, "bin")
        os.makedirs(self.bin)
        self.env: Dict[str, str] = {"PATH": self.bin, "HOME": os.path.join(folder, "home")}
        self.said = []

    def python(self, path: str, version: str, tensorflow: str = None, has_venv: bool = True) -> str:
        """Puts an interpreter at `path`, relative to the machine's folder."""
        facts = {"version": [int(p) for p in version.split(".")], "has_venv": has_venv, "tensorflow": tensorflow}
        return write_program(os.path.join(self.folder, path), f"echo '{json.dumps(facts)}'")

    def program(self, name: str, text: str) -> str:
        """Puts a program on the machine's PATH."""
        return write_program(os.path.join(self.bin, name), text)

    @property
    def say(self) -> Callable[[str], None]:
        return self.said.append


# The TensorFlow that runs the tests -> what the name of a wheel that is built for it says of it and of its Pythons.
WHEEL_TAGS = {
    "1.15": (r"1tf1\.15\.5[\w.]*", "cp36.cp37.cp38"),
    "2.15": (r"1tf2\.15\.1", "cp311"),
    "2.21": (r"1tf2\.21\.0", "cp310.cp311.cp312.cp313"),
}


@pytest.fixture
def wheel_tags() -> str:
    """A regular expression of the middle of a wheel's name."""
    build, pythons = WHEEL_TAGS[tf.VERSION.rpartition(".")[0]]
    return f"-{build}-{re.escape(pythons)}-none-linux_"


@pytest.fixture
def machine(tmp_path) -> Machine:
    """An empty machine."""
    return Machine(str(tmp_path / "machine"))
