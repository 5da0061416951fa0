"""`--config_file`: options, configuration, plan and script in one file."""

import json
import os

import pytest

from epl.launcher import options as launcher_options

WHOLE = """
launcher:
  num_workers: 2
  gpu_per_worker: 1
  show_all: true
  env: {NCCL_DEBUG: INFO, ON: on}
config:
  amp.level: O1
  zero: {level: v1}
  num_micro_batch: 4
  communication.sparse_as_dense: yes
plan: plan.json
script: train.py --epochs 3
"""


@pytest.fixture
def parse(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("EPL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py", "plan.json"):
        (tmp_path / name).write_text("")

    def parse_file(text, *flags, name="job.yaml"):
        (tmp_path / name).write_text(text)
        return launcher_options.parse(["--config_file", name, *flags])

    return parse_file


def test_the_file_gives_options_configuration_plan_and_script(parse):
    found = parse(WHOLE)
    assert (found.num_workers, found.gpu_per_worker, found.show_all) == (2, 1, True)
    assert (found.script, found.script_args) == ("train.py", ["--epochs", "3"])
    assert found.env == {
        "NCCL_DEBUG": "INFO",
        "ON": "on",
        "EPL_AMP_LEVEL": "O1",
        "EPL_ZERO_LEVEL": "v1",
        "EPL_PIPELINE_NUM_MICRO_BATCH": "4",
        "EPL_COMMUNICATION_SPARSE_AS_DENSE": "yes",
        "EPL_AUTO_PLAN_FILE": "plan.json",
    }


def test_json_says_the_same(parse):
    plain = {
        "launcher": {"num_workers": 2, "gpu_per_worker": 1, "dry_run": True, "x": ["A=1", "B=2"]},
        "config": {"communication.sparse_as_dense": False, "pipeline": {"num_micro_batch": 2}},
        "script": ["train.py", "--name", "a b", 3],
    }
    found = parse(json.dumps(plain), name="job.json")
    assert found.dry_run and found.script_args == ["--name", "a b", "3"]
    assert found.env == {
        "A": "1",
        "B": "2",
        "EPL_COMMUNICATION_SPARSE_AS_DENSE": "false",
        "EPL_PIPELINE_NUM_MICRO_BATCH": "2",
    }


def test_the_command_line_comes_first_then_the_shell_then_the_file(parse, monkeypatch):
    monkeypatch.setenv("EPL_ZERO_LEVEL", "v0")
    found = parse(WHOLE, "-np", "3", "--env", "ON=off", "-x", "EPL_AMP_LEVEL=", "other.py", "--epochs", "9")
    assert (found.num_workers, found.script, found.script_args) == (3, "other.py", ["--epochs", "9"])
    assert (found.env["ON"], found.env["EPL_AMP_LEVEL"], found.env["EPL_ZERO_LEVEL"]) == ("off", "", "v0")


def test_options_of_the_scripts_own_with_a_name_of_the_launchers_are_the_scripts(parse):
    found = parse(WHOLE, "other.py", "--num_workers", "7")
    assert (found.num_workers, found.script_args) == (2, ["--num_workers", "7"])


def test_with_check_the_file_gives_what_a_check_takes(parse):
    found = parse(WHOLE.replace("show_all: true", "log_dir: logs"), "--check")
    assert found.check and found.num_workers == 2 and found.env["EPL_AMP_LEVEL"] == "O1" and not found.script


@pytest.mark.parametrize(
    "text, message",
    [
        ("launcher: {num_worker: 2}", "`launcher` has 'num_worker', which is unknown; did you mean 'num_workers'?"),
        ("launcher: {config_file: a}", "'config_file', which is unknown"),
        ("launch: {num_workers: 2}", "the file has 'launch', which is unknown; did you mean 'launcher'?"),
        ("launcher: 2", "`launcher` must have names and values"),
        ("- a", "the file must have names and values"),
        ("launcher: {num_workers: {a: 2}}", "num_workers must be one value"),
        ("launcher: {num_workers: two}", "'two'"),
        ("config: {amp.levl: O1}", "epl.Config has no key 'amp.levl'. The nearest is 'amp.level'"),
        ("config: {amp: {level: O7}}", "amp.level = 'O7' is not legal"),
        ("config: 3", "epl.Config got '3'"),
        ("plan: missing.json", "the plan 'missing.json' is no file"),
        ("script: train.py 'a", "script: No closing quotation"),
        ("a: [", "job.yaml is no YAML: line 1"),
        ("launcher: {x: A=1}\nlauncher: {}", "the key 'launcher' stands twice"),
        ("launcher: {num_workers: 2, gpu_per_worker: 1}", "required: training_script"),
    ],
)
def test_a_file_that_is_wrong_is_refused(parse, capsys, text, message):
    with pytest.raises(SystemExit) as refusal:
        parse(text)
    assert refusal.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name, message", [("none.yaml", "No such file"), ("job.toml", "must end in .yaml")])
def test_a_name_that_is_wrong_is_refused(parse, capsys, name, message):
    with pytest.raises(SystemExit):
        launcher_options.parse(["--config_file", name])
    assert message in capsys.readouterr().err
