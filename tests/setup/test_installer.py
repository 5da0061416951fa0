"""What installs the requirements: uv where it is there and can, else pip; what is shown of it."""

import os

import pytest
from installer import Installer
from pythons import SetUpError


@pytest.fixture
def log(machine):
    """The commands that the machine's programs were called with, one a line."""

    def read():
        with open(os.path.join(machine.folder, "log")) as source:
            return source.read().split("\n")[:-1]

    return read


def installer(machine, pip="exit 0", uv=None, version=(3, 7, 16), progress=False):
    """One for a machine whose Python runs `pip`, and that has uv if it is given."""
    write = f'echo "${{0##*/}} $*" >> {machine.folder}/log; '
    if uv is not None:
        machine.program("uv", write + uv)
    python = machine.program("python3.7", write + pip)
    return Installer(python, version, machine.env, machine.say, progress)


def test_uv_is_used_where_it_is(machine, log):
    installer(machine, uv="exit 0").install(["-r", "py3.7.txt"], machine.folder)
    assert log() == [f"uv pip install -q --python {machine.bin}/python3.7 -r py3.7.txt"]


def test_pip_is_used_where_there_is_no_uv(machine, log):
    installer(machine).install(["-r", "py3.7.txt"], machine.folder)
    assert log() == ["python3.7 -m pip --disable-pip-version-check install -qq -r py3.7.txt"]


def test_pip_is_used_for_python_3_6_which_uv_does_not_know(machine, log):
    installer(machine, uv="exit 0", version=(3, 6, 15)).install(["numpy"], machine.folder)
    assert [line.split()[0] for line in log()] == ["python3.7"]


def test_what_uv_cannot_do_pip_does_and_all_after_it(machine, log):
    both = installer(machine, uv="exit 2")
    both.install(["numpy"], machine.folder)
    both.install(["six"], machine.folder)
    assert [line.split()[0] for line in log()] == ["uv", "python3.7", "python3.7"]
    assert machine.said == ["note: uv failed, its words are above; pip goes on"]


def test_pip_that_fails_is_an_error_with_its_command(machine):
    with pytest.raises(SetUpError, match=r"pip failed; .*\nIt ended with 3: .* install -qq numpy$"):
        installer(machine, pip="exit 3").install(["numpy"], machine.folder)


@pytest.mark.parametrize("uv", [None, "exit 0"])
def test_progress_is_shown_on_a_terminal(machine, log, uv):
    installer(machine, uv=uv, progress=True).install(["numpy"], machine.folder)
    assert " -q" not in log()[0]


@pytest.mark.parametrize("uv, words", [(None, "uninstall -qq -y six"), ("exit 0", "uninstall -q --python")])
def test_a_package_is_removed_without_a_question(machine, log, uv, words):
    installer(machine, uv=uv).uninstall("six", machine.folder)
    assert words in log()[0]


def test_variables_reach_the_build_of_a_package(machine, log):
    installer(machine, pip=f"echo native=$EPL_NATIVE >> {machine.folder}/log").install(
        ["."], machine.folder, EPL_NATIVE="off"
    )
    assert log()[-1] == "native=off"
