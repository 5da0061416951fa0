"""What is written as a SavedModel is loaded again, by its names."""

import os

import pytest
import saved_models
import tensorflow.compat.v1 as tf


def write(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None], "x")
        y = x * tf.get_variable("weight", [], initializer=tf.constant_initializer(3.0))
        session.run(tf.global_variables_initializer())
        saved_models.write(session, folder, {"x": x}, {"y": y})


def test_inputs_and_outputs_are_found_by_name(tmp_path):
    folder = str(tmp_path / "saved")
    write(folder)
    assert os.path.isdir(saved_models.extra(folder))
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = saved_models.load(session, folder)
        assert sorted(tensors) == ["x", "y"]
        assert session.run(tensors["y"], {tensors["x"]: [1.0, 2.0]}).tolist() == [3.0, 6.0]


def test_a_folder_that_exists_is_not_written_into(tmp_path):
    with pytest.raises(ValueError, match="exists, and an export replaces nothing"):
        write(str(tmp_path))
