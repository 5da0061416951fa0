"""The TensorFlow that the native libraries are built for: which one it is, and the refusal of one that will not do.

It is that of the interpreter EPL is installed for. pip builds in an environment of its own, which hides the packages of
that interpreter behind PYTHONPATH; without PYTHONPATH they are seen. Where the interpreter has no TensorFlow yet, as in
`pip install ".[cpu]"` into a fresh environment, the build environment gets one (`requirements`).

`setup.py` owns what is built, `build_backend.py` the hooks of PEP 517, `tools/tensorflow_releases.py` the releases.
Runs under every Python of these.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tools"))

import tensorflow_releases  # noqa: E402
from tensorflow_releases import Release  # noqa: E402

# Prints the versions of TensorFlow's packages and of protobuf as JSON; null where there is no TensorFlow.
_LIST_PACKAGES = r"""
import importlib.util, json, os, re, sys
pattern = re.compile(r"((?:[a-z]+_)?tensorflow(?:_gpu|_cpu)?|protobuf)-(\d[^-]*)\.(?:dist|egg)-info$")
found = {}
for folder in sys.path:
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        match = pattern.match(name)
        if match:
            found.setdefault(match.group(1).replace("_", "-"), match.group(2))
print(json.dumps(found if importlib.util.find_spec("tensorflow") else None))
"""


class BuildTensorFlow(NamedTuple):
    """A TensorFlow to build for.

    Attributes:
        env: the environment variables with which the interpreter imports it.
        identity: what `csrc/tensorflow_flags.py --identity` says of it.
        release: the version of its package, such as "1.15.5+nv22.12".
    """

    env: Dict[str, str]
    identity: Dict[str, Any]
    release: str

    @property
    def build_tag(self) -> str:
        """The build tag of a wheel for it, such as 1tf1.15.5; a build tag begins with a digit (PEP 427)."""
        return "1tf" + re.sub(r"[^A-Za-z0-9.]", ".", self.release)

    @property
    def python_tag(self) -> str:
        """The Pythons that have it, such as cp36.cp37.cp38: the libraries use no interface of Python."""
        release = _release_of(self.identity["version"])
        assert release is not None, self.identity
        return ".".join("cp{}{}".format(*python) for python in sorted(release.pythons))


def missing_tools() -> List[str]:
    """The programs of the build that are not on PATH."""
    compiler = os.environ.get("CXX", "g++").split()[0]
    return [name for name in (compiler, "make") if shutil.which(name) is None]


def requirements() -> List[str]:
    """What the build environment needs for the native libraries: a TensorFlow, where the interpreter has none."""
    builds = os.environ.get("EPL_NATIVE", "auto") != "off" and not missing_tools()
    release = _release_of_python()
    if not builds or release is None or _packages(_interpreter_env()) is not None:
        return []
    return list(release.cpu)


def find() -> BuildTensorFlow:
    """The TensorFlow to build for: that of the interpreter, else that of the build environment.

    Raises:
        SystemExit: there is none, it cannot be imported, or EPL is not for it. The text ends with what to type.
    """
    env = _interpreter_env()
    packages = _packages(env)
    if packages is None:
        env = dict(os.environ)
        packages = _packages(env)
    if packages is None:
        raise SystemExit(_refusal("there is no TensorFlow to build the native libraries for", _how_to_install()))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", os.path.join(ROOT, "csrc", "tensorflow_flags.py"), "--identity"],
        env=env, cwd=os.path.sep, check=False, universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(_import_refusal(packages, done.returncode, done.stderr.strip()))
    identity = json.loads(done.stdout.strip().split("\n")[-1])
    if _release_of(identity["version"]) is None:
        needed = " or ".join([", ".join(tensorflow_releases.NAMES[:-1]), tensorflow_releases.NAMES[-1]])
        seen = "TensorFlow {} is installed, and EPL needs TensorFlow {}".format(identity["version"], needed)
        raise SystemExit(_refusal(seen, _how_to_install()))
    releases = [version for _, version in sorted(packages.items()) if version.startswith(identity["version"])]
    return BuildTensorFlow(env, identity, releases[0] if releases else identity["version"])


def _release_of(version: str) -> Optional[Release]:
    """The release of a version such as "1.15.5", or None."""
    return tensorflow_releases.by_name(".".join(version.split(".")[:2]))


def _release_of_python() -> Optional[Release]:
    """The release that PyPI has for this Python, or None."""
    release = tensorflow_releases.of_python(sys.version_info)
    return release if release is not None and sys.version_info[:2] in release.on_pypi else None


def _interpreter_env() -> Dict[str, str]:
    """The environment without what pip's isolated build sets to hide the packages of the interpreter."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONNOUSERSITE")}


def _packages(env: Dict[str, str]) -> Optional[Dict[str, str]]:
    """Versions of TensorFlow's packages and of protobuf by name; None where there is no TensorFlow."""
    command = [sys.executable, "-c", _LIST_PACKAGES]
    found: Optional[Dict[str, str]] = json.loads(subprocess.check_output(command, env=env, cwd=os.path.sep).decode())
    return found


def _import_refusal(packages: Dict[str, str], code: int, words: str) -> str:
    if "Descriptors cannot" in words:
        found = packages.get("protobuf", "")
        seen = f"protobuf {found} is too new for TensorFlow 1.15, which cannot be imported"
        return _refusal(seen, 'Install an older one, then EPL again:\n  pip install "protobuf<3.21"')
    errors = [line for line in words.split("\n") if re.match(r"\w+(Error|Exception)\b", line)]
    cause = errors[-1] if errors else f"it ended with {code}: {words[-500:]}"
    return _refusal(
        f"TensorFlow cannot be imported to build the native libraries for it: {cause}",
        "Make `import tensorflow` work, or leave the libraries out: EPL_NATIVE=off pip install .",
    )


def _how_to_install() -> str:
    release = _release_of_python()
    if release is None:
        return (
            "PyPI has TensorFlow 1.15 for Python 3.6 and 3.7, and 2.21 for 3.10 to 3.13: make an environment of one of "
            "these. For Python 3.8 NVIDIA's container images have nvidia-tensorflow."
        )
    words = " ".join(f'"{word}"' for word in release.cpu)
    return f"Install it, then EPL again:\n  pip install {words}"


def _refusal(seen: str, remedy: str) -> str:
    return f"EPL: {sys.executable}: {seen}.\n{remedy}"
