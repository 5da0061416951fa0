"""What the memory estimate leaves out of a step because grappler does."""

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.profiler.estimate import grappler


def test_a_wait_is_not_repeated_by_an_output_of_identity_n_that_is_not_taken():
    with tf.Graph().as_default() as graph:
        kept = tf.placeholder(tf.float32, [4], "kept")
        wait = tf.no_op("wait")
        with tf.control_dependencies([wait]):
            again = tf.exp(kept, "again")
        one, _ = tf.identity_n([kept, again], "both")
        with tf.control_dependencies([wait]):
            ends = [tf.tanh(one, "end"), tf.tanh(again, "other")]
    view = GraphView(graph)
    order = [view.index[name] for name in ("kept", "wait", "again", "both", "end", "other")]
    number = dict(zip(("kept", "wait", "again", "both", "end", "other"), order))
    types = {node: [None] for node in order}
    _, unshown = grappler.idle_nodes(graph, view, types, [view.index[one.op.name] for one in ends], order, ())
    assert unshown == {(number["both"], 1)}
    repeated = (number["other"], number["wait"])
    assert grappler.repeated_waits(view, order, ()) == {repeated, (number["end"], number["wait"])}
    assert grappler.repeated_waits(view, order, unshown) == {repeated}
