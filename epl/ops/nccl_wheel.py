"""NCCL of a wheel: `tensorflow[and-cuda]` brings one (nvidia-nccl-cu12), in a folder where no loader looks."""

import ctypes
import importlib.util
import os
from typing import List

_CUDA, _NCCL = "libcuda.so.1", "libnccl.so.2"


def load_nccl() -> None:
    """Loads the NCCL of a wheel, so that the core finds it by its name.

    Does nothing without an NVIDIA driver, where the loader finds an NCCL itself (of the system, or by LD_LIBRARY_PATH),
    or where no wheel has a usable one: the core then says what it misses.
    """
    if not _loads(_CUDA) or _loads(_NCCL):
        return
    for folder in _wheel_folders():
        if _loads(os.path.join(folder, "lib", _NCCL)):
            return


def _wheel_folders() -> List[str]:
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    return [] if spec is None else list(spec.submodule_search_locations or [])


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)  # stays loaded
    except OSError:
        return False
    return True
