"""Builds what is released, into dist/: `python tools/package`, or `make package`.

A source distribution, and from it one wheel for each TensorFlow of the interpreters that are named. The wheel's build
tag names that TensorFlow, and its libraries load into no other. They use no interface of Python: interpreters that have
the same TensorFlow share a wheel. Each wheel is loaded once by each interpreter that it is for.

Owns the order of the steps. What goes into a package is `setup.py`'s.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Dict, List

from build_tensorflow import ROOT

_LOAD = "import epl; from epl.ops import native; native.require(); print(epl.__file__)"


class PackageError(Exception):
    """A step failed; the message says which, and for which interpreter."""


def main(arguments: List[str]) -> int:
    """Builds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools/package", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--python",
        action="append",
        metavar="PATH",
        help="an interpreter with a TensorFlow that EPL is for; may be repeated",
    )
    parser.add_argument("--out", default=os.path.join(ROOT, "dist"), metavar="FOLDER")
    options = parser.parse_args(arguments)
    out = os.path.abspath(options.out)
    os.makedirs(out, exist_ok=True)
    try:
        source = source_distribution(out)
        wheels: Dict[str, str] = {}
        for name in options.python or [sys.executable]:
            python = find_python(name)
            identity = tensorflow_identity(python)
            if identity not in wheels:
                wheels[identity] = wheel(python, source, out)
            check_load(python, wheels[identity])
            print(f"{os.path.relpath(wheels[identity])} loads in {python}")
    except PackageError as error:
        print(f"tools/package: error: {error}", file=sys.stderr)
        return 1
    print(os.path.relpath(source))
    return 0


def find_python(name: str) -> str:
    """The path of an interpreter that has pip.

    Raises:
        PackageError: there is none.
    """
    path = shutil.which(name)
    if path is None:
        raise PackageError(f"--python {name} is not a program. Give a path, or a name on PATH.")
    run(f"{path} has no pip: make a virtual environment with it and TensorFlow.", [path, "-m", "pip", "--version"])
    return os.path.abspath(path)


def tensorflow_identity(python: str) -> str:
    """The identity of the TensorFlow of an interpreter, as text."""
    code = "import build_tensorflow, json; print(json.dumps(build_tensorflow.find().identity, sort_keys=True))"
    # The module looks past PYTHONPATH for the interpreter's own TensorFlow.
    words = run(f"{python} cannot be built for.", [python, "-c", code], PYTHONPATH=os.path.dirname(__file__))
    return json.dumps(json.loads(words.strip().split("\n")[-1]), sort_keys=True)


def source_distribution(out: str) -> str:
    """Makes one; returns its path."""
    code = "import build_backend, sys; print(build_backend.build_sdist(sys.argv[1]))"
    words = run(
        f"{sys.executable} makes no source distribution; it needs setuptools.",
        [sys.executable, "-c", code, out],
        PYTHONPATH=os.path.dirname(__file__),
    )
    return os.path.join(out, words.strip().split("\n")[-1])


def wheel(python: str, source: str, out: str) -> str:
    """Builds a wheel from a source distribution; returns its path."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        command = [python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, source]
        run(f"the wheel for {python} cannot be built.", command, EPL_NATIVE="on")
        (name,) = os.listdir(folder)
        os.replace(os.path.join(folder, name), os.path.join(out, name))
    return os.path.join(out, name)


def check_load(python: str, path: str) -> None:
    """Installs a wheel into a folder of its own, and loads its libraries there."""
    with tempfile.TemporaryDirectory() as folder:
        install = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, path]
        run(f"{path} cannot be installed by {python}.", install)
        load = [python, "-W", "ignore", "-c", _LOAD]
        words = run(f"{path} does not load in {python}.", load, cwd=folder, PYTHONPATH=folder)
        if not words.strip().split("\n")[-1].startswith(os.path.realpath(folder)):
            raise PackageError(f"{python} loads another EPL than that of {path}: {words.strip()}")


def run(failure: str, command: List[str], cwd: str = ROOT, **env: str) -> str:
    """Runs a command, by default in the checkout; returns its output.

    Raises:
        PackageError: the command failed; the text has its last words.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=dict(kept, **env), check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip()[-3000:]
        raise PackageError(f"{failure}\n{words}\nIt ended with {done.returncode}: {' '.join(command)}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
