"""Checkpoints that each TensorFlow wrote, restored on this one: in each layout and on another number of devices."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel.sharding.sharded_variables import ShardedVariables
from tests.parallel.in_process import plain_graph
from tests.runtime.checkpoint_models import FOLDER, LAYOUTS, STEPS, Model, model_in


def trained(model, path):
    """The values that a checkpoint gives, and those after one more step."""
    with tf.Session() as sess:
        model.saver.restore(sess, path)
        restored = model.values(sess)
        sess.run(model.train_op)
        return restored, model.values(sess)


@pytest.mark.grid
@pytest.mark.parametrize("layout,devices", [("plain", 2), ("v1", 3), ("split", 3)])
@pytest.mark.parametrize("written", LAYOUTS)
@pytest.mark.parametrize("version", sorted(os.listdir(FOLDER)))
def test_it_is_restored_and_trained_on(init, version, written, layout, devices):
    path = os.path.join(FOLDER, version, written)
    reader = tf.train.load_checkpoint(path)
    saved = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert saved["global_step"] == STEPS and saved["weight/Adam_1"].all()
    model = model_in(layout, init, devices)
    restored, after = trained(model, path)
    state = Graph.of(tf.get_default_graph()).state_of(ShardedVariables)
    is_in_parts = state is not None and state.shard_of("weight") != "weight"
    assert is_in_parts == (layout != "plain")
    with plain_graph():
        _, expected = trained(Model(tf.name_scope("whole")), path)
    assert set(restored) == set(saved) == set(expected)
    for name, value in saved.items():
        np.testing.assert_array_equal(restored[name], value, name)
        np.testing.assert_allclose(after[name], expected[name], rtol=1e-6, atol=1e-6 * np.abs(expected[name]).max())
