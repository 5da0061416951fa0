"""Random ops in bodies of functions draw other numbers in every micro batch and replica, the first as on one device."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils import tf_compat
from tests.parallel.pipelines import Chain, begin, no_stage, stage

SIZE = 8


def drawn():
    return tf.random_uniform([1, SIZE], seed=3)


def of_tf_function(scale):
    return tf.function(lambda x: x * drawn())(scale)


def of_nested_functions(scale):
    inner = tf.function(lambda x: x * drawn())
    return tf.function(lambda x: 1.0 * inner(x))(scale)


def of_defun(scale):
    return tf_compat.function.Defun(tf.float32, func_name="draw")(lambda x: x * drawn())(scale)


def of_cond_v2(scale):
    tf.enable_control_flow_v2()
    try:
        return tf.cond(scale > 0.0, lambda: scale * drawn(), lambda: scale * tf.ones([1, SIZE]))
    finally:
        tf.disable_control_flow_v2()


def of_no_function(scale):
    return scale * drawn()


KINDS = [of_tf_function, of_nested_functions, of_defun, of_cond_v2, of_no_function]


def run(draw, stage):
    """What is drawn in a step, by all copies."""
    model = Chain(2, stage)
    noise = tf.reshape(draw(1.0 + 0.0 * tf.reduce_mean(model.hidden[1])), [1, SIZE])
    model.loss += tf.reduce_mean(noise)
    if stage is not no_stage:
        epl.add_to_collection(noise, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run([noise, model.train_op], model.feed(12))[0]


@pytest.mark.grid
@pytest.mark.parametrize("micro_batches, devices", [(2, 4), (3, 2)])
@pytest.mark.parametrize("draw", KINDS)
def test_every_copy_draws_numbers_of_its_own(init, draw, micro_batches, devices):
    begin(init, micro_batches, devices)
    found = run(draw, stage)
    assert found.shape == (micro_batches * devices // 2, SIZE) and len(np.unique(found)) == found.size
    with tf.Graph().as_default():
        np.testing.assert_allclose(found[:1], run(draw, no_stage), rtol=1e-5)


def test_replicas_of_one_stage(init):
    init(3)
    found = run(of_tf_function, contextlib.suppress)
    assert len(np.unique(found)) == 3 * SIZE


def test_copies_of_functions_are_not_exported(init):
    begin(init, 3, 2)
    graph = tf.get_default_graph()
    run(of_tf_function, stage)
    names = [function.signature.name for function in tf_compat.full_graph_def(graph).library.function]
    exported = [function.signature.name for function in graph.as_graph_def(add_shapes=True).library.function]
    assert set(exported) < set(names) and not any("_epl_" in name for name in exported)


def test_functions_without_seeds_are_not_copied(init):
    begin(init, 3, 2)
    graph = tf.get_default_graph()
    run(lambda scale: tf.function(lambda x: x * tf.random_uniform([1, SIZE]))(scale), stage)
    assert not any("_epl_" in f.signature.name for f in tf_compat.full_graph_def(graph).library.function)
