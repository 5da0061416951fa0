"""The Python environment of the peers that EPL is measured against.

Owns ``.venv-bench``: an environment layered on the product's own one (same TensorFlow, same NumPy) that adds what
``benchmarks/requirements.txt`` lists, so that the product's environment stays free of other libraries. How such an
environment is made is left to ``tools/layered_environment.py``, how peers are started to ``benchmarks/groups.py``.
"""

import os
import shutil

from tools.layered_environment import BuildError, LayeredEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PEERS = LayeredEnvironment(
    directory=os.path.join(ROOT, ".venv-bench"),
    requirements=os.path.join(ROOT, "benchmarks", "requirements.txt"),
    pip_options=("--no-build-isolation",),  # Horovod compiles against the TensorFlow that is there
    variables=(
        ("HOROVOD_WITH_TENSORFLOW", "1"),
        ("HOROVOD_WITHOUT_PYTORCH", "1"),
        ("HOROVOD_WITHOUT_MXNET", "1"),
        ("HOROVOD_WITHOUT_MPI", "1"),
        ("HOROVOD_WITH_GLOO", "1"),
    ),
    probe="import horovod.tensorflow",
)


class PeerUnavailableError(RuntimeError):
    """A peer library could not be built; the message says why and what to do."""


def python() -> str:
    """Returns the interpreter of the peers' environment, which may not exist yet."""
    return _PEERS.python


def ensure() -> str:
    """Builds the peers' environment unless an equal one is there.

    Returns:
        The path of its interpreter.

    Raises:
        PeerUnavailableError: a tool is missing or the build failed.
    """
    if _PEERS.is_ready():
        return python()
    _check_tools()
    print("building Horovod for the benchmarks in %s (some minutes, once)" % _PEERS.directory, flush=True)
    try:
        _PEERS.make()
    except BuildError as error:
        raise PeerUnavailableError(str(error)) from error
    return python()


def _check_tools() -> None:
    missing = [tool for tool in ("cmake", "g++", "make") if shutil.which(tool) is None]
    if missing:
        raise PeerUnavailableError(
            "Horovod cannot be built: %s not found on PATH. Install with: apt-get install -y "
            "cmake g++ make" % ", ".join(missing)
        )
