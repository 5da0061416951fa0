"""Finds the Python that the project runs on.

TensorFlow 1.15 has wheels for Python 3.7 and 3.6; for 3.8 only NVIDIA's build exists, which comes with a machine or an
image and not from PyPI. So the order is 3.7, 3.6, a 3.8 that already has a TensorFlow 1.15, then the Pythons of
TensorFlow 2. `TF` admits those of one TensorFlow alone.

Owns the search and its words. Making the virtual environment is `environment.py`'s. Reads only the environment that it
is given, so that tests can describe a machine. Any Python from 3.6 can run this file.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import tensorflow_releases
from tensorflow_releases import Release

# The last uv releases that know Python 3.7 are below 0.7; any uv can run another uv.
UV_INSTALL = ["tool", "run", "--from", "uv<0.7", "uv", "python", "install"]

_PROBE = r"""
import importlib.util, json, os, re, sys
pattern = re.compile(r"((?:[a-z]+_)?tensorflow(?:_gpu|_cpu)?)-(1\.15[^-]*)\.(?:dist|egg)-info$")
base = getattr(sys, "base_prefix", sys.prefix)
found = None
for folder in sys.path:
    if sys.prefix != base and os.path.abspath(folder).startswith(sys.prefix):
        continue  # of a virtual environment: another one does not see it
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        match = pattern.match(name)
        if match and found is None:
            found = match.group(1).replace("_", "-") + " " + match.group(2)
