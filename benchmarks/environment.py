"""The Python environment of the peers that EPL is measured against.

Owns ``.venv-bench``: an environment layered on the product's own one (same TensorFlow, same NumPy) that adds what
``benchmarks/requirements.txt`` lists, so that the product's environment stays free of other libraries. Built once and
reused while requirements and interpreter stay the same. How peers are started is left to ``benchmarks/workers.py``.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Dict, List

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIRECTORY = os.path.join(ROOT, ".venv-bench")
REQUIREMENTS = os.path.join(ROOT, "benchmarks", "requirements.txt")
BUILD_SWITCHES = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
}
_STAMP = "benchmarks.stamp"
_LOG = "build.log"


class PeerUnavailableError(RuntimeError):
    """A peer library could not be built; the message says why and what to do."""


def python() -> str:
    """Returns the interpreter of the peers' environment, which may not exist yet."""
    return os.path.join(DIRECTORY, "bin", "python")


def ensure() -> str:
    """Builds the peers' environment unless an equal one is there.

    Returns:
        The path of its interpreter.

    Raises:
        PeerUnavailableError: a tool is missing or the build failed.
    """
    fingerprint = _fingerprint()
    stamp = os.path.join(DIRECTORY, _STAMP)
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == fingerprint:
                return python()
    _check_tools()
    print("building Horovod for the benchmarks in %s (some minutes, once)" % DIRECTORY, flush=True)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", DIRECTORY], {})
    _layer_on_product()
    _run(_install_command(), BUILD_SWITCHES)
    _run([python(), "-c", "import horovod.tensorflow"], {})
    with open(stamp, "w") as file:
        file.write(fingerprint)
    return python()


def _fingerprint() -> str:
    """Returns a digest of everything that the built environment depends on."""
    digest = hashlib.sha256()
    with open(REQUIREMENTS, "rb") as file:
        digest.update(file.read())
    for part in (sys.executable, sys.version, _product_packages(), repr(sorted(BUILD_SWITCHES.items()))):
        digest.update(part.encode())
    return digest.hexdigest()


def _product_packages() -> str:
    return sysconfig.get_paths()["purelib"]


def _check_tools() -> None:
    missing = [tool for tool in ("cmake", "g++", "make") if shutil.which(tool) is None]
    if missing:
        raise PeerUnavailableError(
            "Horovod cannot be built: %s not found on PATH. Install with: apt-get install -y "
            "cmake g++ make" % ", ".join(missing)
        )


def _layer_on_product() -> None:
    """Makes the product's packages, TensorFlow among them, importable from the peers' environment.

    ``site.addsitedir`` rather than a plain path line, so that the product's own in-place installation is seen too.
    """
    major_minor = "python%d.%d" % sys.version_info[:2]
    path = os.path.join(DIRECTORY, "lib", major_minor, "site-packages", "product.pth")
    with open(path, "w") as file:
        file.write("import site; site.addsitedir(%r)\n" % _product_packages())


def _install_command() -> List[str]:
    """Returns the pip call: no build isolation, since Horovod compiles against the TensorFlow that is there."""
    command = [python(), "-m", "pip", "install", "--no-build-isolation", "--no-deps", "-r", REQUIREMENTS]
    return ["nice", "-n", "10"] + command if shutil.which("nice") else command


def _run(command: List[str], extra_environment: Dict[str, str]) -> None:
    environment = dict(os.environ)
    environment.update(extra_environment)
    environment.pop("PYTHONPATH", None)
    log = os.path.join(DIRECTORY, _LOG)
    os.makedirs(DIRECTORY, exist_ok=True)
    with open(log, "ab") as file:
        code = subprocess.call(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    if code != 0:
        with open(log, "rb") as file:
            tail = b"\n".join(file.read().splitlines()[-15:]).decode(errors="replace")
        raise PeerUnavailableError(
            "exit code %d from: %s\nlast lines of %s:\n%s" % (code, " ".join(command), log, tail)
        )
