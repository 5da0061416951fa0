"""The pages of the examples name what there is. What differs for BERT is in bert/test_bert_docs.py."""

import glob
import os
import re

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(params=["image_classification", "moe"])
def folder(request):
    """The folder of an example whose scripts all do the same."""
    return os.path.join(ROOT, "examples", request.param)


@pytest.fixture(params=["bert", "estimator_keras", "image_classification", "moe", "quickstart"])
def any_folder(request):
    """The folder of an example."""
    return os.path.join(ROOT, "examples", request.param)


def page_of(folder):
    """The text of README.md."""
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as source:
        return source.read()


def test_every_command_is_there(folder):
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", page_of(folder), re.MULTILINE | re.DOTALL))
    commands = [os.path.join(ROOT, name) for name in re.findall(r"examples/\S+", blocks)]
    assert commands and all(os.path.exists(name) for name in commands)
    assert all(os.access(name, os.X_OK) for name in commands if name.endswith((".sh", ".sbatch")))


def test_the_table_of_settings_is_that_of_the_script(folder):
    read = set()
    for path in (os.path.join(folder, "scripts", "common.sh"), os.path.join(ROOT, "examples", "environment.sh")):
        with open(path, encoding="utf-8") as source:
            read |= set(re.findall(r"\$\{((?!EPL_)[A-Z_]+):-", source.read()))
    read -= {"PYTHON", "PYTHONPATH", "VIRTUAL_ENV"}
    page = page_of(folder)
    table = page.split("| Setting |")[1].split("\n\n")[0]
    assert {name for row in table.split("\n")[2:] for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])} == read
    assert set(re.findall(r"\b([A-Z_]+)=", page)) <= read


def test_the_table_of_files_is_complete(any_folder):
    table = page_of(any_folder).split("| File |")[1].split("\n\n")[0]
    there = {os.path.basename(path) for path in glob.glob(os.path.join(any_folder, "*.py"))} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", table)) == there


def test_links_lead_somewhere(any_folder):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page_of(any_folder)) if "://" not in link]
    assert links and all(os.path.exists(os.path.join(any_folder, link.partition("#")[0])) for link in links)
