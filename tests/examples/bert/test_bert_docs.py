"""The page of the example names what there is."""

import glob
import os
import re

import ask
import export
import predict
import prepare
import pytest
import train


@pytest.fixture
def page(bert_folder):
    """The text of README.md."""
    with open(os.path.join(bert_folder, "README.md"), encoding="utf-8") as source:
        return source.read()


def shell(bert_folder):
    """The text of all launch scripts."""
    texts = []
    shared = os.path.join(os.path.dirname(bert_folder), "environment.sh")
    for path in [*glob.glob(os.path.join(bert_folder, "scripts", "*.sh")), shared]:
        with open(path, encoding="utf-8") as source:
            texts.append(source.read())
    return "\n".join(texts)


def test_every_command_is_a_script_that_can_be_run(page, bert_folder):
    root = os.path.dirname(os.path.dirname(bert_folder))
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    commands = [os.path.join(root, name) for name in re.findall(r"examples/\S+", blocks)]
    assert {os.path.basename(name) for name in commands} >= {"dp.sh", "zero.sh", "pipeline.sh", "auto_pipeline.sh"}
    assert all(os.access(name, os.X_OK) for name in commands if name.endswith(("sh", "sbatch")))
    assert all(os.path.exists(name) for name in commands)


def test_the_table_of_settings_is_that_of_the_scripts(page, bert_folder):
    read = set(re.findall(r"\$\{((?!EPL_)[A-Z_]+):-", shell(bert_folder))) - {"PYTHON", "PYTHONPATH", "VIRTUAL_ENV"}
    table = page.split("| Setting |")[1].split("\n\n")[0]
    named = {name for row in table.split("\n")[2:] for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])}
    assert named == read - {"BERT_DIR"}
    assert set(re.findall(r"\b([A-Z_]+)=", page)) - {"EPL_COMMUNICATION_CLIP_AFTER_ALLREDUCE"} <= read | {"SQUAD_DIR"}


@pytest.mark.parametrize("program", [prepare, predict, train, export, ask], ids=lambda module: module.__name__)
def test_the_options_of_scripts_and_page_exist(program, bert_folder, page, capsys):
    with pytest.raises(SystemExit):
        program.main(["--help"])
    known = set(re.findall(r"--\w+", capsys.readouterr().out))
    text = (shell(bert_folder) + page).replace("\\\n", " ")
    lines = re.findall(rf"\b{program.__name__}\.py\"? (?:--).*", text)
    options = {option for line in lines for option in re.findall(r"--\w+", line)}
    assert options and options <= known
