"""Importing this module checks that there is a TensorFlow 1.15, with words that say what to install.

`epl/__init__.py` imports it before anything that imports TensorFlow, whose own errors name no remedy.
"""

import sys

from epl.utils.errors import TensorFlowNeededError

_VERSION = "1.15"
_LIMITS = '"protobuf<3.21" "numpy<1.19"'


def _needed(seen: str, remedy: str) -> TensorFlowNeededError:
    return TensorFlowNeededError(f"EPL needs TensorFlow {_VERSION}: {seen} ({sys.executable}). {remedy}")


def _how_to_install() -> str:
    if sys.version_info >= (3, 8):
        return (
            "PyPI has it for Python 3.6 and 3.7; for Python 3.8 NVIDIA's container images have nvidia-tensorflow. "
            "See docs/install.md."
        )
    return f'Install it: pip install "tensorflow==1.15.5" {_LIMITS}, or "tensorflow-gpu==1.15.5" for GPUs.'


def _is_missing(error: Exception) -> bool:
    return isinstance(error, ImportError) and error.name == "tensorflow"


def _refusal(error: Exception) -> TensorFlowNeededError:
    if _is_missing(error):
        return _needed("there is none in this environment", _how_to_install())
    if "Descriptors cannot" in str(error):
        return _needed("protobuf is too new for the one in this environment", 'Type: pip install "protobuf<3.21"')
    words = str(error).strip().split("\n")[0]
    remedy = "Make `import tensorflow` work first."
    return _needed(f"`import tensorflow` fails with {type(error).__name__}: {words}", remedy)


def _check(version: str) -> None:
    if version.split(".")[:2] != _VERSION.split("."):
        raise _needed(f"this environment has TensorFlow {version}", _how_to_install())


try:
    import tensorflow.compat.v1 as tf
except Exception as error:  # protobuf's is a TypeError, a library that does not load an ImportError
    raise _refusal(error) from (None if _is_missing(error) else error)
_check(tf.VERSION)
