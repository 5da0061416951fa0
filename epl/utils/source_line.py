"""Where in the user's program an op was made, for messages."""

import os

import tensorflow.compat.v1 as tf

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_line(op: tf.Operation) -> str:
    """File and line of the user's program that made an op: the innermost frame outside of libraries."""
    for frame in reversed(op.traceback or []):
        filename, line = frame[0], frame[1]
        if (
            "-packages" not in filename
            and not os.path.abspath(filename).startswith(_PACKAGE)
            and not filename.startswith("<")
        ):
            return f"{filename}:{line}"
    return "made by a library"
