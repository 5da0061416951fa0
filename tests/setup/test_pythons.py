"""Which Python set-up chooses, on machines made for it."""

import os
import sys

import pytest
import pythons


def choose(machine):
    return pythons.choose(machine.env, os.path.join(machine.folder, ".venv"), machine.say)


def test_python_3_7_goes_before_3_6(machine):
    machine.python("bin/python3.6", "3.6.15")
    expected = machine.python("bin/python3.7", "3.7.16")
    assert choose(machine).path == expected


def test_python_3_6_is_taken_when_there_is_no_3_7(machine):
    machine.python("bin/python3", "3.11.7")
    expected = machine.python("bin/python3.6", "3.6.15")
    assert choose(machine).path == expected


def test_python3_that_is_3_7_is_found(machine):
    expected = machine.python("bin/python3", "3.7.3")
    assert choose(machine).path == expected


def test_newest_of_pyenv_is_found(machine):
    machine.python("home/.pyenv/versions/3.7.9/bin/python", "3.7.9")
    machine.python("home/.pyenv/versions/3.7.12/bin/python", "3.7.12")
    expected = machine.python("home/.pyenv/versions/3.7.16/bin/python", "3.7.16")
    found = choose(machine)
    assert (found.path, found.origin) == (expected, "pyenv")


def test_one_of_uv_is_found(machine):
    expected = machine.python("home/.local/share/uv/python/cpython-3.7.9-linux-x86_64-gnu/bin/python3.7", "3.7.9")
    found = choose(machine)
    assert (found.path, found.origin) == (expected, "uv")


def test_a_shim_that_does_not_run_is_passed_over(machine):
    machine.program("python3.7", "echo 'pyenv: python3.7: command not found' >&2; exit 127")
    expected = machine.python("home/.pyenv/versions/3.7.16/bin/python", "3.7.16")
    assert choose(machine).path == expected


def test_the_virtual_environment_is_not_made_from_itself(machine):
    machine.python(".venv/bin/python3.7", "3.7.16")
    machine.env["PATH"] = os.path.join(machine.folder, ".venv", "bin") + os.pathsep + machine.bin
    expected = machine.python("bin/python3.7", "3.7.3")
    assert choose(machine).path == expected


def test_python_3_8_is_taken_with_nvidias_tensorflow(machine):
    expected = machine.python("bin/python3.8", "3.8.10", tensorflow="nvidia-tensorflow 1.15.5+nv22.12")
    assert choose(machine).path == expected


def test_python_3_8_without_tensorflow_is_refused_with_the_reason(machine):
    machine.python("bin/python3.8", "3.8.10")
    with pytest.raises(pythons.SetUpError, match="no TensorFlow 1.15 for Python 3.8"):
        choose(machine)


def test_no_python_names_the_ways_to_get_one(machine):
    with pytest.raises(pythons.SetUpError) as error:
        choose(machine)
    for way in ("uv tool run --from 'uv<0.7' uv python install 3.7", "pyenv install", "apt-get install", "PYTHON="):
        assert way in str(error.value)


def test_uv_downloads_one_when_there_is_none(machine):
    path = "home/.local/share/uv/python/cpython-3.7.9-linux-x86_64-gnu/bin/python3.7"
    ready = machine.python("elsewhere/python3.7", "3.7.9")
    made = os.path.join(machine.folder, path)
    machine.program("uv", f"/bin/mkdir -p {os.path.dirname(made)} && /bin/cp {ready} {made}")
    assert choose(machine).path == made
    assert any("uv downloads one" in line for line in machine.said)


def test_uv_that_fails_leaves_the_message(machine):
    machine.program("uv", "exit 2")
    with pytest.raises(pythons.SetUpError, match="no Python 3.7 found"):
        choose(machine)


def test_python_variable_overrides(machine):
    machine.python("bin/python3.7", "3.7.16")
    machine.env["PYTHON"] = machine.python("own/python", "3.6.8")
    assert choose(machine).path == machine.env["PYTHON"]


@pytest.mark.parametrize(
    "value, version, words", [("python3.9", "3.9.1", "Python 3.9.1"), ("python3.8", "3.8.1", "for Python 3.8")]
)
def test_python_variable_with_a_wrong_version_is_refused(machine, value, version, words):
    machine.python("bin/" + value, version)
    machine.env["PYTHON"] = value
    with pytest.raises(pythons.SetUpError, match=words):
        choose(machine)


def test_python_variable_that_is_no_program_is_refused(machine):
    machine.env["PYTHON"] = "python3.77"
    with pytest.raises(pythons.SetUpError, match="is not a program"):
        choose(machine)


def test_the_probe_tells_version_and_tensorflow(machine, tmp_path):
    (tmp_path / "packages" / "nvidia_tensorflow-1.15.5+nv22.12.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "tensorflow_estimator-1.15.1.dist-info").mkdir()
    real = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info[:2]))
    path = machine.program("python3.7", 'PYTHONPATH={} exec {} "$@"'.format(tmp_path / "packages", real))
    found = pythons.probe(path, "PATH", machine.env)
    assert found.version == tuple(sys.version_info[:3])
    assert found.tensorflow == "nvidia-tensorflow 1.15.5+nv22.12"


def test_a_python_of_tensorflow_2_is_taken_when_there_is_none_of_1_15(machine):
    machine.python("bin/python3", "3.9.18")
    expected = machine.python("bin/python3.12", "3.12.1")
    found = choose(machine)
    assert (found.path, pythons.release_of(found.version, machine.env).name) == (expected, "2.21")


def test_a_python_of_tensorflow_1_15_goes_before_one_of_2(machine):
    machine.python("bin/python3", "3.12.1")
    expected = machine.python("home/.pyenv/versions/3.7.16/bin/python", "3.7.16")
    assert choose(machine).path == expected


def test_a_python_that_is_here_goes_before_one_that_uv_would_download(machine):
    machine.program("uv", "exit 2")
    expected = machine.python("bin/python3", "3.13.0")
    assert choose(machine).path == expected


@pytest.mark.parametrize("release, version", [("1.15", "3.7"), ("2.15", "3.11"), ("2.21", "3.12")])
def test_tf_chooses_among_the_pythons(machine, release, version):
    for there in ("3.7", "3.11", "3.12"):
        machine.python("bin/python" + there, there + ".1")
    machine.env["TF"] = release
    found = choose(machine)
    assert found.version[:2] == tuple(int(part) for part in version.split("."))
    assert pythons.release_of(found.version, machine.env).name == release


def test_tf_without_its_python_names_the_ways_to_get_one(machine):
    machine.python("bin/python3.7", "3.7.16")
    machine.env["TF"] = "2.15"
    with pytest.raises(pythons.SetUpError, match=r"no Python 3\.11 found(.|\n)*pyenv install 3\.11"):
        choose(machine)


def test_tf_that_is_no_release_is_refused(machine):
    machine.env["TF"] = "2.14"
    with pytest.raises(pythons.SetUpError, match="TF=2.14 is none of 1.15, 2.15, 2.21"):
        choose(machine)


def test_python_variable_that_does_not_fit_tf_is_refused(machine):
    machine.env.update(PYTHON=machine.python("own/python", "3.12.1"), TF="1.15")
    with pytest.raises(pythons.SetUpError, match="is Python 3.12.1: TensorFlow 1.15 needs Python 3.6 or 3.7, or 3.8"):
        choose(machine)