has_venv = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
print(json.dumps({"version": list(sys.version_info[:3]), "has_venv": has_venv, "tensorflow": found}))
"""


class SetUpError(Exception):
    """Set-up cannot go on; the message says what to do."""


class Interpreter(NamedTuple):
    path: str
    version: Tuple[int, ...]
    has_venv: bool
    tensorflow: Optional[str]
    origin: str


def version_text(version: Tuple[int, ...]) -> str:
    """(3, 7, 16) as "3.7.16"."""
    return ".".join(str(part) for part in version)


def probe(path: str, origin: str, env: Mapping[str, str]) -> Optional[Interpreter]:
    """Asks the interpreter at `path` what it is; None when it does not run (a pyenv shim without that version)."""
    clean = {key: value for key, value in env.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [path, "-c", _PROBE], env=clean, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
        )
        facts = json.loads(done.stdout.decode())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Interpreter(path, tuple(facts["version"]), facts["has_venv"], facts["tensorflow"], origin)


def choose(env: Mapping[str, str], venv: str, say: Callable[[str], None]) -> Interpreter:
    """The interpreter that the virtual environment at `venv` is to be made from.

    Args:
        env: Environment variables; `PYTHON` overrides the search.
        venv: Folder of the virtual environment; interpreters inside are passed over.
        say: Takes a line for the user.

    Raises:
        SetUpError: There is none; the message lists what was seen and how to get one.
    """
    release = chosen_release(env)
    if env.get("PYTHON"):
        return _named(env["PYTHON"], env)
    wanted_versions = accepted(release)
    seen: List[str] = []
    for attempt in ("look", "fetch"):
        if attempt == "fetch" and not _fetch(release or tensorflow_releases.RELEASES[0], env, say):
            break
        for wanted in wanted_versions:
            for path, origin in _candidates(wanted, env, venv):
                found = probe(path, origin, env)
                if found is None or found.version[:2] != wanted:
                    continue
                refusal = _refusal(found, release)
                if refusal is None:
                    return found
                seen.append(f"  {found.path} ({version_text(found.version)}): {refusal}")
    raise SetUpError(_none_found(seen, release))


def chosen_release(env: Mapping[str, str]) -> Optional[Release]:
    """The TensorFlow that `TF` names; None where it is not set.

    Raises:
        SetUpError: there is no such one.
    """
    try:
        return tensorflow_releases.chosen(env)
    except ValueError as error:
        raise SetUpError(str(error)) from None


def release_of(version: Tuple[int, ...], env: Mapping[str, str]) -> Release:
    """The TensorFlow for an accepted Python: the one that `TF` names, else the first that has it."""
    release = chosen_release(env) or tensorflow_releases.of_python(version)
    assert release is not None, version
    return release


def accepted(release: Optional[Release]) -> List[Tuple[int, int]]:
    """Versions of Python for a TensorFlow, or for any; the one to take first is first."""
    versions: List[Tuple[int, int]] = []
    for one in [release] if release else tensorflow_releases.RELEASES:
        versions += [python for python in one.pythons if python not in versions]
    return versions


def _named(name: str, env: Mapping[str, str]) -> Interpreter:
    path = shutil.which(name, path=env.get("PATH"))
    if path is None:
        raise SetUpError(f"PYTHON={name} is not a program. Give a path, or a name on PATH, of a Python.")
    found = probe(os.path.abspath(path), "PYTHON=" + name, env)
    if found is None:
        raise SetUpError(f"PYTHON={name} ({path}) does not run as a Python. Give the path of one.")
    refusal = _refusal(found, chosen_release(env))
    if refusal is not None:
        raise SetUpError(f"PYTHON={name} is Python {version_text(found.version)}: {refusal}")
    return found


def _refusal(found: Interpreter, release: Optional[Release]) -> Optional[str]:
    if found.version[:2] not in accepted(release):
        return _wrong_version(release)
    if found.version[:2] == (3, 8) and found.tensorflow is None:
        return (
            "PyPI has no TensorFlow 1.15 for Python 3.8, and none is installed there. Use Python 3.7, or first install "
            "NVIDIA's build (nvidia-tensorflow 1.15.5+nv) into that Python."
        )
    return None


def _wrong_version(release: Optional[Release]) -> str:
    needs = []
    for one in [release] if release else tensorflow_releases.RELEASES:
        pythons = [version_text(python) for python in sorted(one.on_pypi)]
        text = pythons[0] if len(pythons) == 1 else "{} or {}".format(", ".join(pythons[:-1]), pythons[-1])
        nvidia = ", or 3.8 with NVIDIA's build" if one.on_pypi != one.pythons else ""
        needs.append(f"TensorFlow {one.name} needs Python {text}{nvidia}")
    return "; ".join(needs) + ". Set PYTHON to one of these."


def _candidates(wanted: Tuple[int, int], env: Mapping[str, str], venv: str) -> Iterator[Tuple[str, str]]:
    """Paths that may be a Python of the version, with where they come from, each once, likeliest first."""
    text = version_text(wanted)
    home = env.get("HOME", os.path.expanduser("~"))
    data = env.get("XDG_DATA_HOME", os.path.join(home, ".local", "share"))
    pyenv = env.get("PYENV_ROOT", os.path.join(home, ".pyenv"))
    uv = env.get("UV_PYTHON_INSTALL_DIR", os.path.join(data, "uv", "python"))
    given_out = set()
    for path, origin in (
        [(path, "PATH") for path in _on_path("python" + text, env)]
        + [(path, "pyenv") for path in _newest_first(os.path.join(pyenv, "versions", text + ".*", "bin", "python"))]
        + [(path, "uv") for path in _newest_first(os.path.join(uv, "cpython-" + text + ".*", "bin", "python" + text))]
        + [(path, "PATH") for name in ("python3", "python") for path in _on_path(name, env)]
    ):
        inside = os.path.abspath(path).startswith(os.path.abspath(venv) + os.sep)
        if path not in given_out and not inside:
            given_out.add(path)
            yield path, origin


def _on_path(name: str, env: Mapping[str, str]) -> List[str]:
    paths = [os.path.join(folder, name) for folder in env.get("PATH", "").split(os.pathsep) if folder]
    return [path for path in paths if os.access(path, os.X_OK)]


def _newest_first(pattern: str) -> List[str]:
    def key(path: str) -> List[int]:
        return [int(part) if part.isdigit() else -1 for part in path.replace("-", ".").replace("/", ".").split(".")]

    return sorted(glob.glob(pattern), key=key, reverse=True)


def _fetch(release: Release, env: Mapping[str, str], say: Callable[[str], None]) -> bool:
    """Lets uv, where there is one, download a Python for the release; True when it did."""
    uv = shutil.which("uv", path=env.get("PATH"))
    if uv is None:
        return False
    words = UV_INSTALL + [release.fetched]
    say("no Python {} here; uv downloads one: uv {}".format(release.fetched, " ".join(words)))
    environment: Dict[str, str] = dict(env)
    return subprocess.run([uv] + words, env=environment, check=False).returncode == 0


def _none_found(seen: List[str], release: Optional[Release]) -> str:
    python = (release or tensorflow_releases.RELEASES[0]).fetched
    others = "" if release else " No Python of TensorFlow 2.21 (3.10 to 3.13) either."
    return "\n".join(
        [f"no Python {python} found: not on PATH, not under pyenv, not under uv.{others}"]
        + (["Passed over:"] + seen if seen else [])
        + [
            "Get one in one of these ways, then run the same command again:",
            "  uv " + " ".join("'" + word + "'" if "<" in word else word for word in UV_INSTALL + [python]),
            f"  pyenv install {python}",
            f"  apt-get install python{python} python{python}-venv      (Ubuntu, with ppa:deadsnakes/ppa)",
            f"or name one that is elsewhere: PYTHON=/path/to/python{python}",
        ]
    )
