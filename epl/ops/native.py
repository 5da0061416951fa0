"""Loading of the native libraries and the ctypes binding of the collective core's C ABI (csrc/comm/epl_comm.h).

Importing this module loads nothing: a package without its libraries still imports, warns, and refuses when a collective
is first needed. Jobs and communicators are in `job.py` and `communicator.py`.
"""

import ctypes
import json
import logging
import os
import sys
import sysconfig
import threading
from typing import Any, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ops.nccl_wheel import load_nccl
from epl.utils.errors import EplError

ABI_VERSION = 4


def _library_folder(lib: str) -> str:
    """The folder that csrc/tensorflow_flags.py names for this TensorFlow and Python, where it is there; else `lib`."""
    major, minor = tf.VERSION.split(".")[:2]
    named = os.path.join(lib, f"tf{major}.{minor}-cp{sys.version_info[0]}{sys.version_info[1]}")
    return named if os.path.isdir(named) else lib


LIBRARY_FOLDER = _library_folder(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
CORE_LIBRARY = "libepl_comm.so"
OP_LIBRARY = "libepl_tf.so"
BUILT_FOR = "built_for.json"  # the TensorFlow of the op library; csrc/tensorflow_flags.py writes it
LEFT_OUT = "left_out.txt"  # in a package without libraries: why; setup.py writes it

_HOW_TO_BUILD = (
    "Build the native part with `make build` in a source checkout (needs g++ 7 or later and make), or install the "
    "package again where a compiler is: EPL_NATIVE=on pip install --force-reinstall --no-deps ."
)

logger = logging.getLogger("epl")


class NativeUnavailableError(EplError, RuntimeError):
    """The native collectives cannot be used here; the message says why and what to do."""


class Status(ctypes.Structure):
    """epl_status."""

    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 4096)]


# epl_mac_fn: context, bytes, their number, 32 bytes for the result; 0 if it cannot.
MacFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class JobOptions(ctypes.Structure):
    """epl_job_options."""

    _fields_ = [
        ("num_processes", ctypes.c_int),
        ("process", ctypes.c_int),
        ("hosts", ctypes.POINTER(ctypes.c_char_p)),
        ("listen_fd", ctypes.c_int),
        ("start_timeout_s", ctypes.c_double),
        ("stall_warning_s", ctypes.c_double),
        ("timeout_s", ctypes.c_double),
        ("job_name", ctypes.c_char_p),
        ("mac", MacFunction),
        ("mac_context", ctypes.c_void_p),
    ]


class Native:
    """The loaded libraries.

    Attributes:
        core: the collective core, its functions typed.
        ops: the module of op wrappers that `tf.load_op_library` made.
    """

    def __init__(self, core: ctypes.CDLL, ops: Any) -> None:
        self.core = core
        self.ops = ops

    def transports(self) -> List[str]:
        """Names of the transports that this build has: local, shm, gloo, nccl."""
        return self.core.epl_comm_transports(None).decode().split()

    def missing_transports(self) -> str:
        """What the missing transports need, in words; empty if none is missing."""
        why = ctypes.c_char_p()
        self.core.epl_comm_transports(ctypes.byref(why))
        return (why.value or b"").decode()


