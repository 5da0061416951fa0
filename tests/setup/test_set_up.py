"""Set-up from end to end, in a small project whose TensorFlow is an empty package: what is done, and done only once."""

import contextlib
import glob
import os
import pty
import shutil
import subprocess
import sys
import time
import zipfile

import pytest
import pythons
import tensorflow_releases

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RELEASE = tensorflow_releases.of_python(sys.version_info)
WHEEL = f"./tensorflow-{RELEASE.version}-py3-none-any.whl\n"
REQUIREMENTS = "requirements/tensorflow{}.txt".format("" if RELEASE.name == "1.15" else "-" + RELEASE.name)
PINS = "py{}.{}".format(*sys.version_info[:2]) if RELEASE.name == "1.15" else "tf" + RELEASE.name
PYTHON = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info[:2]))
BUILDERS = "setuptools==75.8.0\nwheel==0.45.1\n"  # Python 3.10 and newer have old ones, or none

MAKEFILE = """
FOLDER := $(shell $(PYTHON) tensorflow_flags.py --folder)
LIB := ../epl/lib$(FOLDER:%=/%)
all: $(LIB)/libepl_comm.so $(LIB)/libepl_gloo.so $(LIB)/libepl_tf.so $(LIB)/built_for.json
$(LIB)/built_for.json:
\tmkdir -p $(LIB) && touch $@
$(LIB)/%.so: core.cc
\tmkdir -p $(LIB) && touch $@ && echo built $(CXX) >> log
clean:
\trm -f $(LIB)/*.so
"""

SETUP = """
from setuptools import setup
setup(name="epl", version="1", packages=["epl"], entry_points={"console_scripts": ["epl-launch=epl:main"]})
"""


class Project:
    """A checkout with the real tools/set_up and next to nothing else."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        shutil.copytree(os.path.join(ROOT, "tools", "set_up"), os.path.join(folder, "tools", "set_up"))
        os.mkdir(os.path.join(folder, "csrc"))
        for name in ("tools/tensorflow_releases.py", "csrc/tensorflow_flags.py"):
            shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))
        for name, text in (
            ("requirements/bootstrap.txt", ""),
            (f"requirements/{PINS}.txt", "" if sys.version_info < (3, 10) else BUILDERS),
            (REQUIREMENTS, WHEEL),
            ("csrc/Makefile", MAKEFILE),
            ("csrc/core.cc", "int core;\n"),
            ("epl/__init__.py", "def main():\n    print('launched')\n"),
            ("setup.py", SETUP),
        ):
            self.write(name, text)
        self.write_tensorflow(RELEASE.version)

    def write_tensorflow(self, version: str) -> None:
        with zipfile.ZipFile(os.path.join(self.folder, f"tensorflow-{version}-py3-none-any.whl"), "w") as wheel:
            info = f"tensorflow-{version}.dist-info/"
            wheel.writestr("tensorflow/__init__.py", f"__version__ = '{version}'\n")
            wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(info + "RECORD", "")

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str, text: str) -> None:
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as target:
            target.write(text)

    def read(self, name: str) -> str:
        with open(self.path(name)) as source:
            return source.read()

    def set_up(self, **variables: str) -> subprocess.CompletedProcess:
        env = dict(os.environ, EPL_TF="cpu", EPL_APT="off", PYTHON=PYTHON)
        env.pop("TF", None)
        env.update(variables)
        return subprocess.run(
            [PYTHON, self.path("tools/set_up")], env=env, timeout=120, check=False, universal_newlines=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A project that has been set up; its tests leave it set up."""
    project = Project(str(tmp_path_factory.mktemp("project")))
    first = project.set_up()
    assert first.returncode == 0, first.stdout
    return project


def path_without(project, folder, *lacking):
    """A PATH that holds links to the programs of the machine, less some."""
    os.makedirs(project.path(folder))
    for name in ("sh", "mkdir", "touch", "rm", "env", "make", "g++", "python3"):
        if name not in lacking:
            os.symlink(shutil.which(name), os.path.join(project.path(folder), name))
    return project.path(folder)


def test_the_command_of_the_package_is_there(ready):
    assert subprocess.check_output([ready.path(".venv/bin/epl-launch")]).decode() == "launched\n"


def test_a_second_run_does_nothing(ready):
    log = ready.read("csrc/log")
    start = time.time()
    second = ready.set_up()
    assert second.returncode == 0
    assert time.time() - start < 5
    assert second.stdout.startswith("set-up: up to date. .venv: Python")
    assert ready.read("csrc/log") == log


def test_a_changed_source_is_built_and_nothing_else(ready):
    ready.write("csrc/core.cc", "int core = 1;\n")
    done = ready.set_up()
    assert done.returncode == 0
    assert "building csrc" in done.stdout
    assert "requirements" not in done.stdout
    assert "installing the package" not in done.stdout


