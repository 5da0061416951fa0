"""Which GPUs the workers get, with an nvidia-smi of our own on the PATH."""

import pytest

from epl.launcher import devices as launcher_devices
from epl.utils import gpu_info


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Returns a function that makes the machine have GPUs with so many MiB of 16,000 in use; None: no nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_info, "driver_gpu_count", lambda: 0)

    def make(used, code=0):
        if used is not None:
            lines = "".join(f"echo {index}, {each}, 16000\n" for index, each in enumerate(used))
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}exit {code}\n")
            (tmp_path / "nvidia-smi").chmod(0o755)

    return make


def visible(workers, per_worker, **environ):
    devices = launcher_devices.assign(workers, per_worker, environ)
    return [environment["CUDA_VISIBLE_DEVICES"] for environment in devices.environments]


def test_workers_get_consecutive_blocks_in_their_order(machine):
    machine([0, 3, 0, 0])
    assert visible(2, 2) == ["0,1", "2,3"]


def test_gpus_in_use_are_passed_over(machine):
    machine([9000, 0, 161, 0, 0, 0, 0])
    assert visible(2, 2) == ["3,4", "5,6"]


def test_scattered_free_gpus_are_taken_when_no_run_is_long_enough(machine):
    machine([0, 9000, 0, 0])
    assert visible(3, 1) == ["0", "2", "3"]


def test_too_few_free_gpus_are_an_error_with_the_numbers(machine):
    machine([0, 9000, 0])
    with pytest.raises(launcher_devices.DeviceError, match=r"need 4 free GPU\(s\) .* has 2 .*in use: 1"):
        visible(2, 2)


def test_too_few_gpus_end_the_launcher_with_code_2(machine, tmp_path, run):
    machine([0])
    launch = run("echo started", EPL_CLUSTER_DEVICE_TYPE="auto", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert launch.code == 2 and "need 2 free GPU(s)" in launch.output
    assert not (tmp_path / "logs").exists()


def test_indices_are_those_of_nvidia_smi(machine):
    machine([0])
    assert launcher_devices.assign(1, 1, {}).environments[0]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_gpus_that_the_user_named_are_taken_in_that_order(machine):
    machine([0, 0])
    assert visible(2, 1, CUDA_VISIBLE_DEVICES="7, GPU-ab12,3") == ["7", "GPU-ab12"]


@pytest.mark.parametrize("environ", [{"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}])
def test_gpus_that_the_user_hid_are_not_used(machine, environ):
    machine([0, 0])
    assert visible(2, 1, **environ) == ["", ""]


def test_device_type_cpu_uses_no_gpu(machine):
    machine([0, 0])
    assert visible(2, 1, EPL_CLUSTER_DEVICE_TYPE="cpu") == ["", ""]


def test_device_type_gpu_without_gpu_is_an_error(machine):
    machine(None)
    with pytest.raises(launcher_devices.DeviceError, match="nvidia-smi not found"):
        visible(1, 1, EPL_CLUSTER_DEVICE_TYPE="gpu")


def test_without_nvidia_smi_the_driver_is_asked(machine, monkeypatch):
    machine(None)
    assert visible(1, 2) == [""]
    monkeypatch.setattr(gpu_info, "driver_gpu_count", lambda: 2)
    assert visible(1, 2) == ["0,1"]


def test_nvidia_smi_that_fails_without_driver_means_no_gpu_and_is_told(machine):
    machine([], code=9)
    assert "failed with code 9" in launcher_devices.assign(1, 1, {}).text


def test_workers_with_gpus_keep_the_allocator_as_it_is(machine, tmp_path, run):
    machine([0, 0])
    path = f"{tmp_path}:/usr/bin:/bin"
    launch = run("env", EPL_CLUSTER_DEVICE_TYPE="auto", PATH=path, EPL_CLUSTER_NUM_VIRTUAL_DEVICES="5")
    assert launch.code == 0
    assert "[worker 0] CUDA_VISIBLE_DEVICES=0\n" in launch.output and "MALLOC_" not in launch.output
