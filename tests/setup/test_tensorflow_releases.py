"""The releases of TensorFlow: which Python gets which, and the files and names that follow from it."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

import tensorflow_releases  # noqa: E402


@pytest.mark.parametrize(
    "python, name",
    [((3, 6), "1.15"), ((3, 8), "1.15"), ((3, 9), None), ((3, 10), "2.21"), ((3, 11), "2.21"), ((3, 13), "2.21")],
)
def test_each_python_has_its_release(python, name):
    release = tensorflow_releases.of_python(python)
    assert (release and release.name) == name


@pytest.mark.parametrize("release", tensorflow_releases.RELEASES, ids=lambda release: release.name)
def test_the_requirements_of_each_release_are_there(release):
    pins = ["tf{}.txt".format(release.name)]
    packages = ["tensorflow-{}.txt".format(release.name), "tensorflow-gpu-{}.txt".format(release.name)]
    if release.is_default_environment:
        pins = ["py{}.{}.txt".format(*python) for python in release.pythons]
        packages = ["tensorflow.txt", "tensorflow-gpu.txt"]
    for name in pins + packages:
        with open(os.path.join(ROOT, "requirements", name)) as source:
            lines = source.read().split("\n")
        if name in packages:
            words = release.gpu if "gpu" in name else release.cpu
            assert {line for line in lines if line.startswith(("tensorflow", "tf_keras"))} == {
                word for word in words if word.startswith(("tensorflow", "tf_keras"))
            }


def test_an_extra_has_one_tensorflow_for_each_python():
    words = tensorflow_releases.extra("gpu")
    assert 'tensorflow-gpu==1.15.5; python_version == "3.6" or python_version == "3.7"' in words
    (and_cuda,) = [word for word in words if word.startswith("tensorflow[and-cuda]==2.21.0; ")]
    assert "3.12" in and_cuda and "3.7" not in and_cuda and "3.9" not in and_cuda
    assert not any("2.15" in word for word in words)


@pytest.mark.parametrize("release, folder", [("", ".venv"), ("1.15", ".venv"), ("2.21", ".venv-2.21")])
def test_make_and_set_up_name_the_same_environment(release, folder):
    import environment

    assert environment.SetUp("/checkout", {"TF": release}, print).venv == "/checkout/" + folder
    command = ["make", "--no-print-directory", "--dry-run", "quickstart", "TF=" + release]
    env = {key: value for key, value in os.environ.items() if key not in ("VENV", "TF", "MAKEFLAGS")}
    said = subprocess.check_output(command, cwd=ROOT, env=env, universal_newlines=True)
    assert 'VENV="{}"'.format(folder) in said
    assert "{}/bin/python examples/quickstart/run.py".format(os.path.join(ROOT, folder)) in said
