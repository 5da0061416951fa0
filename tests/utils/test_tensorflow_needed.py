"""`import epl` without a TensorFlow that it knows: the error says what to install."""

import os
import subprocess
import sys

import pytest

from epl.utils import version

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROTOBUF_4 = "raise TypeError('Descriptors cannot not be created directly.\\nIf this call came from a _pb2.py file')"


def import_epl(folder, tensorflow=None, api=""):
    """The last line of `import epl` where TensorFlow is what a test writes; `-S` hides the installed one."""
    if tensorflow is not None:
        compat = folder / "tensorflow" / "compat"
        (compat / "v1").mkdir(parents=True)
        (folder / "tensorflow" / "__init__.py").write_text(tensorflow)
        (compat / "__init__.py").write_text("")
        (compat / "v1" / "__init__.py").write_text(api)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([ROOT, str(folder)]))
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import epl"], env=env, cwd=str(folder), check=False, universal_newlines=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert done.returncode == 1
    error, _, text = done.stderr.strip().split("\n")[-1].partition(": ")
    assert error == "epl.utils.errors.TensorFlowNeededError"
    assert text.startswith("EPL needs TensorFlow 1.15, or 2.15 to 2.21: ") and sys.executable in text
    return text, done.stderr


def test_a_missing_tensorflow_is_told_with_the_command(tmp_path):
    text, everything = import_epl(tmp_path)
    assert "there is none in this environment" in text
    assert "ModuleNotFoundError" not in everything
    assert version.how_to_install(sys.version_info[:2]) in text


def test_a_protobuf_that_is_too_new_is_told_with_the_command(tmp_path):
    assert 'pip install "protobuf<3.21"' in import_epl(tmp_path, PROTOBUF_4)[0]


@pytest.mark.parametrize("version", ["1.14.0", "1.16.0", "2.0.0", "2.11.0", "2.14.1", "2.22.0-rc1", "3.0.0", "nightly"])
def test_another_tensorflow_is_told_with_its_version(tmp_path, version):
    assert f"this environment has TensorFlow {version}" in import_epl(tmp_path, "", f"VERSION = '{version}'")[0]


@pytest.mark.parametrize("number", ["1.15.0", "1.15.5+nv", "2.15.1", "2.18.0", "2.21.0-rc1"])
def test_known_versions(number):
    assert version.is_known(number)


@pytest.mark.parametrize(
    "python, words",
    [
        ((3, 7), 'pip install "tensorflow==1.15.5" "protobuf<3.21" "numpy<1.19"'),
        ((3, 8), "nvidia-tensorflow 1.15"),
        ((3, 9), 'pip install "tensorflow==2.15.1"'),
        ((3, 13), 'pip install "tensorflow==2.21.0" "tf_keras==2.21.0"'),
        ((3, 14), "They need Python 3.7, or 3.9 to 3.13"),
    ],
)
def test_the_command_fits_the_python(python, words):
    assert words in version.how_to_install(python)


@pytest.mark.parametrize(
    "source, words",
    [
        ("raise ImportError('libcudart.so.10.0: no such file')", "ImportError: libcudart.so.10.0: no such file"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_tensorflow_that_does_not_import_is_told_with_its_error(tmp_path, source, words):
    assert f"`import tensorflow` fails with {words}" in import_epl(tmp_path, source)[0]


def test_who_catches_import_errors_catches_it():
    from epl.utils.errors import EplError, TensorFlowNeededError

    assert issubclass(TensorFlowNeededError, (ImportError, EplError))
