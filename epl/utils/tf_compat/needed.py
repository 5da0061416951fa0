"""Importing this module checks that there is a TensorFlow that EPL knows, with words that say what to install.

`epl/__init__.py` imports it before anything that imports TensorFlow, whose own errors name no remedy.
"""

import sys
from typing import Optional, Tuple

from epl.utils.errors import TensorFlowNeededError
from epl.utils.version import INSTALL_PROTOBUF, INSTALL_TENSORFLOW, INSTALL_TENSORFLOW_2, INSTALL_TENSORFLOW_2_15

_TENSORFLOW_1 = (1, 15)
_TENSORFLOW_2 = ((2, 15), (2, 21))  # the oldest and the newest: both are tested, those between are expected to work
_VERSIONS = "1.15, or 2.15 to 2.21"


def _needed(seen: str, remedy: str) -> TensorFlowNeededError:
    return TensorFlowNeededError(f"EPL needs TensorFlow {_VERSIONS}: {seen} ({sys.executable}). {remedy}")


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


def _known(error: Exception) -> Optional[TensorFlowNeededError]:
    """The refusal of a failure whose remedy is known, else None."""
    if isinstance(error, ImportError) and error.name == "tensorflow":
        return _needed("there is none in this environment", how_to_install(sys.version_info[:2]))
    if "Descriptors cannot" in str(error):
        return _needed("protobuf is too new for the one in this environment", "Type: " + INSTALL_PROTOBUF)
    return None


def _unknown(error: Exception) -> TensorFlowNeededError:
    words = str(error).strip().split("\n")[0]
    seen = f"`import tensorflow` fails with {type(error).__name__}: {words}"
    return _needed(seen, "Make `import tensorflow` work first.")


def is_known(version: str) -> bool:
    """Whether EPL works, or is expected to work, with that version of TensorFlow, such as "2.21.0"."""
    numbers = version.split(".")[:2]
    if not all(number.isdigit() for number in numbers):
        return False
    known = tuple(int(number) for number in numbers)
    return known == _TENSORFLOW_1 or _TENSORFLOW_2[0] <= known <= _TENSORFLOW_2[1]


try:
    import tensorflow.compat.v1 as tf
except Exception as failure:  # protobuf's is a TypeError, a library that does not load an ImportError
    refusal = _known(failure)
    if refusal is not None:
        raise refusal from None
    raise _unknown(failure) from failure

if not is_known(tf.VERSION):
    raise _needed(f"this environment has TensorFlow {tf.VERSION}", how_to_install(sys.version_info[:2]))

IS_TENSORFLOW_1 = tf.VERSION.startswith("1.")  # else TensorFlow 2 in graph mode
