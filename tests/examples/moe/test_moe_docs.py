"""The page of the example names what there is."""

import glob
import os
import re

import pytest


@pytest.fixture
def page(moe_folder):
    """The text of README.md."""
    with open(os.path.join(moe_folder, "README.md"), encoding="utf-8") as source:
        return source.read()


def test_every_command_is_there(page, moe_folder):
    root = os.path.dirname(os.path.dirname(moe_folder))
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    commands = [os.path.join(root, name) for name in re.findall(r"examples/\S+", blocks)]
    assert commands and all(os.path.exists(name) for name in commands)
    assert all(os.access(name, os.X_OK) for name in commands if name.endswith(".sh"))


def test_the_table_of_settings_is_that_of_the_script(page, moe_folder):
    with open(os.path.join(moe_folder, "scripts", "common.sh"), encoding="utf-8") as source:
        read = set(re.findall(r"\$\{([A-Z_]+):-", source.read())) - {"PYTHON", "PYTHONPATH", "VIRTUAL_ENV"}
    table = page.split("| Setting |")[1].split("\n\n")[0]
    assert {name for row in table.split("\n")[2:] for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])} == read
    assert set(re.findall(r"\b([A-Z_]+)=", page)) <= read


def test_the_table_of_files_is_complete(page, moe_folder):
    table = page.split("| File |")[1].split("\n\n")[0]
    there = {os.path.basename(path) for path in glob.glob(os.path.join(moe_folder, "*.py"))} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", table)) == there


def test_links_lead_somewhere(page, moe_folder):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page) if "://" not in link]
    assert links and all(os.path.exists(os.path.join(moe_folder, link)) for link in links)
