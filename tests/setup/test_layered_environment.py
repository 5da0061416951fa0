"""Environments that `make bench` and `make docs` lay over the project's own one."""

import subprocess

import pytest

from tools.layered_environment import BuildError, LayeredEnvironment


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "requirements.txt").write_text("# nothing more\n")
    return LayeredEnvironment(str(tmp_path / "venv"), str(tmp_path / "requirements.txt"), probe="import numpy")


def test_it_has_the_packages_of_the_environment_that_makes_it_until_its_requirements_change(environment):
    assert not environment.is_ready()
    environment.make()
    assert environment.is_ready()
    where = subprocess.check_output([environment.python, "-c", "import sys, numpy; print(sys.prefix)"])
    assert where.decode().strip() == environment.directory
    with open(environment.requirements, "a") as file:
        file.write("# more\n")
    assert not environment.is_ready()


def test_what_pip_cannot_install_is_said_with_the_end_of_its_log(environment):
    with open(environment.requirements, "w") as file:
        file.write("./missing-1.0-py3-none-any.whl\n")
    with pytest.raises(BuildError, match="(?s)pip install.*missing-1.0"):
        environment.make()
    assert not environment.is_ready()


def test_it_is_not_ready_without_what_it_is_made_for(environment):
    lacking = environment._replace(probe="import no_such_module")
    with pytest.raises(BuildError, match="No module named 'no_such_module'"):
        lacking.make()
    assert not lacking.is_ready()
