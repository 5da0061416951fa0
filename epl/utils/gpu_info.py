"""How many NVIDIA GPUs this process may use, found without touching one.

TensorFlow's own listings (`device_lib.list_local_devices`, `tf.config.experimental.list_physical_devices`) create a
CUDA context on every visible GPU, and the first takes all their memory; so this module asks the driver instead. Whether
TensorFlow can use the GPUs shows when the first session is made.
"""

import ctypes
import os
import re
from typing import Optional


def visible_gpu_count() -> int:
    """Returns the number of GPUs that the driver has and CUDA_VISIBLE_DEVICES leaves to this process."""
    present = driver_gpu_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return present if visible is None else count_visible(visible, present)


def count_visible(cuda_visible_devices: str, present: int) -> int:
    """Returns how many of `present` GPUs the value of CUDA_VISIBLE_DEVICES leaves.

    As CUDA reads it: the list ends at its first entry that names no GPU, and a list with an index twice leaves none.
    GPUs and MIG slices named by UUID count as present.
    """
    seen = []
    for entry in cuda_visible_devices.split(","):
        entry = entry.strip()
        if entry.startswith(("GPU-", "MIG-")):
            if not present:
                break
        elif not re.fullmatch("[0-9]+", entry) or int(entry) >= present:
            break
        seen.append(entry)
    return len(seen) if len(set(seen)) == len(seen) else 0


def driver_gpu_count() -> int:
    """Returns the number of NVIDIA GPUs of this machine: from NVML, else from the files of the kernel driver."""
    count = _nvml_count()
    if count is not None:
        return count
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def _nvml_count() -> Optional[int]:
    """Asks the driver's management library, which needs no CUDA; None if it is missing or does not answer."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else None
    finally:
        nvml.nvmlShutdown()
