"""`import quiet`: what TensorFlow says about itself is not shown, other warnings are, and the user's settings count."""

import os
import subprocess
import sys

import pytest

from examples.quickstart import run as quickstart

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = """
import quiet, warnings
warnings.warn_explicit("a", FutureWarning, "dtypes.py", 1, "tensorflow.python.framework.dtypes")  # as TensorFlow 1.15.0
import tensorflow.compat.v1 as tf
tf.where(tf.layers.dense(tf.zeros([1, 2]), 1) > 0)
tf.logging.warning("a warning")
tf.Session().run(tf.zeros([1]))
"""
CPP, FUTURE, DEPRECATED = "cpu_feature_guard.cc", "FutureWarning", "WARNING:tensorflow:From"


def shown(**settings):
    """Standard error of the script."""
    cleared = ("TF_CPP_MIN_LOG_LEVEL", "PYTHONWARNINGS", "EPL_TASK_DIR")
    env = {key: value for key, value in os.environ.items() if key not in cleared}
    env.update(PYTHONPATH=os.path.join(ROOT, "examples"), CUDA_VISIBLE_DEVICES="", **settings)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, stderr=subprocess.PIPE, check=True, timeout=100)
    return done.stderr.decode()


def test_other_warnings_alone_are_shown():
    lines = [line for line in shown().splitlines() if not quickstart.AT_ANY_LEVEL.match(line)]
    assert lines == ["WARNING:tensorflow:a warning"]


@pytest.mark.parametrize(
    "settings,found",
    [
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, [CPP]),
        ({"PYTHONWARNINGS": "default"}, [FUTURE]),
        ({"EPL_TASK_DIR": "logs/0"}, [CPP, FUTURE, DEPRECATED]),  # epl-launch has a log for them
    ],
)
def test_settings_of_the_user_and_a_log_bring_them_back(settings, found):
    text = shown(**settings)
    assert "WARNING:tensorflow:a warning\n" in text
    assert [word for word in (CPP, FUTURE, DEPRECATED) if word in text] == found
