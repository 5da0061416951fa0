"""Packages EPL: the Python modules, the `epl-launch` command and, where it can, the native libraries.

The native libraries are built when a C++ compiler, make and TensorFlow 1.15 are there; a wheel with them is a platform
wheel. Where one of these lacks, the package is built without, and `epl.ops.native` says at run time what is off. A
compiler that fails is an error: nothing is left out silently. EPL_NATIVE=off leaves the libraries out, EPL_NATIVE=on
refuses to go without.

There is no pyproject.toml, and TensorFlow is no requirement: the package never pulls in another TensorFlow than the
one that is there (tensorflow, tensorflow-gpu, NVIDIA's). Runs under Python 3.6 to 3.8 and their setuptools.
"""

import os
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Optional, Tuple

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from wheel.bdist_wheel import bdist_wheel
except ImportError:  # newer setuptools has its own
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:
        bdist_wheel = None

ROOT = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = ("libepl_comm.so", "libepl_tf.so")
# What every Linux with the same C library has; the rest of what the core is linked with goes into the wheel.
EVERYWHERE = re.compile(r"(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\b")


def read_version() -> str:
    """The version that epl/utils/version.py states; importing the package would need TensorFlow."""
    with open(os.path.join(ROOT, "epl", "utils", "version.py")) as source:
        match = re.search(r"^VERSION\s*=\s*[\"']([^\"']+)[\"']", source.read(), re.MULTILINE)
    if match is None:
        raise SystemExit('epl/utils/version.py has no line VERSION = "...".')
    return match.group(1)


def target_environment() -> Dict[str, str]:
    """The environment without what pip's isolated build sets to hide the packages of the interpreter."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONNOUSERSITE")}


def tensorflow_there() -> bool:
    """Whether the interpreter that EPL is built for has a TensorFlow."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    return subprocess.call([sys.executable, "-c", code], env=target_environment(), cwd=os.path.sep) == 0


def native_lacks() -> Optional[str]:
    """Why the native libraries cannot be built, or None when they can."""
    wish = os.environ.get("EPL_NATIVE", "auto")
    if wish not in ("auto", "on", "off"):
        raise SystemExit("EPL_NATIVE={} is none of auto, on, off.".format(wish))
    if wish == "off":
        return "EPL_NATIVE=off"
    compiler = os.environ.get("CXX", "g++").split()[0]
    lacks = ["no {} on PATH".format(name) for name in (compiler, "make") if shutil.which(name) is None]
    if not tensorflow_there():
        lacks.append("no TensorFlow in " + sys.executable)
    if lacks and wish == "on":
        raise SystemExit("EPL_NATIVE=on, but the native libraries cannot be built: " + ", ".join(lacks))
    return ", ".join(lacks) or None


def linked_libraries(library: str) -> List[str]:
    """The paths of the libraries that a wheel must bring: Gloo, where the core has it, and what Gloo needs."""
    lines = subprocess.check_output(["ldd", library], env=dict(os.environ, LC_ALL="C")).decode()
    found = re.findall(r"^\s*(\S+) => (/\S+)", lines, re.MULTILINE)
    return [path for name, path in found if not EVERYWHERE.match(name)]


class EplDistribution(Distribution):
    """A distribution that is of a platform exactly when the native libraries go into it."""

    _lacks: Optional[Tuple[Optional[str]]] = None

    @property
    def native_lacks(self) -> Optional[str]:
        """Why the native libraries are left out, or None; found once."""
        if self._lacks is None:
            self._lacks = (native_lacks(),)
        return self._lacks[0]

    def has_ext_modules(self) -> bool:
        """Whether there is something to compile; setuptools asks."""
        return self.native_lacks is None


class BuildPython(build_py):
    """Copies the modules; modules of an earlier build that are gone do not stay in the next."""

    def run(self) -> None:
        shutil.rmtree(os.path.join(self.build_lib, "epl"), ignore_errors=True)
        super().run()


class BuildNative(build_ext):
    """Builds csrc: in the checkout for an installation in place, else in a copy, so that a checkout stays as it is."""

    def run(self) -> None:
        if self.distribution.native_lacks is not None:
            self.announce("native libraries left out: " + self.distribution.native_lacks, level=3)
            return
        if self.inplace:
            self._make(os.path.join(ROOT, "csrc"))
            return
        copy = os.path.abspath(os.path.join(self.build_temp, "native"))
        shutil.rmtree(copy, ignore_errors=True)
        ignored = shutil.ignore_patterns("build", "*.o", "*.d", "*.so", "__pycache__")
        shutil.copytree(os.path.join(ROOT, "csrc"), os.path.join(copy, "csrc"), ignore=ignored)
        self._make(os.path.join(copy, "csrc"))
        target = os.path.join(self.build_lib, "epl", "lib")
        self.mkpath(target)
        for name in LIBRARIES:
            self.copy_file(os.path.join(copy, "epl", "lib", name), os.path.join(target, name))
        for path in linked_libraries(os.path.join(target, LIBRARIES[0])):
            self.copy_file(path, os.path.join(target, os.path.basename(path)))

    def get_outputs(self) -> List[str]:
        if self.distribution.native_lacks is not None:
            return []
        return [os.path.join(self.build_lib, "epl", "lib", name) for name in LIBRARIES]

    def _make(self, folder: str) -> None:
        # What lies beside the libraries, as Gloo does in a wheel, is found there; by the old kind of entry (RPATH),
        # which holds for what Gloo itself needs, too.
        compiler = os.environ.get("CXX", "g++") + " -Wl,--disable-new-dtags,-rpath,'$$ORIGIN'"
        command = ["make", "-C", folder, "-j", str(os.cpu_count() or 1), "PYTHON=" + sys.executable, "CXX=" + compiler]
        if subprocess.call(command, env=target_environment()) != 0:
            raise SystemExit(
                "csrc does not compile; the compiler's words are above.\n"
                "Without the native libraries EPL is installed by: EPL_NATIVE=off pip install ."
            )


COMMANDS: Dict[str, Any] = {"build_py": BuildPython, "build_ext": BuildNative}

if bdist_wheel is not None:

    class Wheel(bdist_wheel):
        """The libraries do not use Python's C API: one wheel serves every Python of the platform."""

        def get_tag(self) -> Tuple[str, str, str]:
            return "py3", "none", super().get_tag()[2]

    COMMANDS["bdist_wheel"] = Wheel

with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
    LONG_DESCRIPTION = readme.read()

TENSORFLOW_LIMITS = ["numpy<1.19", "protobuf<3.21"]

setup(
    name="epl",
    version=read_version(),
    description="Distributed training of TensorFlow 1.15 models by a few annotations",
    long_description=LONG_DESCRIPTION,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["epl", "epl.*"]),
    package_data={"epl": ["py.typed"]},  # mypy reads EPL's types in a user's code
    py_modules=["epl_launch", "epl_trace"],
    distclass=EplDistribution,
    cmdclass=COMMANDS,
    python_requires=">=3.6,<3.9",
    extras_require={
        "cpu": ["tensorflow==1.15.5"] + TENSORFLOW_LIMITS,
        "gpu": ["tensorflow-gpu==1.15.5"] + TENSORFLOW_LIMITS,
        "profile": ["matplotlib"],  # pictures of memory timelines
    },
    entry_points={"console_scripts": ["epl-launch=epl_launch:main", "epl-trace=epl_trace:main"]},
    zip_safe=False,
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.6",
        "Programming Language :: Python :: 3.7",
        "Programming Language :: Python :: 3.8",
    ],
)
