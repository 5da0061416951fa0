"""The site of the documentation: what its pages must name, and, in long tests, that Sphinx and a browser show it."""

import functools
import http.server
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import threading

import pytest

import epl
from tests import test_api
from tests.docs import browser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def load(*path):
    spec = importlib.util.spec_from_file_location("_" + path[-1][:-3], os.path.join(ROOT, *path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as source:
        return source.read()


def test_the_api_page_has_every_public_name():
    names = ["epl." + name for name in epl.__all__]
    names += [path for path in test_api.SIGNATURES if not inspect.isclass(test_api._find(path.rpartition(".")[0]))]
    text = page("api.md")
    assert [name for name in names if not re.search(re.escape(name) + r"\b(?!\.)", text)] == []


def test_measured_examples_are_those_of_the_benchmarks():
    last = page("benchmarks.md").split("## Last measured")[1]
    figures = re.findall(r"\b\d+\.\d+\b", page("strategies.md").replace("TensorFlow 1.15", ""))
    layers = re.findall(r"^\| .* \| (\d+) \|$", page("strategies.md"), re.MULTILINE)
    assert len(figures) > 15 and len(layers) == 4
    assert [figure for figure in figures + layers if not re.search(rf"\b{re.escape(figure)}\b", last)] == []


def test_an_index_page_gets_a_tree_for_each_section():
    source = ["# Title\n\n## First\n\n- [A](a.md): one\n- [B](../b.md): two\n\n## Second\n\n- [C](c.md)\n"]
    load("docs", "conf.py").add_tree(None, "docs/index", source)
    assert source[0].count("```{toctree}") == 2
    assert ':caption: "First"\n\nA <a.md>\nB <../b.md>\n```' in source[0]


def test_another_page_gets_no_tree_and_a_link_to_the_glossary():
    source = ["- [A](a.md)\n"]
    load("docs", "conf.py").add_tree(None, "docs/split", source)
    assert source == ["- [A](a.md)\n\n\n---\n\n[Glossary](/docs/glossary.md)\n"]


def test_an_old_python_is_told_which_one_is_needed(monkeypatch, capsys):
    build_docs = load("tools", "build_docs.py")
    monkeypatch.setattr(build_docs, "OLDEST_PYTHON", (9, 9))
    assert build_docs.main(["html"]) == 1
    assert "The site needs Python 9.9 or newer" in capsys.readouterr().err


def test_the_extra_has_the_versions_of_the_requirements():
    with open(os.path.join(ROOT, "setup.py"), encoding="utf-8") as source:
        extra = re.search(r'"docs": \[(.*?)\]', source.read()).group(1)
    with open(os.path.join(ROOT, "requirements", "docs.txt"), encoding="utf-8") as source:
        pins = source.read().lower().split("\n")
    assert [pin for pin in re.findall(r'"(.*?)"', extra) if pin not in pins] == []


# ------------------------------------------------------------------------------------------------ the site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a site that was built without a warning."""
    if sys.version_info < (3, 7):
        pytest.skip("Sphinx's theme needs Python 3.7 or newer")
    folder = str(tmp_path_factory.mktemp("site") / "html")
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "build_docs.py"), "html", "--output", folder],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_api_page_shows_signatures_and_docstrings(site):
    with open(os.path.join(site, "docs", "api.html"), encoding="utf-8") as source:
        text = source.read()
    for name in ("epl.init", "epl.Config", "epl.profiler.trace_hook.TraceHook", "epl.utils.errors.FeedError"):
        assert f'id="{name}"' in text
    assert "A context manager, and a value for" in text


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_links_to_files_outside_of_docs_stay_on_the_site(site):
    with open(os.path.join(site, "docs", "index.html"), encoding="utf-8") as source:
        text = source.read()
    for link in ("../CHANGELOG.html", "../examples/bert/README.html", "api.html"):
        assert f'href="{link}"' in text


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_start_page_in_a_browser(address, tmp_path):
    from PIL import Image

    picture = tmp_path / "start.png"
    browser.run(tmp_path / "profile", f"--screenshot={picture}", "--window-size=1280,900", address + "/index.html")
    with Image.open(str(picture)) as image:
        assert image.size == (1280, 900)
        colours = image.convert("RGB").getcolors(2**20)
    most = max(count for count, _ in colours)
    assert len(colours) > 100 and most < 0.95 * 1280 * 900  # text and a sidebar, not an empty window


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_search_finds_a_page_by_a_word_in_it(address, tmp_path):
    found = browser.run(tmp_path / "profile", "--dump-dom", address + "/search.html?q=reduce-scatter")
    results = found.split('id="search-results"')[1]
    assert "docs/zero.html" in results
