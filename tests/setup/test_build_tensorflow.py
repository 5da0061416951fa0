"""Which TensorFlow the native libraries are built for, and the refusal, before compiling, of one that will not do."""

import os
import sys
import sysconfig

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "package"))
REAL = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info[:2]))

import build_tensorflow  # noqa: E402

TENSORFLOW = """
from types import SimpleNamespace
identity = SimpleNamespace(VERSION="{0}", GIT_VERSION="v{0}-0", CXX11_ABI_FLAG=0)
compat = SimpleNamespace(v1=identity)
"""
PROTOBUF_4 = (
    "raise TypeError('Descriptors cannot not be created directly.\\nIf this call came from a _pb2.py file, it is old.')"
)


class Interpreter:
    """An interpreter that sees only the packages that a test gives it, like one that EPL is installed for."""

    def __init__(self, machine, monkeypatch) -> None:
        self.packages = os.path.join(machine.folder, "packages")
        os.makedirs(self.packages)
        command = f'export PYTHONPATH="{self.packages}:$PYTHONPATH"\nexec {REAL} -S "$@"'
        monkeypatch.setattr(sys, "executable", machine.program("python3.7", command))
        monkeypatch.delenv("PYTHONPATH", raising=False)
        monkeypatch.delenv("EPL_NATIVE", raising=False)

    def install(self, folder, name, version, source=None):
        os.makedirs(os.path.join(folder, f"{name}-{version}.dist-info"))
        if source is not None:
            os.makedirs(os.path.join(folder, "tensorflow"))
            with open(os.path.join(folder, "tensorflow", "__init__.py"), "w") as module:
                module.write(source)


@pytest.fixture
def interpreter(machine, monkeypatch):
    """One without a TensorFlow."""
    return Interpreter(machine, monkeypatch)


def refusal():
    with pytest.raises(SystemExit) as error:
        build_tensorflow.find()
    return str(error.value)


@pytest.mark.parametrize(
    "package, version, tag",
    [
        ("tensorflow", "1.15.5", "1tf1.15.5"),
        ("tensorflow_gpu", "1.15.5", "1tf1.15.5"),
        ("nvidia_tensorflow", "1.15.5+nv22.12", "1tf1.15.5.nv22.12"),
    ],
)
def test_the_tensorflow_of_the_interpreter_is_taken(interpreter, package, version, tag):
    interpreter.install(interpreter.packages, package, version, TENSORFLOW.format("1.15.5"))
    found = build_tensorflow.find()
    assert found.identity == {
        "version": "1.15.5",
        "git_version": "v1.15.5-0",
        "cxx11_abi": 0,
        "platform": sysconfig.get_platform(),
        "python": "cp{}{}".format(*sys.version_info[:2]),
    }
    assert found.build_tag == tag
    assert build_tensorflow.requirements() == []


def test_the_tensorflow_of_the_build_environment_is_taken_where_the_interpreter_has_none(
    interpreter, monkeypatch, tmp_path
):
    interpreter.install(str(tmp_path / "overlay"), "tensorflow", "1.15.5", TENSORFLOW.format("1.15.5"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "overlay"))
    assert build_tensorflow.find().env["PYTHONPATH"] == str(tmp_path / "overlay")


@pytest.mark.skipif(sys.version_info >= (3, 8), reason="PyPI has no TensorFlow 1.15 for Python 3.8")
def test_the_build_environment_gets_one_where_the_interpreter_has_none(interpreter):
    assert build_tensorflow.requirements() == ["tensorflow==1.15.5", "numpy<1.19", "protobuf<3.21"]


@pytest.mark.parametrize("name, value", [("EPL_NATIVE", "off"), ("CXX", "no-such-compiler")])
def test_the_build_environment_gets_none_where_nothing_is_compiled(interpreter, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert build_tensorflow.requirements() == []


def test_none_at_all_is_refused_with_the_command(interpreter):
    assert f"{sys.executable}: there is no TensorFlow to build the native libraries for" in refusal()
    if sys.version_info < (3, 8):
        assert refusal().endswith('\n  pip install "tensorflow==1.15.5" "numpy<1.19" "protobuf<3.21"')


def test_a_protobuf_that_is_too_new_is_refused_with_the_command(interpreter):
    interpreter.install(interpreter.packages, "tensorflow", "1.15.5", PROTOBUF_4)
    interpreter.install(interpreter.packages, "protobuf", "4.24.4")
    assert "protobuf 4.24.4 is too new for TensorFlow 1.15, which cannot be imported" in refusal()
    assert refusal().endswith('\n  pip install "protobuf<3.21"')


def test_another_tensorflow_is_refused_by_its_version(interpreter):
    interpreter.install(interpreter.packages, "tensorflow", "2.11.0", TENSORFLOW.format("2.11.0"))
    assert "TensorFlow 2.11.0 is installed, and EPL needs TensorFlow 1.15, 2.15 or 2.21." in refusal()


@pytest.mark.parametrize(
    "version, tag", [("1.15.5", "cp36.cp37.cp38"), ("2.15.1", "cp311"), ("2.21.0", "cp310.cp311.cp312.cp313")]
)
def test_a_wheel_is_for_the_pythons_of_its_tensorflow(version, tag):
    assert build_tensorflow.BuildTensorFlow({}, {"version": version}, version).python_tag == tag


def test_a_tensorflow_that_cannot_be_imported_is_refused_with_its_error(interpreter):
    source = "raise ImportError('libcudart.so.10.0: cannot open shared object file')"
    interpreter.install(interpreter.packages, "tensorflow_gpu", "1.15.5", source)
    assert "ImportError: libcudart.so.10.0: cannot open shared object file" in refusal()
    assert "EPL_NATIVE=off" in refusal()
