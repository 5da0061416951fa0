"""What a release is made of: `make package`, the citation, the version."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "package"))

import readme  # noqa: E402


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as source:
        return source.read()


@pytest.fixture
def package():
    """The module of tools/package/__main__.py."""
    path = os.path.join(ROOT, "tools", "package", "__main__.py")
    spec = importlib.util.spec_from_file_location("package_main", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_interpreters_with_one_tensorflow_share_a_wheel(package, monkeypatch, tmp_path, capsys):
    loaded = []
    monkeypatch.setattr(package, "find_python", lambda name: name)
    monkeypatch.setattr(package, "source_distribution", lambda out: "epl.tar.gz")
    monkeypatch.setattr(package, "tensorflow_identity", lambda python: python[-1])
    monkeypatch.setattr(package, "wheel", lambda python, source, out: python + ".whl")
    monkeypatch.setattr(package, "check_load", lambda python, path: loaded.append((python, path)))
    words = ["--out", str(tmp_path)] + [word for name in ("3.6-a", "3.7-a", "3.8-b") for word in ("--python", name)]
    assert package.main(words) == 0
    assert loaded == [("3.6-a", "3.6-a.whl"), ("3.7-a", "3.6-a.whl"), ("3.8-b", "3.8-b.whl")]


def test_an_interpreter_that_is_none_is_refused(package, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(package, "source_distribution", lambda out: "epl.tar.gz")
    assert package.main(["--out", str(tmp_path), "--python", "python3.77"]) == 1
    assert "--python python3.77 is not a program" in capsys.readouterr().err


def test_an_interpreter_without_a_tensorflow_is_refused(package, machine):
    real = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info[:2]))
    bare = machine.program("python3.7", f'exec {real} -S "$@"')
    with pytest.raises(package.PackageError, match="there is no TensorFlow to build the native libraries for"):
        package.tensorflow_identity(bare)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_one_command_builds_the_release(tmp_path, wheel_tags):
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "package"), "--out", str(tmp_path)], check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    wheel, source = sorted(os.listdir(str(tmp_path)))
    assert re.fullmatch(rf"epl-[\d.]+{wheel_tags}\w+\.whl", wheel)
    assert re.fullmatch(r"epl-[\d.]+\.tar\.gz", source)


def test_links_of_the_readme_lead_to_the_project_where_they_are_relative():
    text = "[a](docs/b.md#c) [d](https://e.org) [f](#g)"
    expected = f"[a]({readme.PAGES}docs/b.md#c) [d](https://e.org) [f](#g)"
    assert readme.absolute_links(text) == expected


def test_the_citation_is_that_of_the_readme():
    paper = yaml.safe_load(read("CITATION.cff"))["preferred-citation"]
    fields = dict(re.findall(r"^  (\w+) += \{(.*?)\},?$", read("README.md"), re.MULTILINE | re.DOTALL))
    authors = [author["given-names"] + " " + author["family-names"] for author in paper["authors"]]
    assert re.sub(r"\s+", " ", fields["author"]).split(" and ") == authors
    assert fields["title"].replace("{", "").replace("}", "") == paper["title"]
    assert (fields["year"], fields["url"]) == (str(paper["year"]), paper["url"])
    assert fields["pages"] == "{start}--{end}".format(**paper)
