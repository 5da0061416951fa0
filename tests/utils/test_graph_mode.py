"""`import epl` makes TensorFlow 2 build graphs, or says why it cannot."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

ONLY_2 = pytest.mark.tensorflow("2", reason="TensorFlow 1.15 builds graphs by itself")
TRAIN = (
    "epl.init()\n"
    "with epl.replicate(1):\n"
    "    w = tf.get_variable('w', [])\n"
    "    step = tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(w - 1.0))\n"
    "with tf.Session() as sess:\n"
    "    sess.run(tf.global_variables_initializer())\n"
    "    sess.run(step)\n"
    "    print('trained', type(w).__name__)\n"
)


def run(source):
    """(what a script prints, the last line of its error) in a process of its own."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", source], env=env, check=False, universal_newlines=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    return done.stdout, (done.stderr.strip().split("\n") or [""])[-1] if done.returncode else ""


@pytest.mark.parametrize(
    "imports",
    [
        "import epl\nimport tensorflow.compat.v1 as tf\n",
        "import tensorflow.compat.v1 as tf\nimport epl\n",
        "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\nimport epl\n",
        "import tensorflow.compat.v1 as tf\ntf.disable_eager_execution()\nimport epl\n",
    ],
)
def test_a_script_of_graph_mode_trains(imports):
    assert run(imports + TRAIN) == ("trained RefVariable\n", "")


@ONLY_2
@pytest.mark.parametrize(
    "before, words",
    [
        ("tf.constant(1.0)", "TensorFlow has executed eagerly before `import epl`."),
        (
            "tf.disable_eager_execution(); tf.constant(1.0)",
            "A graph was begun with the behaviour of TensorFlow 2 before `import epl`.",
        ),
    ],
)
def test_too_late_is_refused_with_the_line_to_write(before, words):
    _, error = run(f"import tensorflow.compat.v1 as tf\n{before}\nimport epl\n")
    assert error.startswith(f"epl.utils.errors.GraphModeError: {words}")
    assert error.endswith("import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()")


@ONLY_2
@pytest.mark.parametrize(
    "turned_on, words",
    [
        ("tf.enable_v2_behavior()", "Tensorflow eager mode is not supported by EPL now"),
        ("tf.enable_control_flow_v2()", "The script has turned on control flow v2 of TensorFlow 2"),
        ("tf.compat.v1.enable_tensor_equality()", "The script has turned on equality of tensors by value"),
    ],
)
def test_turned_on_afterwards_is_refused(turned_on, words):
    _, error = run(f"import epl\nimport tensorflow.compat.v1 as tf\n{turned_on}\nepl.init()\n")
    assert error.startswith(f"epl.utils.errors.GraphModeError: {words}")
