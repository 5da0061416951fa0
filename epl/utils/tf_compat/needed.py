"""Importing this module checks that there is a TensorFlow that EPL knows, with words that say what to install.

`epl/__init__.py` imports it before anything that imports TensorFlow, whose own errors name no remedy.
"""

import sys
from typing import Optional

from epl.utils.errors import TensorFlowNeededError
from epl.utils.version import INSTALL_PROTOBUF, KNOWN_TENSORFLOWS, how_to_install, is_known


def _needed(seen: str, remedy: str) -> TensorFlowNeededError:
    return TensorFlowNeededError(f"EPL needs TensorFlow {KNOWN_TENSORFLOWS}: {seen} ({sys.executable}). {remedy}")


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
