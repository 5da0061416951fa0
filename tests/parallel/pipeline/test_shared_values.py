"""What the further micro batches take from elsewhere: constants worked out ahead, and one shape of a tensor."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import FeedError
from tests.parallel.pipelines import Chain, begin, rewritten, stage


@pytest.fixture
def transposing(init):
    """A pipeline whose gradients take shapes and a permutation that is computed; x, y and the training op."""
    begin(init)
    x, y = tf.placeholder(tf.float32, [None, 3, 2], "x"), tf.placeholder(tf.float32, [None, 1], "y")
    with stage():
        kernel = tf.get_variable("kernel", [2, 2])
        hidden = tf.tanh(tf.tensordot(tf.transpose(x, [0, 2, 1]), tf.get_variable("w", [3, 2]), 1))
        hidden = tf.transpose(hidden, [1, 0, 2], name="turned") * tf.reduce_sum(kernel)
    with stage():
        out = tf.reduce_sum(hidden, axis=[0, 2], name="out")
        loss = tf.reduce_mean(tf.square(tf.expand_dims(out, 1) - y))
    return x, y, tf.train.GradientDescentOptimizer(0.1).minimize(loss), loss


def producers(name):
    """Types and names of the ops that an op takes from."""
    return [(t.op.type, t.op.name) for t in tf.get_default_graph().get_operation_by_name(name).inputs]


def test_copies_take_the_value_of_what_is_computed_from_constants(transposing):
    rewritten()
    backward = "gradients/turned_grad/transpose"
    assert producers(backward)[1][0] == "InvertPermutation"
    op_type, name = producers("EPL_MICRO_BATCH_1/" + backward)[1]
    assert op_type == "Const" and name.startswith("EPL_PLAN/")
    graph = tf.get_default_graph()
    with tf.Session() as sess:
        copy, original = sess.run([graph.get_tensor_by_name(n + ":0") for n in (name, producers(backward)[1][1])])
    np.testing.assert_array_equal(copy, original)


def test_the_shape_of_a_tensor_is_asked_for_once_in_a_copy(transposing):
    plan = rewritten()
    graph = tf.get_default_graph()
    assert plan.micro_merged
    for name, kept in plan.micro_merged.items():
        assert "EPL_MICRO_BATCH_1/" + name not in graph._nodes_by_name
        of, of_kept = (producers(n)[0][1] for n in (name, kept))
        assert of == of_kept
    shapes = [op for op in graph.get_operations() if op.type == "Shape" and op.name.startswith("EPL_MICRO_BATCH_1/g")]
    assert len({op.inputs[0].name for op in shapes}) == len(shapes)


@pytest.mark.parametrize("kind", ["folded", "micro_merged"])
def test_what_has_no_copies_cannot_be_fed_in_a_step(transposing, kind):
    x, y, train, _ = transposing
    graph = tf.get_default_graph()
    plan = rewritten()
    names = sorted(name for name in getattr(plan, kind) if graph.get_operation_by_name(name).type != "Const")
    tensor = graph.get_tensor_by_name(names[0] + ":0")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        value = sess.run(tensor, {x: np.ones([4, 3, 2]), y: np.ones([4, 1])})
        with pytest.raises(FeedError, match="micro batch 0 alone would see the value"):
            sess.run(train, {x: np.ones([4, 3, 2]), y: np.ones([4, 1]), tensor: value})


def test_a_constant_that_is_no_whole_number_is_not_worked_out_ahead(init):
    begin(init)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        hidden = tf.layers.dense(x, 2)
    with stage():
        loss = tf.reduce_mean(tf.square(hidden * tf.divide(1.0, tf.constant(3.0), name="scale")))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert "scale" not in rewritten().folded


def test_a_shape_that_is_an_output_has_copies(init):
    begin(init)
    model = Chain()
    shape = tf.shape(model.hidden[1], name="rows")
    epl.add_to_collection(shape, epl.GraphKeys.LOCAL_SUM_OBJECTS)
    train_op = model.minimize()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert list(sess.run([shape, train_op], model.feed(6))[0]) == [6, 6]
