"""The cause in the text of an error of TensorFlow."""

import pytest
import tensorflow.compat.v1 as tf

from epl.utils.op_errors import cause_of, first_line


def test_the_cause_of_a_failing_op_comes_first():
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.placeholder(tf.float32, [], "value")
        checked = tf.debugging.assert_less(value, 1.0, message="too large", name="check")
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(checked, {value: 2.0})
    lines = cause_of(caught.value).splitlines()
    assert "too large" in lines[0]
    assert not [line for line in lines if "test_op_errors.py" in line]


def test_several_nodes_before_the_cause():
    error = tf.errors.AbortedError(
        None,
        None,
        "Graph execution error:\n\nDetected at node 'a' defined at (most recent call last):\nNode: 'a'\n"
        "Detected at node 'b' defined at (most recent call last):\n    File \"train.py\", line 1, in <module>\n"
        "Node: 'b'\n2 root error(s) found.\n  (0) ABORTED: gone\n  (1) ABORTED: late\n\nOriginal stack trace for 'a':",
    )
    assert cause_of(error) == "gone\n  (1) ABORTED: late"


def test_the_first_line_is_one_of_the_cause():
    made = tf.errors.InvalidArgumentError
    text = "Graph execution error:\n\nDetected at\nNode: 'a'\nno rows\nat all"
    assert first_line(made(None, None, text)) == "no rows"
    assert first_line(made(None, None, "")) == "it failed"


def test_any_other_error_is_its_text():
    assert cause_of(ValueError("a\n\nb")) == "a\n\nb"
