"""EPL's own use of TensorFlow triggers no deprecation warning; those of the user's script stay."""

import ast
import glob
import inspect
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.util import tf_decorator

# `import epl` wraps Estimators where there are some, and so imports them.
pytestmark = pytest.mark.tensorflow(
    "1", "2.21", reason="TensorFlow 2.15 deprecates tf.train's hooks with its Estimators"
)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = """
import numpy as np
import tensorflow as tf
if not tf.__version__.startswith("1."):
    from tensorflow.compat import v1 as tf
    tf.disable_v2_behavior()
from tensorflow.python.util import module_wrapper
module_wrapper._PER_MODULE_WARNING_LIMIT = 1000
import epl
epl.init(epl.Config({"amp.level": "O1", "amp.loss_scale": "dynamic", "cluster.num_virtual_devices": 2}))
epl.set_default_strategy(epl.replicate(1))
x = tf.compat.v1.placeholder(tf.float32, [None, 4])
w = tf.compat.v1.get_variable("w", [4, 4])
loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.train.MonitoredTrainingSession() as sess:
    sess.run(step, {x: np.ones([8, 4])})
"""


def names_in_use():
    """(file and line, name) of everything that the package takes from `tf`."""
    for path in glob.glob(os.path.join(ROOT, "epl", "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as source:
            tree = ast.parse(source.read())
        for node in ast.walk(tree):
            parts, base = [], node
            while isinstance(base, ast.Attribute):
                parts.append(base.attr)
                base = base.value
            if parts and isinstance(base, ast.Name) and base.id == "tf":
                yield f"{os.path.relpath(path, ROOT)}:{node.lineno}", ".".join(reversed(parts))


def is_deprecated(name):
    """Whether a call of `tf.name` warns; where only some arguments do, the text differs."""
    found = tf
    for part in name.split("."):
        found = getattr(found, part, None)
    function = getattr(found, "__init__", None) if inspect.isclass(found) else found
    decorators, _ = tf_decorator.unwrap(function)
    return any("THIS FUNCTION IS DEPRECATED" in (each.decorator_doc or "") for each in decorators)


def test_the_package_calls_nothing_that_is_deprecated():
    assert is_deprecated("py_func") and not is_deprecated("cond")
    assert [(where, "tf." + name) for where, name in names_in_use() if is_deprecated(name)] == []


def test_only_what_plain_tensorflow_warns_of_is_warned_of(tmp_path):
    plain = "\n".join("pass" if "epl" in line else line for line in SCRIPT.split("\n"))
    ours, theirs = warnings_of(SCRIPT, tmp_path), warnings_of(plain, tmp_path)
    assert ours == theirs and theirs


def warnings_of(script, folder):
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=str(folder), timeout=120, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="", EPL_CLUSTER_DEVICE_TYPE="cpu"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {line for line in done.stderr.splitlines() if "is deprecated" in line}
