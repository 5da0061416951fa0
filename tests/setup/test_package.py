"""The package: what `pip install .` and `pip wheel .` make of the checkout, with and without a compiler.

Works on a copy, so that the checkout gets no build folder and no library.
"""

import glob
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info[:2]))
LIBRARIES = {"epl/lib/libepl_comm.so", "epl/lib/libepl_tf.so"}


@pytest.fixture
def source(tmp_path):
    """A copy of what the package is made from."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "Makefile"):
        shutil.copy(os.path.join(ROOT, name), str(folder))
    ignored = shutil.ignore_patterns("build", "lib", "__pycache__", "*.o", "*.so")
    for name in ("epl", "csrc", "requirements"):
        shutil.copytree(os.path.join(ROOT, name), str(folder / name), ignore=ignored)
    return str(folder)


def pip(*words, **env):
    return subprocess.run(
        [sys.executable, "-m", "pip"] + list(words), env=dict(os.environ, **env), timeout=600, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip


def wheel(source, **env):
    """Builds a wheel and returns its path."""
    target = os.path.join(os.path.dirname(source), "wheels")
    done = pip("wheel", "--no-deps", "--wheel-dir", target, source, **env)
    assert done.returncode == 0, done.stdout
    (path,) = glob.glob(os.path.join(target, "*.whl"))
    return path


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def bare_path(folder):
    """A PATH with Python's surroundings and no compiler."""
    os.makedirs(folder)
    for name in ("sh", "env", "uname", "rm"):
        os.symlink(shutil.which(name), os.path.join(folder, name))
    return folder


def other_environment(folder):
    """A virtual environment with the packages of this one, but without EPL in place; returns its Python."""
    subprocess.check_call([PYTHON, "-m", "venv", "--without-pip", folder])
    (site,) = glob.glob(os.path.join(folder, "lib", "python*", "site-packages"))
    (here,) = glob.glob(os.path.join(sys.prefix, "lib", "python*", "site-packages"))
    with open(os.path.join(site, "packages.pth"), "w") as target:
        target.write(here + "\n")
    return os.path.join(folder, "bin", "python"), site


def install(wheel_path, site):
    done = pip("install", "--no-deps", "--target", site, "--upgrade", wheel_path)
    assert done.returncode == 0, done.stdout


def run_there(python, code, cwd):
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [python, "-c", code], cwd=cwd, env=env, timeout=240, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_without_a_compiler_it_installs_imports_and_says_what_is_off(source, tmp_path):
    path = wheel(source, PATH=bare_path(str(tmp_path / "bin")))
    assert path.endswith("-py3-none-any.whl")
    assert not [name for name in contents(path) if name.endswith(".so")]
    python, site = other_environment(str(tmp_path / "venv"))
    install(path, site)
    code = "import epl, epl.ops.native as n; print(epl.__file__); print(n.why_not())"
    done = run_there(python, code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    where, why = done.stdout.split("\n")[:2]
    assert where.startswith(site)
    assert "Collectives between devices and processes are off" in why


def test_native_off_builds_a_wheel_for_any_platform(source):
    assert wheel(source, EPL_NATIVE="off").endswith("-py3-none-any.whl")


def test_a_wheel_tells_mypy_that_the_package_has_types(source):
    assert "epl/py.typed" in contents(wheel(source, EPL_NATIVE="off"))


def test_a_source_distribution_has_what_the_wheel_is_made_from(source):
    subprocess.check_call([sys.executable, "setup.py", "-q", "sdist", "--dist-dir", "dist"], cwd=source)
    (path,) = glob.glob(os.path.join(source, "dist", "*.tar.gz"))
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"epl/py.typed", "csrc/Makefile", "README.md", "CHANGELOG.md", "LICENSE"} <= names


def test_native_on_refuses_to_go_without(source, tmp_path):
    done = pip("wheel", "--no-deps", source, EPL_NATIVE="on", PATH=bare_path(str(tmp_path / "bin")))
    assert done.returncode != 0
    assert "EPL_NATIVE=on, but the native libraries cannot be built: no g++ on PATH" in done.stdout


def test_a_native_part_that_does_not_compile_is_an_error(source):
    with open(os.path.join(source, "csrc", "Makefile"), "w") as makefile:
        makefile.write("all:\n\tfalse\n")
    done = pip("wheel", "--no-deps", source)
    assert done.returncode != 0
    assert "csrc does not compile" in done.stdout


def test_a_module_that_is_gone_is_not_in_the_next_wheel(source):
    extra = os.path.join(source, "epl", "extra.py")
    with open(extra, "w") as module:
        module.write('"""Gone in the next build."""\n')
    first = contents(wheel(source, EPL_NATIVE="off"))
    os.remove(extra)
    second = contents(wheel(source, EPL_NATIVE="off"))
    assert first - second == {"epl/extra.py"}


def test_the_extras_name_one_tensorflow(source):
    path = wheel(source, EPL_NATIVE="off")
    with zipfile.ZipFile(path) as archive:
        (metadata,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")]
    requires = [line for line in metadata.split("\n") if line.startswith("Requires-Dist")]
    assert [line for line in requires if "extra ==" not in line] == []
    assert {line.split()[1] for line in requires if "tensorflow" in line} >= {"tensorflow", "tensorflow-gpu"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_platform_wheel_has_the_native_libraries(source, tmp_path):
    path = wheel(source, EPL_NATIVE="on")
    assert "-py3-none-linux_" in path
    assert LIBRARIES <= contents(path)
    python, site = other_environment(str(tmp_path / "venv"))
    install(path, site)
    linked = subprocess.check_output(["ldd", os.path.join(site, "epl", "lib", "libepl_comm.so")]).decode()
    for name in os.listdir(os.path.join(site, "epl", "lib")):
        assert f" => {site}/" in linked if name in linked else name.startswith("libepl_")
    code = "import epl, epl.ops.native as n; print(epl.__file__); print(n.why_not())"
    done = run_there(python, code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].startswith(site)
    assert done.stdout.split("\n")[1] == "None"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_isolated_build_finds_the_tensorflow_of_its_target(source):
    done = pip("wheel", "--no-deps", "--use-pep517", "--wheel-dir", source + "/../wheels", source, EPL_NATIVE="on")
    assert done.returncode == 0, done.stdout
    (path,) = glob.glob(os.path.join(source, "..", "wheels", "*.whl"))
    assert LIBRARIES <= contents(path)
