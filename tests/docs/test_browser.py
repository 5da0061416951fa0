"""Where Chromium is missing, a test says so: it is skipped, and in .ci/run it fails."""

import os

import pytest

from tests.docs import browser


@pytest.fixture
def bare(tmp_path):
    """The environment of a machine that has no browser; what apt-get would do there is `apt-get`'s."""
    program(tmp_path, "apt-get", "exit 100")
    return {"PATH": str(tmp_path)}


def program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def outcome(kind, env):
    """What is said where no browser is found; a skip in place of a failure must not skip the test of it."""
    try:
        browser.find(env)
    except (pytest.skip.Exception, pytest.fail.Exception) as raised:
        assert type(raised) is kind.Exception
        return str(raised)
    raise AssertionError("a browser was found")


def test_a_missing_browser_skips_with_the_command_that_installs_it(bare):
    said = outcome(pytest.skip, bare)
    assert said.startswith("note: No Chromium, which shows pages in tests. To have it: apt-get install chromium")
    assert said.endswith("CHROMIUM= names another browser.")


def test_where_it_is_required_a_missing_browser_fails(bare):
    said = outcome(pytest.fail, dict(bare, REQUIRE_CHROMIUM="1"))
    assert "To have it: apt-get install chromium" in said and "REQUIRE_CHROMIUM is set" in said


def test_nothing_is_installed_where_that_is_switched_off(tmp_path, bare):
    program(tmp_path, "apt-get", f"/bin/touch {tmp_path}/ran")
    outcome(pytest.skip, dict(bare, EPL_APT="off"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="apt-get needs root")
def test_apt_installs_it(tmp_path, bare):
    program(tmp_path, "apt-get", f"/bin/ln -sf /bin/true {tmp_path}/chromium")
    assert browser.find(bare) == str(tmp_path / "chromium")


def test_a_browser_that_is_named_is_taken(tmp_path, bare):
    named = program(tmp_path, "mine", "exit 0")
    assert browser.find(dict(bare, CHROMIUM=named)) == named
    assert "CHROMIUM=nowhere is no program" in outcome(pytest.fail, dict(bare, CHROMIUM="nowhere"))


def test_ci_and_the_workflow_require_it():
    for path in (".ci/run", ".github/workflows/test.yml"):
        with open(os.path.join(browser.ROOT, path), encoding="utf-8") as source:
            assert "REQUIRE_CHROMIUM" in source.read(), path
