"""What set-up needs from the operating system: a C++ compiler, make, the Gloo library, a GPU or none.

Owns looking for them, installing them with apt when run as root, and the exact command to type otherwise.
"""

import glob
import os
import re
import shutil
import subprocess
from typing import Callable, List, Mapping, Optional

from pythons import SetUpError

# The range that TensorFlow 1.15's headers are known to compile with.
OLDEST_GCC, NEWEST_GCC = 7, 12


def has_gpu(env: Mapping[str, str]) -> bool:
    """Whether an NVIDIA GPU is seen."""
    if glob.glob("/proc/driver/nvidia/gpus/*"):
        return True
    program = shutil.which("nvidia-smi", path=env.get("PATH"))
    if program is None:
        return False
    try:
        done = subprocess.run(
            [program, "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"GPU" in done.stdout


def compiler(env: Mapping[str, str]) -> Optional[str]:
    """The C++ compiler to use: `CXX`, else g++, else g++-12 down to g++-7; one in the known range goes first."""
    if env.get("CXX"):
        return env["CXX"]
    names = ["g++"] + [f"g++-{major}" for major in range(NEWEST_GCC, OLDEST_GCC - 1, -1)]
    there = [name for name in names if shutil.which(name, path=env.get("PATH"))]
    known = [name for name in there if OLDEST_GCC <= compiler_major(name, env) <= NEWEST_GCC]
    return (known or there or [None])[0]  # type: ignore


def compiler_major(name: str, env: Mapping[str, str]) -> int:
    """The major version that the compiler gives of itself; 0 when it gives none."""
    match = re.match(r"(\d+)", _output([name, "-dumpversion"], env))
    return int(match.group(1)) if match else 0


def compiler_identity(name: str, env: Mapping[str, str]) -> str:
    """Text that changes when another compiler takes the name."""
    return _output([name, "--version"], env).split("\n")[0]


def has_gloo(cxx: str, env: Mapping[str, str]) -> bool:
    """Whether the compiler finds Gloo's headers."""
    test = b"#if !__has_include(<gloo/context.h>)\n#error\n#endif\n"
    try:
        done = subprocess.run(
            cxx.split() + ["-E", "-x", "c++", "-"], input=test, env=dict(env), check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0


class Packages:
    """Installs Debian packages, or says how; `apt-get update` runs once, before the first installation."""

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._env = dict(env, DEBIAN_FRONTEND="noninteractive")
        self._say = say
        self._updated = False

    def require(self, names: List[str], why: str) -> None:
        """Installs the packages or raises SetUpError with the command to type."""
        command = "apt-get update && apt-get install -y " + " ".join(names)
        if not self._allowed():
            raise SetUpError(f"{why}\nInstall it as root, then run this again:\n  {command}")
        if not self.install(names, why):
            raise SetUpError(f"{why}\nThis failed (its output is above):\n  {command}")

    def prefer(self, names: List[str], why: str) -> None:
        """Installs the packages where that is possible; else says what is lost and goes on."""
        if not self._allowed() or not self.install(names, why):
            self._say("note: {} To have it: apt-get install {}".format(why, " ".join(names)))

    def install(self, names: List[str], why: str) -> bool:
        """Runs apt-get; True when it succeeded."""
        self._say("{} Installing: {}".format(why, " ".join(names)))
        if not self._updated:
            subprocess.run(["apt-get", "update", "-qq"], env=self._env, check=False)
            self._updated = True
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"] + names
        return subprocess.run(command, env=self._env, stdout=subprocess.DEVNULL, check=False).returncode == 0

    def _allowed(self) -> bool:
        root = os.geteuid() == 0
        return root and self._env.get("EPL_APT") != "off" and bool(shutil.which("apt-get", path=self._env.get("PATH")))


def _output(command: List[str], env: Mapping[str, str]) -> str:
    words = command[0].split() + command[1:]  # CXX may be "ccache g++"
    try:
        done = subprocess.run(words, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return ""
    return done.stdout.decode(errors="replace").strip()
