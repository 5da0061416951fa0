"""The Dockerfiles of docker/: the linter finds nothing, and what their steps name exists and is tested elsewhere.

No engine is needed: the installation that they run is that of tests/setup/test_package.py.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FILES = sorted(glob.glob(os.path.join(ROOT, "docker", "Dockerfile.*")))
# Kind of image -> what is installed there: EPL alone where the image has a TensorFlow.
INSTALLED = {"cpu": ".[cpu]", "gpu": ".", "nvidia": ".", "tf2": ".[gpu]"}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as source:
        return source.read()


def instructions(path):
    """(name, arguments) of the instructions of a Dockerfile; continued lines are one, comments are none."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", read(path), flags=re.MULTILINE))
    return [tuple(line.split(None, 1)) for line in text.split("\n") if line.strip()]


def shell_commands(path):
    """The words of each command of the RUN instructions."""
    runs = [arguments for name, arguments in instructions(path) if name == "RUN"]
    return [shlex.split(command) for run in runs for command in run.split("&&")]


def kind(path):
    return path.rpartition(".")[2]


def test_there_is_one_for_each_kind_of_image():
    assert {kind(path) for path in FILES} == set(INSTALLED)


def test_the_linter_finds_nothing():
    linter = shutil.which("hadolint", path=os.path.dirname(sys.executable))
    if linter is None:
        pins = read("requirements", "py{}.{}.txt".format(*sys.version_info[:2]))
        assert "hadolint" not in pins, "hadolint is pinned and not installed: run `make setup`"
        pytest.skip("hadolint has no release for this Python")
    done = subprocess.run([linter] + FILES, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize("path", FILES, ids=kind)
def test_an_image_installs_epl_with_its_native_libraries(path):
    (install,) = [command for command in shell_commands(path) if INSTALLED[kind(path)] == command[-1]]
    assert install == ["EPL_NATIVE=on", "pip", "install", "--no-cache-dir", INSTALLED[kind(path)]]


@pytest.mark.parametrize("path", FILES, ids=kind)
def test_the_last_step_of_an_image_loads_the_libraries(path):
    check = shell_commands(path)[-1]
    assert check[:2] == ["python", "-c"]
    env = dict(os.environ, PYTHONPATH=ROOT)
    assert b"'local'" in subprocess.check_output([sys.executable] + check[1:], env=env, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("path", FILES, ids=kind)
def test_the_checkout_is_copied_before_it_is_installed(path):
    names = [name for name, _ in instructions(path)]
    assert dict(instructions(path))["COPY"] == ". /epl"
    assert names.index("COPY") < names.index("WORKDIR") < len(names) - 1 - names[::-1].index("RUN")
    assert names[-1] == "CMD"


def test_the_context_leaves_out_what_a_checkout_has_built():
    left_out = set(read(".dockerignore").split("\n"))
    assert {".git", ".venv*", "build", "csrc/build", "dist", "epl/lib"} <= left_out


def test_the_page_builds_every_image_and_names_the_images_that_they_begin_with():
    page = read("docs", "install.md")
    for path in FILES:
        name = "docker/" + os.path.basename(path)
        assert f"docker build -f {name} -t epl:{kind(path)} ." in page
        assert f"docker build -f {name} -t epl:{kind(path)} ." in read(path)
    base = dict(instructions(os.path.join(ROOT, "docker", "Dockerfile.gpu")))["FROM"]
    facts = dict(instructions(os.path.join(ROOT, "docker", "Dockerfile.nvidia")))
    assert base in page
    assert facts["FROM"].replace("${RELEASE}", facts["ARG"].partition("=")[2]) in page
