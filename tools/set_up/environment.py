"""The steps of set-up: virtual environment, requirements, native libraries, the package in place.

Each step is skipped while its stamp matches. Owns their order and what each depends on; finding a Python is
`pythons.py`'s, packages of the operating system `system.py`'s, those of Python `installer.py`'s.
"""

import os
import shutil
import subprocess
from typing import Callable, Dict, List, Mapping, Optional

import pythons
import stamps
import system
import tensorflow_releases
from installer import Installer
from pythons import SetUpError
from tensorflow_releases import Release

TENSORFLOW_CHOICES = ("auto", "cpu", "gpu", "system")
LIBRARIES = ("libepl_comm.so", "libepl_tf.so", "built_for.json")
GLOO_LIBRARY = "libepl_gloo.so"
_SOURCES = (".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".inc", ".mk", ".py", ".sh")


class SetUp:
    """Sets up one checkout in one virtual environment."""

    def __init__(self, root: str, env: Mapping[str, str], say: Callable[[str], None], progress: bool = False) -> None:
        """
        Args:
            root: The checkout.
            env: Environment variables: PYTHON, VENV, TF, EPL_TF, CXX, EPL_APT.
            say: Takes a line for the user.
            progress: Whether to show what is downloaded.
        """
        self.root = os.path.abspath(root)
        chosen = pythons.chosen_release(env)
        default = ".venv" if chosen is None or chosen.is_default_environment else ".venv-" + chosen.name
        self.venv = os.path.join(self.root, env.get("VENV") or default)
        self.python = os.path.join(self.venv, "bin", "python")
        self._env = env
        self._say = say
        self._progress = progress
        self._packages = system.Packages(env, say)

    def run(self) -> bool:
        """Does every step that is due; True when there was one."""
        self._tensorflow = self._choice_of_tensorflow()
        worked = self._make_venv()
        self._installer = Installer(self.python, self._version, self._clean_env(), self._say, self._progress)
        worked |= self._install_requirements()
        worked |= self._build_native()
        worked |= self._install_package()
        return worked

    def describe(self) -> str:
        """The environment in a few words."""
        version = pythons.version_text(self._version)
        return f"{os.path.relpath(self.venv, self.root)}: Python {version}, {self._tensorflow_text()}"

    # The virtual environment.

    def _make_venv(self) -> bool:
        self._stamps = stamps.Stamps(self.venv)
        current = pythons.probe(self.python, "venv", self._env) if os.path.exists(self.python) else None
        wanted = self._wanted_python(current)
        if wanted is None and current is not None:
            self._version = current.version
            self._release = self._release_of(current)
            return False
        if wanted is None:
            wanted = pythons.choose(self._env, self.venv, self._say)
        self._say_python(wanted)
        if os.path.isdir(self.venv) and os.listdir(self.venv):
            self._remove_venv()
        self._need_venv_module(wanted)
        if self._tensorflow == "auto" and wanted.version[:2] == (3, 8):
            self._tensorflow = "system"  # the only one that Python 3.8 can have
        if self._tensorflow in ("cpu", "gpu") and wanted.version[:2] == (3, 8):
            raise SetUpError(
                "EPL_TF={}: PyPI has no TensorFlow 1.15 for Python 3.8. Use Python 3.7 (PYTHON=python3.7), or the "
                "TensorFlow that is installed there (EPL_TF=system).".format(self._tensorflow)
            )
        if self._tensorflow == "system" and wanted.tensorflow is None:
            raise SetUpError(f"EPL_TF=system, but {wanted.path} has no TensorFlow 1.15 installed.")
        self._release = pythons.release_of(wanted.version, self._env)
        os.makedirs(self.venv, exist_ok=True)
        self._stamps = stamps.Stamps(self.venv)
        self._stamps.set("made_by", "set-up")
        self._stamps.set("complete", False)
        options = ["--system-site-packages"] if self._tensorflow == "system" else []
        self._call([wanted.path, "-m", "venv"] + options + [self.venv])
        self._stamps.set("system", wanted.tensorflow if self._tensorflow == "system" else None)
        self._stamps.set("release", self._release.name)
        self._stamps.set("complete", True)
        self._version = wanted.version
        return True

    def _say_python(self, wanted: pythons.Interpreter) -> None:
        release = pythons.release_of(wanted.version, self._env)
        why = ""
        if not self._env.get("TF") and not self._env.get("PYTHON") and not release.is_default_environment:
            why = f"; TensorFlow {release.name}, as no Python of TensorFlow 1.15 (3.7, 3.6) is here"
        self._say(f"Python {pythons.version_text(wanted.version)} ({wanted.path}, from {wanted.origin}){why}")

    def _release_of(self, current: pythons.Interpreter) -> Release:
        """The TensorFlow of an environment that is there; one that set-up did not make has the one of its Python."""
        noted = tensorflow_releases.by_name(self._stamps.get("release") or "")
        return noted or pythons.release_of(current.version, self._env)

    def _wanted_python(self, current: Optional[pythons.Interpreter]) -> Optional[pythons.Interpreter]:
        """The interpreter to make the environment from, when the one that is there is not what was asked for."""
        if current is None or self._stamps.get("complete") is False:
            return pythons.choose(self._env, self.venv, self._say)
        other_tensorflow = self._stamps.get("made_by") and (
            (self._tensorflow == "system") != bool(self._stamps.get("system")) and self._tensorflow != "auto"
        )
        chosen = pythons.chosen_release(self._env)
        other_release = chosen is not None and self._stamps.get("release") not in (None, chosen.name)
        if self._env.get("PYTHON"):
            named = pythons.choose(self._env, self.venv, self._say)
            return named if named.version[:2] != current.version[:2] or other_tensorflow or other_release else None
        if other_tensorflow or other_release or current.version[:2] not in pythons.accepted(chosen):
            return pythons.choose(self._env, self.venv, self._say)
        return None

    def _remove_venv(self) -> None:
        if self._stamps.get("made_by") != "set-up":
            raise SetUpError(
                "{} is there, does not fit, and was not made by set-up. Remove it, or choose another folder with "
                "VENV=<folder>.".format(self.venv)
            )
        self._say(f"making {self.venv} anew")
        shutil.rmtree(self.venv)

    def _need_venv_module(self, wanted: pythons.Interpreter) -> None:
        if wanted.has_venv:
            return
        package = "python{}.{}-venv".format(*wanted.version[:2])
        self._packages.require([package], f"{wanted.path} cannot make virtual environments.")

    # The requirements.

    def _choice_of_tensorflow(self) -> str:
        choice = self._env.get("EPL_TF") or "auto"
        if choice not in TENSORFLOW_CHOICES:
            raise SetUpError("EPL_TF={} is none of {}.".format(choice, ", ".join(TENSORFLOW_CHOICES)))
        return choice

    def _tensorflow_requirement(self) -> Optional[str]:
        """The file that names the TensorFlow to install; None for the one of the system."""
        if self._stamps.get("system"):
            return None
        gpu = self._tensorflow == "gpu" or (self._tensorflow == "auto" and system.has_gpu(self._env))
        of_release = "" if self._release.is_default_environment else "-" + self._release.name
        return self._file("tensorflow{}{}.txt".format("-gpu" if gpu else "", of_release))

    def _tensorflow_text(self) -> str:
        return self._stamps.get("tensorflow") or "no TensorFlow"

    def _install_requirements(self) -> bool:
        tensorflow = self._tensorflow_requirement()
        pins = self._file(
            "py{}.{}.txt".format(*self._version[:2])
            if self._release.is_default_environment
            else f"tf{self._release.name}.txt"
        )
        files = [pins] + ([tensorflow] if tensorflow else [])
        stamp = stamps.of_files([self._file("bootstrap.txt")] + files)
        if self._stamps.get("requirements") == stamp:
            return False
        names = ", ".join(os.path.relpath(path, self.root) for path in files)
        self._say(f"installing the requirements of {names} (minutes when it is the first time)")
        if not os.path.isdir(self._site_packages("pip")):
            self._call([self.python, "-m", "ensurepip"], "This environment has no pip.")  # one that uv made
        self._installer.install(["-r", self._file("bootstrap.txt")], self.root)
        if tensorflow and self._release.is_default_environment:
            other = "tensorflow" if tensorflow.endswith("-gpu.txt") else "tensorflow-gpu"
            self._installer.uninstall(other, self.root)  # both own the same files
        self._installer.install([word for path in files for word in ("-r", path)], self.root)
        self._check_tensorflow()
        self._stamps.set("requirements", stamp)
        return True

    def _check_tensorflow(self) -> None:
        """Imports it once: a processor without AVX or a missing library shows here, not in the middle of a test."""
        code = "import tensorflow as tf; print('tensorflow', tf.__version__)"
        done = subprocess.run(
            [self.python, "-W", "ignore", "-c", code], env=self._clean_env(), check=False,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        lines = done.stdout.decode(errors="replace").strip().split("\n")
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip()[-2000:]
            hint = "The processor lacks AVX, which TensorFlow's wheels need.\n" if done.returncode == -4 else ""
            raise SetUpError(f"TensorFlow was installed, but `import tensorflow` fails.\n{hint}{reason}")
        if f" {self._release.name}." not in lines[-1]:
            raise SetUpError(f"{lines[-1]} is in {self.venv}; TensorFlow {self._release.name} is needed.")
        self._stamps.set("tensorflow", self._stamps.get("system") or lines[-1])

    # The native libraries.

    def _build_native(self) -> bool:
        csrc = os.path.join(self.root, "csrc")
        makes = shutil.which("make", path=self._env.get("PATH"))
        cxx = system.compiler(self._env)
        surroundings = self._surroundings(cxx) if cxx else ""
        sources = stamps.of_files(_source_files(csrc))
        folder = self._release.library_folder(self._version[:2])
        names = LIBRARIES + (
            (GLOO_LIBRARY,) if self._env.get("GLOO") != "0" and cxx and system.has_gloo(cxx, self._env) else ()
        )
        built = all(os.path.exists(os.path.join(self.root, "epl", "lib", folder, name)) for name in names)
        if built and makes and self._stamps.get("native") == [surroundings, sources]:
            return False
        cxx = self._need_tools(cxx)
        if not system.has_gloo(cxx, self._env):
            why = "Gloo's headers are missing: without them training on several machines is off; one machine works."
            self._packages.prefer(["libgloo-dev"], why)
        surroundings = self._surroundings(cxx)
        self._say(f"building csrc with {system.compiler_identity(cxx, self._env) or cxx}")
        make = ["make", "-s", "-C", csrc, "PYTHON=" + self.python, "CXX=" + cxx]
        before = self._stamps.get("native")
        if before is None or before[0] != surroundings:
            self._call(make + ["clean"])  # make itself does not see that compiler or TensorFlow changed
        self._call(make + ["-j", str(os.cpu_count() or 1)], "csrc does not compile; the compiler's words are above.")
        self._stamps.set("native", [surroundings, sources])
        return True

    def _surroundings(self, cxx: str) -> str:
        gloo = "gloo" if system.has_gloo(cxx, self._env) else "no gloo"
        return stamps.of_texts([system.compiler_identity(cxx, self._env), gloo, self._tensorflow_text(), self.venv])

    def _need_tools(self, cxx: Optional[str]) -> str:
        """Installs make and a compiler where they are missing; returns the compiler."""
        if shutil.which("make", path=self._env.get("PATH")) is None:
            self._packages.require(["make"], "make is missing.")
        if cxx is None:
            self._packages.require(["g++"], "There is no C++ compiler.")
            cxx = system.compiler(self._env) or "g++"
        major = system.compiler_major(cxx, self._env)
        if major and major < system.OLDEST_GCC and "clang" not in system.compiler_identity(cxx, self._env):
            raise SetUpError(
                "{} is version {}; csrc needs gcc {} to {}. Name another: CXX=g++-12".format(
                    cxx, major, system.OLDEST_GCC, system.NEWEST_GCC
                )
            )
        if major > system.NEWEST_GCC and not self._env.get("CXX"):
            newest = f"g++-{system.NEWEST_GCC}"
            why = "{} is version {}; csrc is known to compile with {} to {}.".format(
                cxx, major, system.OLDEST_GCC, system.NEWEST_GCC
            )
            self._packages.prefer([newest], why)
            cxx = system.compiler(self._env) or cxx
        return cxx

    # The package.

    def _install_package(self) -> bool:
        names = ["setup.py", "pyproject.toml", os.path.join("epl", "__init__.py")]
        names += [os.path.join("tools", name) for name in ("package/build_backend.py", "package/build_tensorflow.py")]
        names += [os.path.join("tools", "tensorflow_releases.py")]
        paths = [os.path.join(self.root, name) for name in names]
        stamp = stamps.of_files(path for path in paths if os.path.exists(path))
        command = os.path.join(self.venv, "bin", "epl-launch")
        if self._stamps.get("package") == stamp and os.path.exists(command):
            return False
        self._say("installing the package in place")
        words = ["--no-deps", "--no-build-isolation", "--editable", self.root]
        self._installer.install(words, self.root, EPL_NATIVE="off")  # built above
        self._stamps.set("package", stamp)
        return True

    # Helpers.

    def _file(self, name: str) -> str:
        return os.path.join(self.root, "requirements", name)

    def _site_packages(self, name: str) -> str:
        return os.path.join(self.venv, "lib", "python{}.{}".format(*self._version[:2]), "site-packages", name)

    def _call(self, command: List[str], failure: str = "") -> None:
        done = subprocess.run(command, cwd=self.root, env=self._clean_env(), check=False)
        if done.returncode != 0:
            raise SetUpError("{}\nIt ended with {}: {}".format(failure, done.returncode, " ".join(command)).strip())

    def _clean_env(self) -> Dict[str, str]:
        """The user's environment less what a calling make, Python or virtual environment put there."""
        dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "__PYVENV_LAUNCHER__")
        return {key: value for key, value in self._env.items() if key not in dropped}


def _source_files(folder: str) -> List[str]:
    """What the native build depends on; built files are not among it."""
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "build")
        found += [os.path.join(at, name) for name in names if name.endswith(_SOURCES) or name == "Makefile"]
    return found
