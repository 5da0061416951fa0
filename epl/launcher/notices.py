"""Notices: what TensorFlow says about itself, which stays in a worker's log and off the terminal.

| Notice | Shown where the worker has |
| --- | --- |
| the lines of level I of TensorFlow's C++ code: devices, XLA, oneDNN, the CPU | one of `CPP_VARIABLES` |
| of TensorFlow 2: that messages before absl::InitializeLog() go to STDERR; no CUDA driver | the same |
| of TensorFlow 2.15: that it registers CUDA's libraries twice; no TensorRT | the same |
| `FutureWarning` of numpy about TensorFlow's own modules | `PYTHONWARNINGS` |
| `UserWarning` of `tf.layers` that it is deprecated | the same |
| that a name or an argument of TensorFlow is deprecated | |
| that Keras does not read `OMP_NUM_THREADS`, which epl-launch sets for others | |

All else is shown: warnings and errors of TensorFlow's C++ code (W, E, F), what tf.print writes with level I, its other
warnings in Python, EPL's, the script's. A notice is left out only if all of it is there at once, as a process writes it
in a single call. A part of one is shown.
"""

import re
from typing import List, Mapping

_SELF = rb"(?:tensorflow|tensorflow_core|tensorflow_estimator|tensorboard)"
# Where pip, conda and Debian install packages: a script may lie in a folder with the name of one.
_INSTALLED = rb"/[^\n:]{0,500}/(?:site|dist)-packages/" + _SELF
# They ask for lines of level I, or for more of them.
CPP_VARIABLES = ("TF_CPP_MIN_LOG_LEVEL", "TF_CPP_MIN_VLOG_LEVEL", "TF_CPP_VMODULE")
# Before the text of a warning in Python: as logging has it, or absl after tf.app.run.
_WARNING = rb"(?:WARNING:tensorflow:|W\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \w+\.py:\d+\] )"
# logging_ops.cc: tf.print(..., output_stream=tf.logging.info).
_CPP_INFO = (
    rb"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I (?:tensorflow|external)/(?!core/kernels/logging_ops\.cc:)"
    rb"|I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ (?!logging_ops\.cc:)\w+\.cc:\d+\] )"  # absl, which names no folder
    rb"[^\n]*\n(?:To enable the following instructions: [^\n]*\n)?"
)
_ABSL_BEGINS = rb"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\n"
_NO_DRIVER = rb"^E\d{4} [\d:.]+ +\d+ cuda_\w+\.cc:\d+\] failed call to cuInit: [^\n]*UNKNOWN ERROR \(303\)\n"
_REGISTERED_TWICE = (
    rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?:E external/[^\n]*\] Unable to register cu\w+ factory: [^\n]*"
    rb"|W tensorflow/[^\n]*\] TF-TRT Warning: Could not find TensorRT)\n"
)
_FUTURE_WARNING = rb"^" + _INSTALLED + rb"/[^\n:]{1,500}\.py:\d+: FutureWarning: [^\n]*\n  [^\n]*\n"
_LAYERS_WARNING = (
    rb"^[^\n:]{1,500}\.py:\d+: UserWarning: `(?:tf|layer)\.[\w.]+` is deprecated and will be removed in a future "
    rb"version\.[^\n]*\n  [^\n]*\n"
)
# Instructions of several lines that are met often. TensorFlow 1.15 has three more, which are shown: those of tf.Print,
# of sparse_feature_cross, and of tf.py_func (its second line begins with four spaces).
_LONG_INSTRUCTIONS = (
    b"Use eager execution and: \n`tf.data.TFRecordDataset(path)`\n",
    b"\nFuture major versions of TensorFlow will allow gradients to flow\n"
    b"into the labels input on backprop by default.\n\nSee `tf.nn.softmax_cross_entropy_with_logits_v2`.\n\n",
)
_ONE_LINE = rb"(?!Use eager execution|Use tf\.print instead|The default behavior of sparse_)[^\n]+\n(?! {4})"
_INSTRUCTIONS = rb"(?:" + b"|".join([_ONE_LINE] + [re.escape(text) for text in _LONG_INSTRUCTIONS]) + rb")"
_DEPRECATION = (
    rb"^"
    + _WARNING
    + rb"From [^\n]{1,1000}"
    + rb"(?: is deprecated\. Please use [^\n]* instead\.\n\n"
    + rb"| \(from "
    + _SELF
    + rb"\.[\w.]+\)[^\n]{0,1000} is deprecated and will be removed [^\n]*\nInstructions for updating:\n"
    + _INSTRUCTIONS
    + rb")"
)
_KERAS_THREADS = rb"^" + _WARNING + rb"OMP_NUM_THREADS is no longer used by the default Keras config\.[^\n]*\n"


class NoticeFilter:
    """Takes the notices out of the output of a worker."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """
        Args:
          environ: the worker's; what it sets about TensorFlow's messages is the user's wish, and counts.
        """
        patterns: List[bytes] = [_DEPRECATION, _KERAS_THREADS]
        if not any(name in environ for name in CPP_VARIABLES):
            patterns += [_CPP_INFO, _ABSL_BEGINS, _NO_DRIVER, _REGISTERED_TWICE]
        if "PYTHONWARNINGS" not in environ:
            patterns += [_FUTURE_WARNING, _LAYERS_WARNING]
        self._notice = re.compile(b"|".join(patterns), re.MULTILINE)

    def shown(self, data: bytes) -> bytes:
        """Output without the notices in it."""
        return self._notice.sub(b"", data)
