"""How the examples write SavedModels and ask them: plain TensorFlow on one device, also for TensorFlow Serving.

saved_model.pb, variables/     the graph with its weights
assets.extra/                  what turns text into its inputs; no op reads it
"""

import os
from typing import Any, Dict

import tensorflow.compat.v1 as tf


def write(session: tf.Session, folder: str, inputs: Dict[str, tf.Tensor], outputs: Dict[str, tf.Tensor]) -> None:
    """Writes the graph and the variables of a session.

    Raises:
      ValueError: the folder exists.
    """
    if tf.io.gfile.exists(folder):
        raise ValueError(f"{folder} exists, and an export replaces nothing; remove it, or give another --output.")
    tf.saved_model.simple_save(session, folder, inputs, outputs)
    tf.io.gfile.makedirs(extra(folder))


def load(session: tf.Session, folder: str) -> Dict[str, Any]:
    """Loads a SavedModel into a session and its graph; returns its inputs and outputs by name."""
    loaded = tf.saved_model.loader.load(session, [tf.saved_model.tag_constants.SERVING], folder)
    signature = loaded.signature_def[tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
    named = dict(signature.inputs, **signature.outputs)
    return {name: session.graph.get_tensor_by_name(info.name) for name, info in named.items()}


def extra(folder: str, *name: str) -> str:
    """Returns the path of a file that belongs to a SavedModel; without a name, of their folder."""
    return os.path.join(folder, "assets.extra", *name)
