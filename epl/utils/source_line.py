"""Where in the user's program an op was made, for messages."""

import os
from typing import Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.utils import tf_compat

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_place(op: tf.Operation) -> Optional[Tuple[str, int]]:
    """File and line of the user's program that made an op: the innermost call outside of libraries; None: a library."""
    for filename, line in tf_compat.creation_frames(op):
        if (
            "-packages" not in filename
            and not os.path.abspath(filename).startswith(_PACKAGE)
            and not filename.startswith("<")
        ):
            return filename, line
    return None


def user_line(op: tf.Operation) -> str:
    """The place of `user_place` in words."""
    place = user_place(op)
    return "made by a library" if place is None else f"{place[0]}:{place[1]}"
