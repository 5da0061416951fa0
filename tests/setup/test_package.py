"""The package: what `pip install .` and `pip wheel .` make of the checkout, with and without a compiler.

Works on a copy, so that the checkout gets no build folder and no library.
"""

import email
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import epl

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info[:2]))
LIBRARIES = {"epl/lib/libepl_comm.so", "epl/lib/libepl_tf.so", "epl/lib/built_for.json"}
FILES = "CHANGELOG.md LICENSE MANIFEST.in Makefile README.md pyproject.toml setup.py"
FOLDERS = "csrc docs epl requirements tests tools"


@pytest.fixture
def source(tmp_path):
    """A copy of what the package is made from."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in FILES.split():
        shutil.copy(os.path.join(ROOT, name), str(folder))
    ignored = shutil.ignore_patterns("build", "lib", "__pycache__", "*.o", "*.so")
    for name in FOLDERS.split():
        shutil.copytree(os.path.join(ROOT, name), str(folder / name), ignore=ignored)
    return str(folder)


def pip(*words, **env):
    return subprocess.run(
        [sys.executable, "-m", "pip"] + list(words), env=dict(os.environ, **env), timeout=600, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip


def build(source, **env):
    """Builds a wheel with the setuptools of this environment, which needs no network."""
    target = os.path.join(os.path.dirname(source), "wheels")
    return pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", target, source, **env)


def wheel(source, **env):
    """Builds a wheel and returns its path."""
    target = os.path.join(os.path.dirname(source), "wheels")
    done = build(source, **env)
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
    assert "the package was built without it (no g++ on PATH, no make on PATH)" in why
    assert [line for line in done.stderr.split("\n") if line.startswith("EPL: ")] == ["EPL: " + why]


def test_native_off_builds_a_wheel_for_any_platform(source):
    assert wheel(source, EPL_NATIVE="off").endswith("-py3-none-any.whl")


def test_a_wheel_tells_mypy_that_the_package_has_types(source):
    assert "epl/py.typed" in contents(wheel(source, EPL_NATIVE="off"))


@pytest.fixture
def source_distribution(source):
    """The path of one that was made by the hooks of pyproject.toml."""
    code = "import build_backend; build_backend.build_sdist('dist')"
    env = dict(os.environ, PYTHONPATH=os.path.join(source, "tools", "package"))
    subprocess.check_call([sys.executable, "-c", code], cwd=source, env=env, stdout=subprocess.DEVNULL)
    (path,) = glob.glob(os.path.join(source, "dist", "*.tar.gz"))
    return path


def test_a_source_distribution_has_all_to_build_test_and_read(source_distribution, source):
    with tarfile.open(source_distribution) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    there = {
        os.path.relpath(os.path.join(at, name), source)
        for folder in FOLDERS.split()
        for at, _, files in os.walk(os.path.join(source, folder))
        for name in files
    }
    assert there | set(FILES.split()) <= names


def test_native_on_refuses_to_go_without(source, tmp_path):
    done = build(source, EPL_NATIVE="on", PATH=bare_path(str(tmp_path / "bin")))
    assert done.returncode != 0
    assert "EPL_NATIVE=on, but the native libraries cannot be built: no g++ on PATH" in done.stdout


def test_a_native_part_that_does_not_compile_is_an_error(source):
    with open(os.path.join(source, "csrc", "Makefile"), "w") as makefile:
        makefile.write("all:\n\tfalse\n")
    done = build(source)
    assert done.returncode != 0
    assert "csrc does not compile" in done.stdout


def test_a_tensorflow_that_does_not_fit_stops_the_build_before_the_compiler(source):
    flags = os.path.join(source, "csrc", "tensorflow_flags.py")
    with open(flags, "w") as program:
        program.write("raise TypeError('Descriptors cannot not be created directly.')\n")
    done = build(source)
    assert done.returncode != 0
    assert 'pip install "protobuf<3.21"' in done.stdout
    assert "make" not in done.stdout


def test_a_module_that_is_gone_is_not_in_the_next_wheel(source):
    extra = os.path.join(source, "epl", "extra.py")
    with open(extra, "w") as module:
        module.write('"""Gone in the next build."""\n')
    first = contents(wheel(source, EPL_NATIVE="off"))
    os.remove(extra)
    second = contents(wheel(source, EPL_NATIVE="off"))
    assert first - second == {"epl/extra.py"}


def test_the_extras_name_one_tensorflow(source):
    requires = metadata(wheel(source, EPL_NATIVE="off")).get_all("Requires-Dist")
    assert [line for line in requires if "extra ==" not in line] == []
    assert requirements(requires) >= {"tensorflow", "tensorflow-gpu"}
    for extra in ("cpu", "gpu"):
        of_extra = [line for line in requires if f'"{extra}"' in line.replace("'", '"')]
        assert requirements(of_extra) >= {"numpy", "protobuf"}


def requirements(lines):
    """The names of packages: `numpy (<1.19)` of older setuptools, `numpy<1.19` of newer ones."""
    return {re.match(r"[\w-]+", line).group() for line in lines}


def metadata(path):
    """The metadata of a wheel."""
    with zipfile.ZipFile(path) as archive:
        (text,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")]
    return email.message_from_string(text)


def test_the_metadata_tell_what_a_package_index_shows(source):
    found = metadata(wheel(source, EPL_NATIVE="off"))
    assert found["Version"] == epl.__version__ == epl.VERSION
    assert all(found[key] for key in ("Author", "Home-page", "Keywords", "Summary", "License"))
    assert {entry.split(",")[0] for entry in found.get_all("Project-URL")} >= {"Documentation", "Changes", "Issues"}
    assert "Framework :: TensorFlow" not in found.get_all("Classifier")  # no such classifier: the index would refuse it


def test_the_readme_has_no_relative_link_in_the_metadata(source):
    text = metadata(wheel(source, EPL_NATIVE="off")).get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "https://github.com/alibaba/EasyParallelLibrary/blob/main/docs/install.md" in links


def linked(library):
    return subprocess.check_output(["ldd", library]).decode()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_platform_wheel_has_the_native_libraries(source, tmp_path, wheel_tags):
    path = wheel(source, EPL_NATIVE="on")
    assert re.search(wheel_tags, path)
    assert LIBRARIES <= contents(path)
    python, site = other_environment(str(tmp_path / "venv"))
    install(path, site)
    found = linked(os.path.join(site, "epl", "lib", "libepl_gloo.so"))
    for name in os.listdir(os.path.join(site, "epl", "lib")):
        assert f" => {site}/" in found if name in found else name.startswith(("libepl_", "built_for"))
    code = "import epl, epl.ops.native as n; print(epl.__file__); print(n.why_not())"
    done = run_there(python, code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].startswith(site)
    assert done.stdout.split("\n")[1] == "None"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_isolated_build_finds_the_tensorflow_of_its_target(source):
    done = pip("wheel", "--no-deps", "--wheel-dir", source + "/../wheels", source, EPL_NATIVE="on")
    assert done.returncode == 0, done.stdout
    (path,) = glob.glob(os.path.join(source, "..", "wheels", "*.whl"))
    assert LIBRARIES <= contents(path)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.version_info >= (3, 8), reason="PyPI has no TensorFlow 1.15 for Python 3.8")
def test_one_line_installs_everything_into_a_fresh_environment(source, tmp_path):
    subprocess.check_call([PYTHON, "-m", "venv", str(tmp_path / "venv")])
    python = str(tmp_path / "venv" / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", ".[cpu]"], cwd=source, timeout=1500, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    code = "import epl, epl.ops.native as n; print(epl.__version__); print(n.why_not())"
    done = run_there(python, code, str(tmp_path))
    assert done.stdout.split() == [epl.__version__, "None"], done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_twine_finds_nothing_wrong(source, source_distribution, tmp_path):
    subprocess.check_call([PYTHON, "-m", "venv", str(tmp_path / "twine")])
    python = str(tmp_path / "twine" / "bin" / "python")
    subprocess.check_call([python, "-m", "pip", "install", "-q", "twine"])
    paths = [wheel(source, EPL_NATIVE="off"), source_distribution]
    checked = subprocess.check_output([python, "-m", "twine", "check", "--strict"] + paths).decode()
    assert checked.count("PASSED") == 2, checked
