"""Compiler, packages and GPU of the machine, on machines made for it."""

import os

import pytest
import system
from pythons import SetUpError


def gcc(machine, name, version):
    machine.program(name, f"echo {version}")


def test_gpp_in_the_known_range_is_taken(machine):
    gcc(machine, "g++", "12")
    gcc(machine, "g++-9", "9")
    assert system.compiler(machine.env) == "g++"


def test_an_older_compiler_beside_a_too_new_one_is_taken(machine):
    gcc(machine, "g++", "14")
    gcc(machine, "g++-11", "11")
    assert system.compiler(machine.env) == "g++-11"


def test_cxx_overrides(machine):
    gcc(machine, "g++", "12")
    machine.env["CXX"] = "ccache g++"
    assert system.compiler(machine.env) == "ccache g++"


def test_no_compiler_is_none(machine):
    assert system.compiler(machine.env) is None


@pytest.fixture
def user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.fixture
def root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_a_user_is_told_the_command(machine, user):
    machine.program("apt-get", "exit 0")
    with pytest.raises(SetUpError, match=r"no compiler\.\n.*\n  apt-get update && apt-get install -y g\+\+$"):
        system.Packages(machine.env, machine.say).require(["g++"], "no compiler.")


def test_root_installs_after_one_update(machine, root):
    log = os.path.join(machine.folder, "log")
    machine.program("apt-get", f'echo "$1" >> {log}')
    packages = system.Packages(machine.env, machine.say)
    packages.require(["g++"], "no compiler.")
    packages.prefer(["libgloo-dev"], "no Gloo.")
    with open(log) as source:
        assert source.read().split() == ["update", "install", "install"]


def test_a_required_package_that_cannot_be_installed_is_an_error(machine, root):
    machine.program("apt-get", "exit 100")
    with pytest.raises(SetUpError, match="apt-get install -y g"):
        system.Packages(machine.env, machine.say).require(["g++"], "no compiler.")


def test_a_preferred_package_that_cannot_be_installed_is_a_note(machine, root):
    machine.program("apt-get", "exit 100")
    system.Packages(machine.env, machine.say).prefer(["libgloo-dev"], "no Gloo.")
    assert machine.said[-1] == "note: no Gloo. To have it: apt-get install libgloo-dev"


def test_epl_apt_off_installs_nothing(machine, root):
    machine.program("apt-get", "exit 0")
    machine.env["EPL_APT"] = "off"
    with pytest.raises(SetUpError):
        system.Packages(machine.env, machine.say).require(["g++"], "no compiler.")


@pytest.mark.parametrize(
    "answer, expected", [("echo 'GPU 0: Tesla T4'", True), ("echo 'No devices found'", False), ("exit 9", False)]
)
def test_a_gpu_is_seen_by_nvidia_smi(machine, monkeypatch, answer, expected):
    monkeypatch.setattr(system.glob, "glob", lambda pattern: [])
    machine.program("nvidia-smi", answer)
    assert system.has_gpu(machine.env) is expected
