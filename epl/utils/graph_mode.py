"""Importing this module makes TensorFlow build graphs, or says why it cannot.

TensorFlow 2 executes eagerly unless it is told otherwise, before anything is built.
"""

import logging

from epl.utils import tf_compat
from epl.utils.errors import GraphModeError

logger = logging.getLogger("epl")

tf_compat.turn_off_v2_behavior()


def require() -> None:
    """Checks that TensorFlow still builds graphs.

    Raises:
      GraphModeError: it executes eagerly, or something else of TensorFlow 2 is on.
    """
    if tf_compat.executes_eagerly():
        raise GraphModeError(
            "Tensorflow eager mode is not supported by EPL now, remove tf.enable_eager_execution(), or call "
            "tf.disable_eager_execution() first."
        )
    behavior = tf_compat.v2_behavior()
    if behavior:
        raise GraphModeError(
            f"The script has turned on {behavior[0]} of TensorFlow 2, which EPL does not support. Remove "
            "tf.enable_v2_behavior() and its like, or call tf.compat.v1.disable_v2_behavior() above epl.init()."
        )


def warn_of_keras() -> None:
    """Logs a warning if `tf.keras` and `tf.layers` build no graphs."""
    if not tf_compat.has_keras_of_graphs():
        logger.warning(
            "tf.keras is Keras 3, which builds no graphs: tf.layers and tf.keras cannot be used. Install tf_keras, and "
            "start with epl-launch, or set TF_USE_LEGACY_KERAS=1 before Python starts."
        )
