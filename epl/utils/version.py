"""The version of EPL, which `setup.py` reads from here, and the TensorFlows that it needs, without importing one."""

from typing import Tuple

VERSION = "0.6.0"

INSTALL_PROTOBUF = 'pip install "protobuf<3.21"'
# TensorFlow 1.15 names no upper limits itself, and newer packages break it.
INSTALL_TENSORFLOW = 'pip install "tensorflow==1.15.5" "protobuf<3.21" "numpy<1.19"'
INSTALL_TENSORFLOW_2_15 = 'pip install "tensorflow==2.15.1"'
# From 2.16 on the Keras of graphs is a package of its own.
INSTALL_TENSORFLOW_2 = 'pip install "tensorflow==2.21.0" "tf_keras==2.21.0"'

KNOWN_TENSORFLOWS = "1.15, or 2.15 to 2.21"
_TENSORFLOW_1 = (1, 15)
_TENSORFLOW_2 = ((2, 15), (2, 21))  # the oldest and the newest: both are tested, those between are expected to work


def how_to_install(python: Tuple[int, int]) -> str:
    """What to type for a TensorFlow that a version of Python can have."""
    if python < (3, 8):
        return f'Install it: {INSTALL_TENSORFLOW}, or "tensorflow-gpu==1.15.5" for GPUs.'
    if python == (3, 8):
        return (
            "PyPI has none of them for Python 3.8; NVIDIA's container images have nvidia-tensorflow 1.15. "
            "See docs/install.md."
        )
    if python == (3, 9):
        return f"Install it: {INSTALL_TENSORFLOW_2_15}."
    if python <= (3, 13):
        return f"Install it: {INSTALL_TENSORFLOW_2}."
    return "They need Python 3.7, or 3.9 to 3.13. See docs/install.md."


def is_known(version: str) -> bool:
    """Whether EPL works, or is expected to work, with that version of TensorFlow, such as "2.21.0"."""
    numbers = version.split(".")[:2]
    if not all(number.isdigit() for number in numbers):
        return False
    known = tuple(int(number) for number in numbers)
    return known == _TENSORFLOW_1 or _TENSORFLOW_2[0] <= known <= _TENSORFLOW_2[1]
