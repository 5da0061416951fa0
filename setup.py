"""Packages EPL: the Python modules, the `epl-launch` command and, where it can, the native libraries.

The native libraries are built where a C++ compiler and make are, for one TensorFlow
(`tools/package/build_tensorflow.py`); a wheel with them is a platform wheel. Its build tag names that TensorFlow, its
Python tag the Pythons that have it. Without compiler or make the package is built without them, and says so when it is
imported. A compiler that fails and a TensorFlow that does not fit are errors: nothing is left out silently.
EPL_NATIVE=off leaves the libraries out, EPL_NATIVE=on refuses to go without.

TensorFlow is no requirement: the package never pulls in another TensorFlow than the one that is there (tensorflow,
tensorflow-gpu, NVIDIA's). The extras `cpu` and `gpu` name one, by the Python. Runs under Python 3.6 to 3.13 and their
setuptools, by pyproject.toml.
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
sys.path.insert(0, os.path.join(ROOT, "tools", "package"))

import build_tensorflow  # noqa: E402
import readme  # noqa: E402
import tensorflow_releases  # noqa: E402

LIBRARIES = ("libepl_comm.so", "libepl_tf.so", "built_for.json")
GLOO_LIBRARY = "libepl_gloo.so"  # only where Gloo was when csrc was compiled
LEFT_OUT = "left_out.txt"  # why a package has no libraries; epl/ops/native.py reads it
# What every Linux with the same C library has; the rest of what GLOO_LIBRARY needs goes into the wheel.
EVERYWHERE = re.compile(r"(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\b")


def read_version() -> str:
    """The version that epl/utils/version.py states; importing the package would need TensorFlow."""
    with open(os.path.join(ROOT, "epl", "utils", "version.py")) as source:
        match = re.search(r"^VERSION\s*=\s*[\"']([^\"']+)[\"']", source.read(), re.MULTILINE)
    if match is None:
        raise SystemExit('epl/utils/version.py has no line VERSION = "...".')
    return match.group(1)


def find_why_left_out() -> Optional[str]:
    """Why the native libraries are left out, or None when they are built."""
    wish = os.environ.get("EPL_NATIVE", "auto")
    if wish not in ("auto", "on", "off"):
        raise SystemExit("EPL_NATIVE={} is none of auto, on, off.".format(wish))
    if wish == "off":
        return "EPL_NATIVE=off"
    lacks = ", ".join("no {} on PATH".format(name) for name in build_tensorflow.missing_tools())
    if lacks and wish == "on":
        raise SystemExit("EPL_NATIVE=on, but the native libraries cannot be built: " + lacks)
    return lacks or None


def linked_libraries(library: str) -> List[str]:
    """The paths of the libraries that a wheel must bring: Gloo, and what Gloo needs."""
    lines = subprocess.check_output(["ldd", library], env=dict(os.environ, LC_ALL="C")).decode()
    found = re.findall(r"^\s*(\S+) => (/\S+)", lines, re.MULTILINE)
    return [path for name, path in found if not EVERYWHERE.match(name)]


class EplDistribution(Distribution):
    """A distribution that is of a platform exactly when the native libraries go into it."""

    why_left_out: Optional[str]
    _tensorflow: Optional[build_tensorflow.BuildTensorFlow] = None

    def __init__(self, attrs: Optional[Dict[str, Any]] = None) -> None:
        self.why_left_out = find_why_left_out()
        super().__init__(attrs)

    @property
    def tensorflow(self) -> build_tensorflow.BuildTensorFlow:
        """The TensorFlow that the libraries are built for; found once, which imports it and takes seconds."""
        if self._tensorflow is None:
            self._tensorflow = build_tensorflow.find()
        return self._tensorflow

    def has_ext_modules(self) -> bool:
        """Whether there is something to compile; setuptools asks."""
        return self.why_left_out is None


class BuildPython(build_py):
    """Copies the modules; modules of an earlier build that are gone do not stay in the next.

    A package without the native libraries gets a note that says why.
    """

    def run(self) -> None:
        if getattr(self, "editable_mode", False):  # nothing is copied, and the checkout may have the libraries
            super().run()
            return
        shutil.rmtree(os.path.join(self.build_lib, "epl"), ignore_errors=True)
        super().run()
        if self.distribution.why_left_out is not None:
            self.announce("native libraries left out: " + self.distribution.why_left_out, level=3)
            self.mkpath(os.path.dirname(self._note()))
            with open(self._note(), "w") as note:
                note.write(self.distribution.why_left_out + "\n")

    def get_outputs(self, *arguments: Any, **named: Any) -> List[str]:
        outputs = list(super().get_outputs(*arguments, **named))
        return outputs if self.distribution.why_left_out is None else outputs + [self._note()]

    def _note(self) -> str:
        return os.path.join(self.build_lib, "epl", "lib", LEFT_OUT)


class BuildNative(build_ext):
    """Builds csrc: in the checkout for an installation in place, else in a copy, so that a checkout stays as it is."""

    def run(self) -> None:
        if self.distribution.why_left_out is not None:
            return
        if self.inplace:
            self._make(os.path.join(ROOT, "csrc"))
            return
        target = os.path.join(self.build_lib, "epl", "lib")
        self.mkpath(target)
        copy = os.path.abspath(os.path.join(self.build_temp, "native"))
        shutil.rmtree(copy, ignore_errors=True)
        ignored = shutil.ignore_patterns("build", "*.o", "*.d", "*.so", "__pycache__")
        shutil.copytree(os.path.join(ROOT, "csrc"), os.path.join(copy, "csrc"), ignore=ignored)
        self._make(os.path.join(copy, "csrc"))
        for name in LIBRARIES:
            self.copy_file(os.path.join(copy, "epl", "lib", name), os.path.join(target, name))
        gloo = os.path.join(copy, "epl", "lib", GLOO_LIBRARY)
        for path in [gloo] + linked_libraries(gloo) if os.path.exists(gloo) else []:
            self.copy_file(path, os.path.join(target, os.path.basename(path)))

    def get_outputs(self) -> List[str]:
        if self.distribution.why_left_out is not None:
            return []
        return [os.path.join(self.build_lib, "epl", "lib", name) for name in LIBRARIES]

    def _make(self, folder: str) -> None:
        # Before anything is compiled: the headers of a TensorFlow that does not fit fail after minutes.
        env = self.distribution.tensorflow.env
        # What lies beside the libraries, as Gloo does in a wheel, is found there; by the old kind of entry (RPATH),
        # which holds for what Gloo itself needs, too.
        compiler = os.environ.get("CXX", "g++") + " -Wl,--disable-new-dtags,-rpath,'$$ORIGIN'"
        command = ["make", "-C", folder, "-j", str(os.cpu_count() or 1), "PYTHON=" + sys.executable, "CXX=" + compiler]
        if not self.inplace:  # a package has one set of libraries
            command += ["BUILD=build", "LIB=../epl/lib"]
        if subprocess.call(command, env=env) != 0:
            raise SystemExit(
                "csrc does not compile; the compiler's words are above.\n"
                "Without the native libraries EPL is installed by: EPL_NATIVE=off pip install ."
            )


COMMANDS: Dict[str, Any] = {"build_py": BuildPython, "build_ext": BuildNative}

if bdist_wheel is not None:

    class Wheel(bdist_wheel):
        """The libraries use no interface of Python: one wheel serves every Python that has that TensorFlow."""

        def run(self) -> None:
            if self.distribution.why_left_out is None and not self.build_number:
                self.build_number = self.distribution.tensorflow.build_tag
            super().run()

        def get_tag(self) -> Tuple[str, str, str]:
            native = self.distribution.why_left_out is None
            return self.distribution.tensorflow.python_tag if native else "py3", "none", super().get_tag()[2]

    COMMANDS["bdist_wheel"] = Wheel

setup(
    name="epl",
    version=read_version(),
    description="Distributed training of TensorFlow graph-mode models by a few annotations",
    long_description=readme.for_package_index(ROOT),
    long_description_content_type="text/markdown",
    author="The EPL authors",
    url=readme.PROJECT,
    project_urls={
        "Documentation": readme.PAGES + "docs/index.md",
        "Changes": readme.PAGES + "CHANGELOG.md",
        "Issues": readme.PROJECT + "/issues",
        "Paper": "https://www.usenix.org/conference/atc22/presentation/jia-xianyan",
    },
    keywords="tensorflow, distributed training, data parallelism, pipeline parallelism, tensor parallelism, ZeRO, MoE",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["epl", "epl.*"]),
    package_data={"epl": ["py.typed"]},  # mypy reads EPL's types in a user's code
    py_modules=["epl_launch", "epl_plan", "epl_trace", "whale"],
    distclass=EplDistribution,
    cmdclass=COMMANDS,
    python_requires=">=3.6,<3.14,!=3.9.*",
    extras_require={
        "cpu": tensorflow_releases.extra("cpu"),
        "gpu": tensorflow_releases.extra("gpu"),
        "profile": ["matplotlib"],  # pictures of memory timelines
        # Machine files in YAML; 6.0.1 is the last release with wheels for Python 3.6.
        "planner": ['PyYAML==6.0.1; python_version < "3.9"', 'PyYAML==6.0.2; python_version >= "3.9"'],
        # `epl.run` with the functions of a notebook, pictures, and what runs a notebook; Python 3.7 or newer.
        "notebook": ["cloudpickle==2.2.1", "ipykernel==6.16.2", "matplotlib", "nbclient==0.7.4"],
        # Data of the small ones, word pieces (0.12.1 is the last with wheels for Python 3.6 to 3.8), a bar of progress.
        "examples": [
            "scikit-learn",
            'tokenizers==0.12.1; python_version < "3.9"',
            'tokenizers; python_version >= "3.9"',
            "tqdm",
        ],
        "docs": ["sphinx==5.3.0", "myst-parser==1.0.0", "furo==2023.3.27"],  # the site; Python 3.7 or newer
    },
    entry_points={
        "console_scripts": ["epl-launch=epl_launch:main", "epl-plan=epl_plan:main", "epl-trace=epl_trace:main"]
    },
    zip_safe=False,
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3.6",
        "Programming Language :: Python :: 3.7",
        "Programming Language :: Python :: 3.8",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
