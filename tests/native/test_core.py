"""Runs the collective core's own test program (csrc/tests), one pytest test per test of it.

The tests themselves, their processes and their time limits are in C++; here they are built, started and told apart.
"""

import fcntl
import glob
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import List

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
# What the build of this TensorFlow adds to the folders of objects and libraries; nothing for 1.15.
FOLDER = subprocess.check_output(
    [sys.executable, str(CSRC / "tensorflow_flags.py"), "--folder"], universal_newlines=True
).strip()


def _names() -> List[str]:
    names: List[str] = []
    for source in sorted(glob.glob(str(CSRC / "tests" / "test_*.cc"))):
        names += re.findall(r"^TEST\((\w+)\)", Path(source).read_text(), re.MULTILINE)
    return names


def _make(target: str) -> Path:
    (CSRC / "build").mkdir(exist_ok=True)
    with open(str(CSRC / "build" / "test_core.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest-xdist share the build
        made = subprocess.run(
            ["make", "-C", str(CSRC), "-j2", target, "PYTHON=" + sys.executable],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
    assert made.returncode == 0, made.stdout[-4000:]
    return CSRC / target


@pytest.fixture(scope="session")
def program() -> Path:
    """The test program, built where its sources changed."""
    return _make(os.path.join("build", FOLDER, "release", "test_core"))


@pytest.mark.timeout(600)  # the first one builds the program
@pytest.mark.parametrize("name", _names())
def test_core(program: Path, name: str) -> None:
    run = subprocess.run(
        [str(program), "--quick", "--exact", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert "0 of 1 tests failed" in run.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", ["test", "test-tsan", "test-asan", "test-fuzz"])
def test_whole_program(target: str) -> None:
    run = subprocess.run(
        ["make", "-C", str(CSRC), "-j2", target, "PYTHON=" + sys.executable],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert run.returncode == 0, run.stdout[-6000:]


@pytest.mark.long
def test_nccl_declarations_match_the_headers(tmp_path: Path) -> None:
    wheels = ["nvidia-nccl-cu11==2.21.5", "nvidia-cuda-runtime-cu11==11.8.89"]
    # For the platform by name, so that an old pip takes them too: only the headers inside are wanted.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(tmp_path)]
    subprocess.run(command + ["--platform", "manylinux2014_x86_64"] + wheels, check=True, stdout=subprocess.DEVNULL)
    for wheel in tmp_path.glob("*.whl"):
        with zipfile.ZipFile(str(wheel)) as archive:
            archive.extractall(str(tmp_path / "headers"))
    folders = [CSRC, CSRC / "tests" / "compile" / "shim"]
    folders += [tmp_path / "headers" / "nvidia" / part / "include" for part in ("cuda_runtime", "nccl")]
    source = CSRC / "tests" / "compile" / "nccl_headers.cc"
    compiler = os.environ.get("CXX", "g++")
    compiled = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only"] + ["-I%s" % folder for folder in folders] + [str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert compiled.returncode == 0, compiled.stdout[-4000:]


def test_core_needs_nothing_that_a_machine_may_lack() -> None:
    library = ROOT / "epl" / "lib" / FOLDER / "libepl_comm.so"
    _make("comm")
    read = subprocess.check_output(["objdump", "-p", str(library)], universal_newlines=True)
    needed = set(re.findall(r"^ *NEEDED +([\w+-]*)", read, re.MULTILINE))
    everywhere = {"libc", "libdl", "libgcc_s", "libm", "libpthread", "librt", "libstdc++"}
    assert needed and {name for name in needed if not name.startswith("ld-linux")} <= everywhere
    symbols = subprocess.check_output(["nm", "-D", "--defined-only", str(library)], universal_newlines=True)
    exported = {line.split()[-1] for line in symbols.splitlines() if line}
    assert all(symbol.startswith("epl_") for symbol in exported), sorted(exported)
    header = (CSRC / "comm" / "epl_comm.h").read_text()
    assert exported == set(re.findall(r"^EPL_EXPORT [^(]*?(\w+)\(", header, re.MULTILINE))


@pytest.mark.timeout(600)  # as test_core
def test_nccl_of_a_wheel_is_found(program: Path, tmp_path: Path) -> None:
    stand_in = program.parent / "stand_in"
    folder = tmp_path / "site" / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    shutil.copy(str(stand_in / "libnccl.so.2"), str(folder))
    driver = tmp_path / "driver"
    driver.mkdir()
    shutil.copy(str(stand_in / "libcuda.so.1"), str(driver))
    code = "from epl.ops import native; print('nccl' in native.require().transports())"
    for path, found in ((str(tmp_path / "site"), "True"), ("", "False")):
        env = dict(os.environ, LD_LIBRARY_PATH=str(driver), PYTHONPATH=os.pathsep.join([str(ROOT), path]))
        printed = subprocess.check_output(
            [sys.executable, "-c", code], env=env, universal_newlines=True, stderr=subprocess.DEVNULL
        )
        assert printed.strip() == found
