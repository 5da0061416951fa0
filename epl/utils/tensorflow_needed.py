"""Importing this module checks that there is a TensorFlow 1.15, with words that say what to install.

`epl/__init__.py` imports it before anything that imports TensorFlow, whose own errors name no remedy.
"""

import sys
from typing import Optional

from epl.utils.errors import TensorFlowNeededError
from epl.utils.version import INSTALL_PROTOBUF, INSTALL_TENSORFLOW

_VERSION = "1.15"


def _needed(seen: str, remedy: str) -> TensorFlowNeededError:
    return TensorFlowNeededError(f"EPL needs TensorFlow {_VERSION}: {seen} ({sys.executable}). {remedy}")


def _how_to_install() -> str:
    if sys.version_info >= (3, 8):
        return (
            "PyPI has it for Python 3.6 and 3.7; for Python 3.8 NVIDIA's container images have nvidia-tensorflow. "
            "See docs/install.md."
        )
    return f'Install it: {INSTALL_TENSORFLOW}, or "tensorflow-gpu==1.15.5" for GPUs.'


def _known(error: Exception) -> Optional[TensorFlowNeededError]:
    """The refusal of a failure whose remedy is known, else None."""
    if isinstance(error, ImportError) and error.name == "tensorflow":
        return _needed("there is none in this environment", _how_to_install())
    if "Descriptors cannot" in str(error):
        return _needed("protobuf is too new for the one in this environment", "Type: " + INSTALL_PROTOBUF)
    return None


def _unknown(error: Exception) -> TensorFlowNeededError:
    words = str(error).strip().split("\n")[0]
    seen = f"`import tensorflow` fails with {type(error).__name__}: {words}"
    return _needed(seen, "Make `import tensorflow` work first.")


try:
    import tensorflow.compat.v1 as tf
except Exception as failure:  # protobuf's is a TypeError, a library that does not load an ImportError
    refusal = _known(failure)
    if refusal is not None:
        raise refusal from None
    raise _unknown(failure) from failure

if tf.VERSION.split(".")[:2] != _VERSION.split("."):
    raise _needed(f"this environment has TensorFlow {tf.VERSION}", _how_to_install())
