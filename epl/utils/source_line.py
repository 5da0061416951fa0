"""Where in the user's program an op was made, for messages."""

import functools
import os
from typing import Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.utils import tf_compat

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_place(op: tf.Operation) -> Optional[Tuple[str, int]]:
    """File and line of the user's program that made an op: the innermost call outside of libraries; None: a library."""
    frames = reversed(tf_compat.frames_of(op))
    return next(((frame.filename, frame.lineno) for frame in frames if _is_of_user(frame.filename)), None)


@functools.lru_cache(maxsize=None)
def _is_of_user(filename: str) -> bool:
    """Whether a file is the user's; kept, as a graph has many ops of few files."""
    is_library = "-packages" in filename or filename.startswith("<")
    return not is_library and not os.path.abspath(filename).startswith(_PACKAGE)


def user_line(op: tf.Operation) -> str:
    """The place of `user_place` in words."""
    place = user_place(op)
    return "made by a library" if place is None else f"{place[0]}:{place[1]}"
