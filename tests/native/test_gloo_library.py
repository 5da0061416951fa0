"""Gloo is opened at run time: what the core says, and what still works, where it cannot be."""

import ctypes
import json
import os
import shutil

import ops_harness
import pytest

from epl.ops import native

GLOO_LIBRARY = "libepl_gloo.so"
SCENARIOS = os.path.join(os.path.dirname(ops_harness.__file__), "ops_scenarios.py")


def take_away(library):
    os.remove(library)


def damage(library):
    with open(library, "w") as target:
        target.write("nothing")


def take_gloo_away(library):
    """As on a machine without libgloo0: another name, of the same length, is needed."""
    with open(library, "rb") as source:
        content = source.read()
    assert content.count(b"\0libgloo.so.0\0") == 1
    with open(library, "wb") as target:
        target.write(content.replace(b"\0libgloo.so.0\0", b"\0libgone.so.0\0"))


@pytest.fixture
def libraries(tmp_path):
    if "gloo" not in native.require().transports():
        pytest.skip("built without Gloo")
    folder = str(tmp_path / "lib")
    shutil.copytree(native.LIBRARY_FOLDER, folder)
    return folder


@pytest.mark.parametrize(
    "change, words",
    [
        (take_away, "gloo: not built: install libgloo-dev (apt-get install libgloo-dev) and build again; processes"),
        (damage, "libepl_gloo.so: file too short): install Gloo (apt-get install libgloo0), or build again; processes"),
        (take_gloo_away, "libepl_gloo.so cannot be used (libgone.so.0: cannot open shared object file: No such file"),
    ],
)
def test_the_core_works_without_gloo_and_says_what_it_needs(libraries, change, words):
    change(os.path.join(libraries, GLOO_LIBRARY))
    core = native._load_core(os.path.join(libraries, native.CORE_LIBRARY))
    why = ctypes.c_char_p()
    assert core.epl_comm_transports(ctypes.byref(why)).decode().split()[:3] == ["local", "shm"]
    assert words in why.value.decode()


def test_all_processes_refuse_several_machines_where_one_lacks_gloo(libraries):
    take_gloo_away(os.path.join(libraries, GLOO_LIBRARY))
    with ops_harness.processes(SCENARIOS, 2, ["no_gloo", libraries]) as workers:
        said = [[json.loads(line) for line in worker.communicate(timeout=120)[0].splitlines()] for worker in workers]
    for together, refused in said:
        assert together == {"transport": "shm", "total": 3.0}
        assert "communicator 'machines' cannot use transport gloo: worker 1 (localhost:" in refused["message"]
        assert "libgone.so.0: cannot open shared object file" in refused["message"]
        assert refused["seconds"] < 15
