"""Lets TensorFlow leave out its search for ops that XLA could compile, in programs that do not use XLA.

Before each run of new ops TensorFlow asks for every op whether XLA has a kernel for it, by a walk over the list of all
kernels, also where XLA is off. That is a large part of what it does before a first step (docs/profiling.md, "Time to
the first step"). With the fuel 0 the search ends at once. TensorFlow reads the fuel once in a process, when it makes
the devices of the first session (TensorFlow 2 already when `tf.config` is asked for all that it was told): so the
variable is set for that moment alone, and only if nothing asks for XLA by then. Where a program has made devices before
(`tf.test.is_gpu_available`), the search stays, and XLA works.
"""

import contextlib
import logging
import os
import threading
from typing import Any, Iterator, Optional

import tensorflow.compat.v1 as tf

from epl.utils import tf_compat

logger = logging.getLogger("epl")

_VARIABLE = "TF_XLA_FLAGS"
_NO_FUEL = "--tf_xla_clustering_fuel=0"
_ATTRIBUTE = b"_XlaCompile"  # of ops in tf.xla.experimental.jit_scope, and of functions that are to be compiled


class _Process:
    """What was decided for this process: TensorFlow has one set of flags for all sessions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.left_out: Optional[bool] = None  # None before the first session
        self.warned = False


_process = _Process()


@contextlib.contextmanager
def left_out(graph: tf.Graph, config: Optional[tf.ConfigProto]) -> Iterator[None]:
    """The making of a session, and of the configuration where it has none, belongs inside: the first one decides."""
    with _process.lock:
        is_first = _process.left_out is None
        if is_first:
            _process.left_out = _VARIABLE not in os.environ and not _asks_for_xla(graph, config)
    if not (is_first and _process.left_out):
        yield
        return
    os.environ[_VARIABLE] = _NO_FUEL
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def warn_if_too_late(session: Any) -> None:
    """Warns once of a session that asks for XLA after another one has decided; to be called before its first run."""
    if not _process.left_out or _process.warned:
        return
    if _asks_for_xla(session.graph, tf_compat.session_config(session)):
        _process.warned = True
        logger.warning(
            "A session asks for XLA, and XLA compiles nothing in this process, unless the program has looked for "
            "devices before its first session: nothing had asked for XLA by then, and EPL let TensorFlow leave it "
            "out. Set the environment variable TF_XLA_FLAGS=--tf_xla_clustering_fuel=1000000000 before the start."
        )


def _asks_for_xla(graph: tf.Graph, config: Optional[tf.ConfigProto]) -> bool:
    if config is None:
        is_on = tf_compat.default_jit()
    else:
        level = config.graph_options.optimizer_options.global_jit_level
        is_on = level in (tf.OptimizerOptions.ON_1, tf.OptimizerOptions.ON_2)
    return is_on or _ATTRIBUTE in tf_compat.serialized_graph_def(graph)