def test_changed_requirements_are_installed(ready):
    ready.write(REQUIREMENTS, "# changed\n" + WHEEL)
    assert "installing the requirements" in ready.set_up().stdout


def test_a_terminal_shows_what_pip_downloads(ready):
    ready.write(REQUIREMENTS, "# shown\n" + WHEEL)
    terminal, child = pty.openpty()
    env = dict(os.environ, EPL_TF="cpu", EPL_APT="off", PYTHON=PYTHON, PATH=path_without(ready, "bin-without-uv"))
    process = subprocess.Popen([PYTHON, ready.path("tools/set_up")], env=env, stdout=child, stderr=child)
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # Linux: the read after the last writer has closed
        while True:
            shown += os.read(terminal, 4096)
    os.close(terminal)
    assert process.wait() == 0, shown.decode()
    assert b"Processing " + WHEEL.strip().encode() in shown


def test_another_compiler_builds_all_again(ready):
    wrapper = ready.path("my-g++")
    ready.write("my-g++", '#!/bin/sh\n[ "$1" = --version ] && echo mine && exit\nexec g++ "$@"\n')
    os.chmod(wrapper, 0o755)
    assert ready.set_up(CXX=wrapper).returncode == 0
    assert ready.read("csrc/log").endswith(f"built {wrapper}\n" * 2)


@pytest.mark.parametrize("program, package", [("g++", "g++"), ("make", "make")])
def test_a_missing_program_is_named_with_the_command(ready, program, package):
    ready.write("csrc/core.cc", f"int core; // {program}\n")
    path = path_without(ready, "bin-without-" + program, program)
    done = ready.set_up(PATH=path)
    assert done.returncode == 1
    assert "set-up: error:" in done.stdout
    assert "apt-get update && apt-get install -y " + package in done.stdout


def test_a_compile_error_fails_with_the_compilers_words(ready):
    makefile = ready.read("csrc/Makefile")
    ready.write("csrc/Makefile", "all:\n\techo core.cc:1: error; exit 1\nclean:\n")
    done = ready.set_up()
    ready.write("csrc/Makefile", makefile)
    assert done.returncode == 1
    assert "csrc does not compile" in done.stdout


def test_an_unknown_tensorflow_choice_is_refused(ready):
    done = subprocess.run(
        [PYTHON, ready.path("tools/set_up")], env=dict(os.environ, EPL_TF="tpu"), check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"EPL_TF=tpu is none of auto, cpu, gpu, system" in done.stdout


def test_a_folder_that_set_up_did_not_make_is_left_alone(ready):
    ready.write("mine/precious.txt", "data")
    done = ready.set_up(VENV="mine")
    assert done.returncode == 1
    assert "was not made by set-up" in done.stdout
    assert ready.read("mine/precious.txt") == "data"


def test_an_interrupted_run_is_repaired(ready):
    state = ready.read(".venv/epl-set-up.json")
    ready.write(".venv/epl-set-up.json", state.replace('"complete": true', '"complete": false'))
    done = ready.set_up()
    assert done.returncode == 0, done.stdout
    assert "anew" in done.stdout
    assert os.path.exists(ready.path(".venv/bin/epl-launch"))


def interpreter(version):
    """A Python of this machine, or None."""
    found = pythons.probe(shutil.which("python" + version) or "", "PATH", os.environ)
    pattern = os.path.join(os.path.expanduser("~"), ".pyenv", "versions", version + ".*", "bin", "python")
    there = ([found.path] if found else []) + sorted(glob.glob(pattern))
    return there[0] if there else None


@pytest.mark.skipif(interpreter("3.12") is None, reason="no Python 3.12 on this machine")
@pytest.mark.timeout(600)
def test_another_tensorflow_has_an_environment_and_libraries_of_its_own(ready):
    ready.write_tensorflow("2.21.0")
    ready.write("requirements/tf2.21.txt", BUILDERS)
    ready.write("requirements/tensorflow-2.21.txt", "./tensorflow-2.21.0-py3-none-any.whl\n")
    first = ready.set_up().stdout
    done = ready.set_up(TF="2.21", PYTHON=interpreter("3.12"))
    assert done.returncode == 0, done.stdout
    assert ".venv-2.21: Python 3.12" in done.stdout and "tensorflow 2.21.0" in done.stdout
    assert os.path.exists(ready.path("epl/lib/tf2.21-cp312/libepl_tf.so"))
    assert "up to date. .venv-2.21" in ready.set_up(TF="2.21", PYTHON=interpreter("3.12")).stdout
    assert "up to date. .venv:" in ready.set_up().stdout, first
