"""Loading of the native libraries, and what works without them."""

import ctypes
import json
import os
import shutil
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels

from epl.ops import native
from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from tests.op_registry import registered_ops


@pytest.fixture
def loader():
    """One that has loaded nothing yet."""
    return native._Loader()


def test_missing_library_is_reported_with_the_command_to_build_it(monkeypatch, tmp_path, loader):
    monkeypatch.setattr(native, "LIBRARY_FOLDER", str(tmp_path))
    monkeypatch.setattr(native, "_LOADER", loader)
    assert not native.available()
    assert "libepl_comm.so does not exist" in native.why_not()
    assert "make build" in native.why_not()


@pytest.fixture
def libraries(monkeypatch, tmp_path):
    """A folder for libraries of a test, with the note of this TensorFlow and files that are no libraries."""
    shutil.copy(os.path.join(native.LIBRARY_FOLDER, native.BUILT_FOR), str(tmp_path))
    for name in (native.CORE_LIBRARY, native.OP_LIBRARY):
        (tmp_path / name).write_text("nothing")
    monkeypatch.setattr(native, "LIBRARY_FOLDER", str(tmp_path))
    return tmp_path


def test_libraries_of_another_tensorflow_are_refused_by_its_name(libraries, loader):
    other = {"version": "1.15.5", "git_version": "v1.15.5+nv22.12", "cxx11_abi": 1, "platform": "p", "python": "cp38"}
    (libraries / native.BUILT_FOR).write_text(json.dumps(other))
    expected = (
        r"was built for TensorFlow 1.15.5 \(sources v1.15.5\+nv22.12, C\+\+11 ABI 1, p, Python cp38\), and this is "
        "TensorFlow "
    )
    with pytest.raises(native.NativeUnavailableError, match=expected + tf.VERSION):
        loader.load()


@pytest.mark.parametrize("key", ["version", "git_version", "cxx11_abi", "platform"])
def test_libraries_that_differ_in_one_thing_are_refused(libraries, loader, key):
    note = json.loads((libraries / native.BUILT_FOR).read_text())
    (libraries / native.BUILT_FOR).write_text(json.dumps(dict(note, **{key: "another"})))
    with pytest.raises(native.NativeUnavailableError, match="was built for TensorFlow .*another"):
        loader.load()


def test_libraries_serve_another_python_with_the_same_tensorflow(libraries):
    note = json.loads((libraries / native.BUILT_FOR).read_text())
    (libraries / native.BUILT_FOR).write_text(json.dumps(dict(note, python="cp399")))
    native._check_files()


def test_the_folder_of_this_tensorflow_and_python_goes_before_the_common_one(tmp_path):
    folder = "tf{}.{}-cp{}{}".format(*tf.VERSION.split(".")[:2], *sys.version_info[:2])
    assert native._library_folder(str(tmp_path)) == str(tmp_path)
    (tmp_path / folder).mkdir()
    assert native._library_folder(str(tmp_path)) == str(tmp_path / folder)


def test_the_build_writes_where_the_package_looks():
    flags = os.path.join(os.path.dirname(__file__), "..", "..", "csrc", "tensorflow_flags.py")
    named = subprocess.check_output([sys.executable, flags, "--folder"], universal_newlines=True).strip()
    assert named == ("" if tf.VERSION.startswith("1.") else native.LIBRARY_FOLDER.rpartition(os.sep)[2])


@pytest.mark.parametrize("note", [None, "{"])
def test_libraries_of_an_unknown_tensorflow_are_refused(libraries, loader, note):
    (libraries / native.BUILT_FOR).unlink() if note is None else (libraries / native.BUILT_FOR).write_text(note)
    with pytest.raises(native.NativeUnavailableError, match="which TensorFlow .* was built for cannot be read from"):
        loader.load()


def test_a_core_without_kernels_is_refused(libraries, loader):
    (libraries / native.OP_LIBRARY).unlink()
    with pytest.raises(native.NativeUnavailableError, match="libepl_tf.so does not exist, although"):
        loader.load()


def test_an_import_warns_in_one_line_where_the_libraries_were_left_out(monkeypatch, tmp_path, caplog):
    (tmp_path / native.LEFT_OUT).write_text("no g++ on PATH\n")
    monkeypatch.setattr(native, "LIBRARY_FOLDER", str(tmp_path))
    native.warn_if_left_out()
    (record,) = caplog.records
    assert "does not exist: the package was built without it (no g++ on PATH)." in record.getMessage()
    assert "\n" not in record.getMessage()


def test_an_import_is_silent_where_the_libraries_are(caplog):
    native.warn_if_left_out()
    assert caplog.records == []


def test_older_library_without_todays_functions_is_refused_by_its_version(libraries, loader):
    source = libraries / "older.c"
    source.write_text("int epl_comm_abi_version(void) { return 1; }")
    subprocess.check_call(["gcc", "-shared", "-fPIC", "-o", str(libraries / native.CORE_LIBRARY), str(source)])
    with pytest.raises(native.NativeUnavailableError, match="has ABI version 1, this package needs .* `make build`"):
        loader.load()


def test_file_that_is_no_library_is_refused(libraries, loader):
    with pytest.raises(native.NativeUnavailableError, match="does not load"):
        loader.load()


def test_world_of_one_needs_no_library(monkeypatch, tmp_path, loader):
    monkeypatch.setattr(native, "LIBRARY_FOLDER", str(tmp_path))
    monkeypatch.setattr(native, "_LOADER", loader)
    communicator = Communicator("alone", [0])
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(communicator.all_reduce(tf.constant(3.0), 0, "x", "mean", weight=2.0)) == 6.0


def test_several_ranks_without_a_library_are_refused(monkeypatch, tmp_path, loader):
    monkeypatch.setattr(native, "LIBRARY_FOLDER", str(tmp_path))
    monkeypatch.setattr(native, "_LOADER", loader)
    with pytest.raises(native.NativeUnavailableError):
        Job(ctypes.c_void_p(1), ["localhost:0"], 0).create_communicator("pair", [0, 0], "auto")


def test_transports_of_this_build_are_listed():
    assert "local" in native.require().transports()


@pytest.mark.parametrize("op_type", sorted(COLLECTIVE_OP_TYPES))
def test_every_op_has_kernels_for_both_kinds_of_devices(op_type):
    native.require()
    devices = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(op_type).kernel}
    assert devices == {"CPU", "GPU"}


def test_parameters_stay_in_host_memory_on_a_gpu():
    native.require()
    host = {}
    for op_type in COLLECTIVE_OP_TYPES:
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel:
            if kernel.device_type == "GPU":
                host[op_type] = sorted(kernel.host_memory_arg)
    assert host == {
        "EplAllReduce": ["weight"],
        "EplReduce": ["weight"],
        "EplBroadcast": [],
        "EplAllGather": ["rows"],
        "EplReduceScatter": ["weight"],
        "EplAllToAll": [],
        "EplAllToAllV": ["received", "row_splits"],
    }


def test_table_of_op_types_agrees_with_the_ops():
    native.require()

    for op_type, facts in COLLECTIVE_OP_TYPES.items():
        op_def = registered_ops()[op_type]
        attributes = {attr.name for attr in op_def.attr}
        assert {"communicator", "rank", "key"} <= attributes
        assert op_def.is_stateful
        assert op_def.input_arg[facts.first_tensor].type_attr == "T"
        assert facts.fused == ("N" in attributes)
        assert facts.reduces == ("reduce_op" in attributes)


def test_libraries_lie_in_the_package():
    assert os.path.join("epl", "lib") in native.LIBRARY_FOLDER