class _Loader:
    """Loads once, under a lock; after a failure the next call tries again: the libraries may be built by then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._native: Optional[Native] = None

    def load(self) -> Native:
        with self._lock:
            if self._native is None:
                _check_files()
                load_nccl()
                core = _load_core(os.path.join(LIBRARY_FOLDER, CORE_LIBRARY))
                self._native = Native(core, _load_ops(os.path.join(LIBRARY_FOLDER, OP_LIBRARY)))
            return self._native


_LOADER = _Loader()


def require() -> Native:
    """The native libraries.

    Raises:
        NativeUnavailableError: if they are missing or do not fit.
    """
    return _LOADER.load()


def available() -> bool:
    """Whether the native collectives can be used."""
    return why_not() is None


def why_not() -> Optional[str]:
    """Why the native collectives cannot be used and what to do about it; None if they can."""
    try:
        require()
    except NativeUnavailableError as error:
        return str(error)
    return None


def warn_if_left_out() -> None:
    """Logs one line if the libraries are not there or were built for another TensorFlow. Loads nothing."""
    try:
        _check_files()
    except NativeUnavailableError as error:
        logger.warning("EPL: %s", error)


def _check_files() -> None:
    """Raises unless both libraries are there, the op library for this TensorFlow."""
    core, ops = (os.path.join(LIBRARY_FOLDER, name) for name in (CORE_LIBRARY, OP_LIBRARY))
    if not os.path.exists(core):
        raise _unavailable(f"{core} does not exist{_why_left_out()}.")
    if not os.path.exists(ops):
        raise _unavailable(f"{ops} does not exist, although {CORE_LIBRARY} does.")
    _check_tensorflow(ops, os.path.join(LIBRARY_FOLDER, BUILT_FOR))


def _why_left_out() -> str:
    path = os.path.join(LIBRARY_FOLDER, LEFT_OUT)
    if not os.path.exists(path):
        return ""
    with open(path) as note:
        return f": the package was built without it ({note.read().strip()})"


def _check_tensorflow(ops: str, note: str) -> None:
    try:
        with open(note) as source:
            built_for = json.load(source)
    except (OSError, ValueError) as error:
        raise _unavailable(f"which TensorFlow {ops} was built for cannot be read from {note}: {error}.") from error
    here = {
        "version": tf.VERSION,
        "git_version": tf.GIT_VERSION,
        "cxx11_abi": int(tf.CXX11_ABI_FLAG),
        "platform": sysconfig.get_platform(),
        "python": f"cp{sys.version_info[0]}{sys.version_info[1]}",
    }
    # Not the Python: the libraries use no interface of it.
    if any(built_for.get(key) != here[key] for key in here if key != "python"):
        raise _unavailable(f"{ops} was built for {_tensorflow_text(built_for)}, and this is {_tensorflow_text(here)}.")


def _tensorflow_text(identity: Dict[str, Any]) -> str:
    text = "TensorFlow {version} (sources {git_version}, C++11 ABI {cxx11_abi}, {platform}, Python {python})"
    keys = ("version", "git_version", "cxx11_abi", "platform", "python")
    return text.format_map({key: identity.get(key, "unknown") for key in keys})


def _unavailable(what: str) -> NativeUnavailableError:
    return NativeUnavailableError(
        "Collectives between devices and processes are off: {} {}".format(what, _HOW_TO_BUILD)
    )


def _load_core(path: str) -> ctypes.CDLL:
    try:
        # Global: the op library finds the symbols in this very copy, so both see one registry of communicators.
        core = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _unavailable(f"{path} does not load: {error}.") from error
    # The version first: a library of another version may lack functions.
    version = _function(core, "epl_comm_abi_version", ctypes.c_int, [])()
    if version != ABI_VERSION:
        raise _unavailable(f"{path} has ABI version {version}, this package needs {ABI_VERSION}.")
    _bind(core)
    return core


def _load_ops(path: str) -> Any:
    try:
        return tf.load_op_library(path)
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        raise _unavailable(f"{path} does not load into TensorFlow {tf.VERSION}: {error}.") from error


def _bind(core: ctypes.CDLL) -> None:
    """Gives the functions of the core their types; without them ctypes would cut pointers to 32 bits."""
    text, number, pointer = ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
    status = ctypes.POINTER(Status)
    signatures: Dict[str, Tuple[Any, List[Any]]] = {
        "epl_job_start": (number, [ctypes.POINTER(JobOptions), ctypes.POINTER(pointer), status]),
        "epl_listen": (number, [text, ctypes.POINTER(text), number, ctypes.POINTER(number), status]),
        "epl_job_stop": (None, [pointer]),
        "epl_job_exchange": (
            number,
            [pointer, text, text, ctypes.c_int64, ctypes.POINTER(pointer), ctypes.POINTER(ctypes.c_int64), status],
        ),
        "epl_job_missing": (number, [pointer, text, ctypes.POINTER(number)]),
        "epl_job_silences": (None, [pointer, ctypes.POINTER(ctypes.c_double)]),
        "epl_free": (None, [pointer]),
        "epl_job_end_generation": (None, [pointer, text]),
        "epl_job_generation": (ctypes.c_int64, [pointer]),
        "epl_job_end_generation_of": (None, [pointer, ctypes.c_int64, text]),
        "epl_job_abort": (None, [pointer, text]),
        "epl_job_trouble": (number, [pointer, status]),
        "epl_communicator_create": (
            number,
            [pointer, text, ctypes.POINTER(number), number, text, ctypes.POINTER(pointer), status],
        ),
        "epl_communicator_find": (pointer, [text]),
        "epl_communicator_size": (number, [pointer]),
        "epl_communicator_transport": (text, [pointer]),
        "epl_communicator_destroy": (None, [pointer]),
        "epl_comm_transports": (text, [ctypes.POINTER(text)]),
    }
    for name, (result, arguments) in signatures.items():
        _function(core, name, result, arguments)


def _function(core: ctypes.CDLL, name: str, result: Any, arguments: List[Any]) -> Any:
    """A function of the core, with its types from now on."""
    try:
        function = getattr(core, name)
    except AttributeError as error:
        raise _unavailable(f"{CORE_LIBRARY} has no function {name}.") from error
    function.restype = result
    function.argtypes = arguments
    return function
