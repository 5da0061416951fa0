"""Quiet: `import quiet` before TensorFlow keeps what TensorFlow says about itself off the terminal.

These are numpy's warnings about TensorFlow's modules, level I of its C++ code, and its deprecations. Other warnings
and errors are shown. `TF_CPP_MIN_LOG_LEVEL` and `PYTHONWARNINGS` count where they are set. Under `epl-launch` messages
are left alone: it has them in its logs, and shows them with `--verbose`. TensorFlow 2 writes a few lines at any level
as soon as it is imported, on oneDNN and on GPUs; only who started the script can leave them out.

TensorFlow 2 is made to build graphs. From 2.16, `tf.layers` and `tf.keras` of graphs are those of the package tf_keras:
the examples ask for it.
"""

import importlib.util
import logging
import os
import sys
import warnings

if importlib.util.find_spec("tf_keras"):  # with TensorFlow 2.15, which has Keras 2 itself, nobody need have it
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
if "EPL_TASK_DIR" not in os.environ:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=FutureWarning, module="tensor(flow|board)")
        warnings.filterwarnings("ignore", r"`(tf|layer)\.[\w.]+` is deprecated", UserWarning)
    logging.getLogger("tensorflow").addFilter(lambda record: " is deprecated" not in record.getMessage())

# isort: split
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()  # with 1.15 it changes nothing
