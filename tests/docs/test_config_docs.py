"""docs/config.md is what its generator writes, and names every key."""

import importlib.util
import os
import subprocess
import sys

import pytest

from epl.config import keys as config_keys

_TOOL = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "gen_config_docs.py")


@pytest.fixture
def generator():
    spec = importlib.util.spec_from_file_location("gen_config_docs", _TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator):
    with open(generator.PAGE, encoding="utf-8") as page:
        assert page.read() == generator.render(), "run: python tools/gen_config_docs.py"


def test_every_key_has_an_entry_with_default_and_environment(generator):
    page = generator.render()
    for key in config_keys.KEYS:
        entry = page.split(f"### `{key.name}`\n")[1].split("###")[0]
        assert key.help in entry
        assert f"default: `{key.type.show(key.default)}`" in entry
        assert f"`{config_keys.env_name(key.name)}`" in entry


def test_check_fails_for_a_stale_page_and_leaves_it_alone(generator, tmp_path, capsys):
    stale = tmp_path / "config.md"
    stale.write_text("old")
    assert generator.main(["--check", "--output", str(stale)]) == 1
    assert "python tools/gen_config_docs.py" in capsys.readouterr().err
    assert stale.read_text() == "old"


def test_check_fails_for_a_missing_page(generator, tmp_path):
    assert generator.main(["--check", "--output", str(tmp_path / "config.md")]) == 1


def test_the_tool_runs_from_any_directory(tmp_path):
    page = tmp_path / "config.md"
    subprocess.run([sys.executable, os.path.abspath(_TOOL), "--output", str(page)], cwd=str(tmp_path), check=True)
    subprocess.run(
        [sys.executable, os.path.abspath(_TOOL), "--check", "--output", str(page)], cwd=str(tmp_path), check=True
    )
