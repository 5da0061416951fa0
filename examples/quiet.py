"""Quiet: `import quiet` before TensorFlow keeps what TensorFlow says about itself off the terminal.

These are numpy's warnings about TensorFlow's modules, level I of its C++ code, and its deprecations. Other warnings
and errors are shown. `TF_CPP_MIN_LOG_LEVEL` and `PYTHONWARNINGS` count where they are set. Under `epl-launch` nothing
is done: it has the messages in its logs, and shows them with `--verbose`.

TensorFlow 2 is made to build graphs. From 2.16, `tf.layers` and `tf.keras` of graphs are those of the package tf_keras:
the examples ask for it.
"""

import logging
import os
import re
import sys
import tempfile
import warnings
from types import ModuleType

# What TensorFlow 2 writes at any level: that it has oneDNN, and that there is no driver for a GPU.
_SELF = re.compile(r"WARNING: All log messages before absl::|I\d{4} .*\.cc:\d+\] |E\d{4} .* failed call to cuInit: ")


def _import_tensorflow() -> ModuleType:
    """Imports TensorFlow; what it writes then is shown, but for what it says about itself."""
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            import tensorflow.compat.v1 as tf

            tf.config.experimental.list_physical_devices("GPU")
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            written.seek(0)
            lines = written.read().decode(errors="replace").splitlines(True)
            sys.stderr.write("".join(line for line in lines if not _SELF.match(line)))
    return tf


os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
if "EPL_TASK_DIR" in os.environ:
    import tensorflow.compat.v1 as tensorflow
else:
    asked = "TF_CPP_MIN_LOG_LEVEL" in os.environ
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=FutureWarning, module="tensor(flow|board)")
        warnings.filterwarnings("ignore", r"`(tf|layer)\.[\w.]+` is deprecated", UserWarning)
    logging.getLogger("tensorflow").addFilter(lambda record: " is deprecated" not in record.getMessage())
    if asked:
        import tensorflow.compat.v1 as tensorflow
    else:
        tensorflow = _import_tensorflow()
tensorflow.disable_v2_behavior()  # with 1.15 it changes nothing
