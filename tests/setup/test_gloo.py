"""Tests of the transport between machines pass without it: so a build must have it where set-up can get it."""

import os
import shutil
import subprocess

import system

from epl.ops import native

CSRC = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "csrc")


def set_up_can_have_gloo():
    """Whether its headers are there, or a package that set-up may install."""
    if system.has_gloo(system.compiler(os.environ), os.environ):
        return True
    may_install = os.geteuid() == 0 and os.environ.get("EPL_APT") != "off" and shutil.which("apt-get")
    return bool(may_install) and not subprocess.call(["apt-cache", "show", "-q", "libgloo-dev"])


def test_the_library_has_gloo():
    library = native.require()
    assert "gloo" in library.transports() or not set_up_can_have_gloo(), library.missing_transports()


def test_the_test_program_of_the_core_has_gloo_as_the_library_has():
    command = ["make", "-C", CSRC, "--dry-run", "--always-make", "build/release/test_core", "BUILD=build"]
    recipe = subprocess.check_output(command, universal_newlines=True)
    has_gloo = "gloo" in native.require().transports()
    assert ("libepl_gloo.so" in recipe) is has_gloo
