"""Counting GPUs without touching them; a small library stands in for the driver's."""

import os
import shutil
import subprocess
import sys

import pytest

from epl.utils import gpu_info

_FAKE_NVML = """
static int initialised = 0;
int nvmlInit_v2(void) { initialised = 1; return %(init)d; }
int nvmlShutdown(void) { initialised = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned int* count) { *count = 4; return initialised ? 0 : 1; }
"""


def count_with_fake_driver(tmp_path, init_status, **environment):
    """Returns what a process counts that finds the stand-in for libnvidia-ml.so.1."""
    compiler = next(name for name in (os.environ.get("CC"), "gcc", "cc", "g++") if name and shutil.which(name))
    source = tmp_path / "nvml.c"
    source.write_text(_FAKE_NVML % {"init": init_status})
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", library, str(source)], check=True)
    variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    variables.update(environment, LD_LIBRARY_PATH=str(tmp_path))
    program = "from epl.utils import gpu_info; print(gpu_info.visible_gpu_count())"
    root = os.path.dirname(os.path.dirname(gpu_info.__file__))
    output = subprocess.check_output([sys.executable, "-c", program], env=variables, cwd=os.path.dirname(root))
    return int(output)


def test_the_driver_is_asked(tmp_path):
    assert count_with_fake_driver(tmp_path, init_status=0) == 4


def test_cuda_visible_devices_leaves_some(tmp_path):
    assert count_with_fake_driver(tmp_path, init_status=0, CUDA_VISIBLE_DEVICES="3,1") == 2


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/gpus"), reason="this machine has an NVIDIA GPU of its own")
def test_a_driver_that_does_not_answer_has_no_gpus(tmp_path):
    assert count_with_fake_driver(tmp_path, init_status=9) == 0


@pytest.mark.parametrize(
    "value,count",
    [
        ("", 0),
        ("0,1", 2),
        ("3", 1),
        ("0,-1,1", 1),
        ("4", 0),
        ("1,4,0", 1),
        ("0,0", 0),
        ("GPU-8932f937", 1),
        ("none", 0),
        ("0,\u00b2", 1),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(value, count):
    assert gpu_info.count_visible(value, present=4) == count


def test_without_a_gpu_a_uuid_names_none():
    assert gpu_info.count_visible("GPU-8932f937", present=0) == 0
