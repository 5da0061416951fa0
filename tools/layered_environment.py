"""Virtual environments with more packages than the project's own one, which they see and leave as it is.

`make bench` and `make docs` each have one. It uses the TensorFlow and the EPL of the environment that makes it. It is
made on first use, and again after its requirements or that environment have changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Dict, List, NamedTuple, Tuple

_STAMP = "layered_environment.stamp"
_LOG = "build.log"


class BuildError(RuntimeError):
    """The environment could not be made; the message says why, and what to do."""


class LayeredEnvironment(NamedTuple):
    """What is in an environment, and where it is.

    Attributes:
      directory: path of the environment.
      requirements: path of the file with exact versions of all that it adds.
      pip_options: further options of `pip install`.
      variables: of the environment in which pip runs.
      probe: an import statement that works when everything is there.
    """

    directory: str
    requirements: str
    pip_options: Tuple[str, ...] = ()
    variables: Tuple[Tuple[str, str], ...] = ()
    probe: str = "pass"

    @property
    def python(self) -> str:
        """Path of the interpreter, which may not exist yet."""
        return os.path.join(self.directory, "bin", "python")

    def is_ready(self) -> bool:
        """Whether the environment is there and has what it should have."""
        try:
            with open(os.path.join(self.directory, _STAMP)) as file:
                return file.read() == self._fingerprint()
        except OSError:
            return False

    def make(self) -> None:
        """Makes the environment anew.

        Raises:
          BuildError: a step failed.
        """
        shutil.rmtree(self.directory, ignore_errors=True)
        self._run([sys.executable, "-m", "venv", "--without-pip", self.directory])
        self._layer()
        install = [self.python, "-m", "pip", "install", "--no-deps", *self.pip_options, "-r", self.requirements]
        self._run((["nice", "-n", "10"] if shutil.which("nice") else []) + install)
        self._run([self.python, "-c", self.probe])
        with open(os.path.join(self.directory, _STAMP), "w") as file:
            file.write(self._fingerprint())

    def _fingerprint(self) -> str:
        """A digest of everything that the environment depends on."""
        digest = hashlib.sha256()
        with open(self.requirements, "rb") as file:
            digest.update(file.read())
        for part in (sys.executable, sys.version, _own_packages(), repr(self.pip_options), repr(self.variables)):
            digest.update(part.encode())
        return digest.hexdigest()

    def _layer(self) -> None:
        """Makes the packages of this Python importable.

        By `site.addsitedir` in place of a line with the path alone: so EPL, which is installed in place, is seen, too.
        """
        version = "python%d.%d" % sys.version_info[:2]
        path = os.path.join(self.directory, "lib", version, "site-packages", "layered_environment.pth")
        with open(path, "w") as file:
            file.write("import site; site.addsitedir(%r)\n" % _own_packages())

    def _run(self, command: List[str]) -> None:
        environment: Dict[str, str] = dict(os.environ)
        environment.update(self.variables)
        environment.pop("PYTHONPATH", None)
        log = os.path.join(self.directory, _LOG)
        os.makedirs(self.directory, exist_ok=True)
        with open(log, "ab") as file:
            code = subprocess.call(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        if code != 0:
            with open(log, "rb") as file:
                tail = b"\n".join(file.read().splitlines()[-15:]).decode(errors="replace")
            raise BuildError("exit code %d from: %s\nlast lines of %s:\n%s" % (code, " ".join(command), log, tail))


def _own_packages() -> str:
    return sysconfig.get_paths()["purelib"]
