"""What the launch scripts of all examples share: the interpreter; something is prepared once, whoever needs it."""

import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENVIRONMENT = os.path.join(ROOT, "examples", "environment.sh")


@pytest.fixture
def once(tmp_path):
    """Calls `once` for a command that notes each of its runs."""
    source = tmp_path / "source"
    source.write_text("")
    os.utime(str(source), (1, 1))

    def call(command, workers=1):
        script = (
            f'set -eu; source {ENVIRONMENT}; cd {tmp_path}; once out/made source bash -c "{command}"; echo done >> ends'
        )
        started = [subprocess.Popen(["bash", "-c", script]) for _ in range(workers)]
        return [worker.wait() for worker in started]

    return call


def lines(path):
    return path.read_text().split() if path.exists() else []


def test_one_of_several_workers_prepares(once, tmp_path):
    assert once("sleep 0.3; echo ran >> out/made", workers=3) == [0, 0, 0]
    assert lines(tmp_path / "out" / "made") == ["ran"] and lines(tmp_path / "ends") == ["done"] * 3


def test_what_is_there_is_not_made_again(once, tmp_path):
    once("echo ran >> out/made")
    once("echo ran >> out/made")
    assert lines(tmp_path / "out" / "made") == ["ran"]


def test_another_command_or_source_makes_it_anew(once, tmp_path):
    once("echo ran >> out/made")
    once("echo other >> out/made")
    os.utime(str(tmp_path / "source"))
    os.utime(str(tmp_path / "out" / "made.by"), (5, 5))
    once("echo other >> out/made")
    assert lines(tmp_path / "out" / "made") == ["ran", "other", "other"]


def test_a_file_in_a_folder_makes_it_anew(once, tmp_path):
    (tmp_path / "source").unlink()
    (tmp_path / "source" / "rose").mkdir(parents=True)
    once("echo ran >> out/made")
    once("echo ran >> out/made")
    assert lines(tmp_path / "out" / "made") == ["ran"]
    os.utime(str(tmp_path / "out" / "made.by"), (5, 5))
    for folder in ("source", "source/rose"):
        os.utime(str(tmp_path / folder), (1, 1))
    once("echo ran >> out/made")
    assert lines(tmp_path / "out" / "made") == ["ran"]
    (tmp_path / "source" / "rose" / "1.jpg").write_text("")
    os.utime(str(tmp_path / "source" / "rose"), (1, 1))
    once("echo ran >> out/made")
    assert lines(tmp_path / "out" / "made") == ["ran", "ran"]


def test_what_was_removed_is_made_anew(once, tmp_path):
    once("echo ran >> out/made")
    (tmp_path / "out" / "made").unlink()
    once("echo ran >> out/made")
    assert lines(tmp_path / "out" / "made") == ["ran"]


def test_a_failure_ends_the_script_and_is_not_taken_for_made(once, tmp_path):
    assert once("echo ran >> out/made; exit 3") == [3]
    assert lines(tmp_path / "ends") == []
    once("echo ran >> out/made; exit 3")
    assert lines(tmp_path / "out" / "made") == ["ran", "ran"]


def test_what_a_failure_left_is_made_anew(once, tmp_path):
    once("echo whole > out/made")
    once("echo half > out/made; exit 3")
    once("echo whole > out/made")
    assert lines(tmp_path / "out" / "made") == ["whole"]


def interpreter(root, **variables):
    """The PYTHON of a checkout in a folder, with these variables."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "VIRTUAL_ENV")}
    script = f'source {root}/examples/environment.sh; echo "$PYTHON"'
    return subprocess.check_output(
        ["bash", "-euc", script], env=dict(env, **variables), universal_newlines=True
    ).strip()


def test_the_interpreter_is_that_of_the_environment_or_of_the_path(tmp_path):
    (tmp_path / "examples").mkdir()
    shutil.copy(ENVIRONMENT, str(tmp_path / "examples"))
    assert interpreter(tmp_path) == "python3"
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch(0o755)
    assert interpreter(tmp_path) == str(own)
    assert interpreter(tmp_path, VIRTUAL_ENV=str(tmp_path / "gone")) == "python3"
    assert interpreter(tmp_path, PYTHON="python3.7") == "python3.7"
