"""The chain of a stage: which op has allocated the memory of a tensor."""

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs.costs import node_costs
from epl.parallel.recompute.candidates import chain_of
from epl.parallel.recompute.segments import BackwardPass, find_segments


def named(graph, *ops):
    """A view of a graph, and the nodes of ops, in order."""
    view = GraphView(graph)
    return view, [view.index[op.op.name] for op in ops]


def test_an_output_of_identity_n_is_the_memory_of_its_input():
    """As TensorFlow's kernel hands them on; a function with a gradient of its own ends with this op."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [4, 8])
        one, other = tf.tanh(x), tf.exp(x)
        first, second = tf.identity_n([one, other])
        end = tf.tanh(tf.reshape(second, [8, 4]))
    view, order = named(graph, x, one, other, first, end.op.inputs[0], end)
    costs = node_costs(graph, view, range(len(view)))
    chain = chain_of(view, BackwardPass(order, set(), set(), [], []), set(order), order, costs)
    assert list(chain.sizes) == [128, 128, 128, 0, 0, 128]
    assert list(chain.last[:3]) == [2, 3, 5]


def test_a_kept_output_of_identity_n_keeps_its_input_alone():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [4, 8])
        one, other = tf.tanh(x), tf.exp(x)
        first, second = tf.identity_n([one, other])
        end = tf.tanh(second)
        back = tf.multiply(one, other)
    view, (a, b, both, after, taker) = named(graph, one, other, first, end, back)
    places = {a: (0, 0), b: (0, 0), both: (0, 0), after: (0, 1)}
    passed = BackwardPass([a, b, both, after], set(), {taker}, [], [])
    (segment,) = find_segments(view, passed, set(places), places, (), ())
    assert [use.producer for use in segment.uses] == [a]
