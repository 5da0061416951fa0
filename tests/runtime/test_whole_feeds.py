"""What is fed and holds no rows of the batch: every replica gets it whole, or an error says how to say so."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import FeedError

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(8, 3).astype("f")
Y = RANDOM.randn(8, 1).astype("f")
LABELS = RANDOM.randint(0, 4, 8)
ADJACENCY = (RANDOM.rand(8, 8) > 0.5).astype("f")
NONZERO = np.argwhere(ADJACENCY)


def placeholders(known=None):
    return tf.placeholder(tf.float32, [known, 3], "x"), tf.placeholder(tf.float32, [None, 1], "y")


def keep_probabilities():
    """Two numbers, of which the model takes each by itself."""
    x, y = placeholders()
    keep = tf.placeholder(tf.float32, [None], "keep")
    out = tf.layers.dense(x * keep[0], 1, name="dense") * keep[1]
    return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y, keep: [0.5, 2.0]}


def unstacked():
    """Numbers of which the model says how many there are, and some that it also sums."""
    x, y = placeholders()
    keep, rates = tf.placeholder(tf.float32, [None], "keep"), tf.placeholder(tf.float32, [None], "rates")
    first, second = tf.unstack(keep, num=2)
    out = tf.layers.dense(x * first, 1, name="dense") * second * rates[0] / tf.reduce_sum(rates)
    return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y, keep: [0.5, 2.0], rates: np.arange(1.0, 9.0)}


def coefficients():
    """As many as the model has columns."""
    x, y = placeholders()
    factors = tf.placeholder(tf.float32, [None], "factors")
    out = tf.layers.dense(tf.layers.dense(x, 4, name="first") * factors, 1, name="second")
    return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y, factors: [1.0, 2.0, 3.0, 4.0]}


def table():
    """Rows that each row of the batch looks at."""
    x, y = placeholders()
    keys = tf.placeholder(tf.float32, [None, 3], "keys")
    weights = tf.nn.softmax(tf.matmul(x, keys, transpose_b=True))
    out = tf.layers.dense(tf.matmul(weights, keys), 1, name="dense")
    return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y, keys: X[:6] + 1}


def candidates():
    """Classes that are fed, and the loss in one op."""
    x, labels = tf.placeholder(tf.float32, [None, 3], "x"), tf.placeholder(tf.int32, [None], "labels")
    classes = tf.placeholder(tf.float32, [None, 3], "classes")
    logits = tf.matmul(tf.layers.dense(x, 3, name="dense"), classes, transpose_b=True)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, {x: X, labels: LABELS, classes: X + 1}


def graph_of_nodes(sparse):
    """Two layers of a graph network on a whole graph."""
    features = tf.placeholder(tf.float32, [None, 3], "features")
    labels = tf.placeholder(tf.int32, [None], "labels")
    if sparse:
        adjacency = tf.sparse_placeholder(tf.float32, [None, None], "adjacency")
        multiply, value = tf.sparse_tensor_dense_matmul, (NONZERO, np.ones(len(NONZERO), "f"), ADJACENCY.shape)
    else:
        adjacency, multiply, value = tf.placeholder(tf.float32, [None, None], "adjacency"), tf.matmul, ADJACENCY
    hidden = multiply(adjacency, tf.layers.dense(features, 5, name="first"))
    out = multiply(adjacency, tf.layers.dense(hidden, 4, name="second"))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=out))
    return loss, {features: X, labels: LABELS, adjacency: value}


def graph_of_unknown_ranks():
    """Adjacency and mask of unknown rank, as the original GCN has them, and sparse features of constant shape."""
    adjacency = tf.sparse_placeholder(tf.float32, name="adjacency")
    features = tf.sparse_placeholder(tf.float32, tf.constant([8, 8], tf.int64), "features")
    labels, mask = tf.placeholder(tf.int32, [None], "labels"), tf.placeholder(tf.float32, name="mask")
    kernel = tf.get_variable("kernel", [8, 4])
    hidden = tf.sparse_tensor_dense_matmul(adjacency, tf.sparse_tensor_dense_matmul(features, kernel))
    out = tf.sparse_tensor_dense_matmul(adjacency, tf.nn.relu(hidden))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=out)
    value = (NONZERO, np.ones(len(NONZERO), "f"), ADJACENCY.shape)
    feed = {features: value, labels: LABELS, adjacency: value, mask: np.arange(8.0)}
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask), feed


def sparse_rows_of_unknown_rank():
    """A sparse batch, which is cut."""
    x, y = tf.sparse_placeholder(tf.float32, name="x"), tf.placeholder(tf.float32, [None, 1], "y")
    out = tf.sparse_tensor_dense_matmul(x, tf.get_variable("kernel", [8, 1]))
    return tf.reduce_mean(tf.square(out - y)), {x: (NONZERO, np.ones(len(NONZERO), "f"), ADJACENCY.shape), y: Y}


def graph_of_edges():
    """A layer of a graph network that has edges as pairs of nodes."""
    nodes, labels = placeholders()
    edges = tf.placeholder(tf.int32, [None, 2], "edges")
    sent = tf.gather(tf.layers.dense(nodes, 5, name="first"), edges[:, 0])
    received = tf.unsorted_segment_sum(sent, edges[:, 1], tf.shape(nodes)[0])
    out = tf.layers.dense(tf.tanh(received), 1, name="second")
    return tf.reduce_mean(tf.square(out - labels)), {nodes: X, labels: Y, edges: NONZERO}


def means_of_classes():
    """Statistics of classes, of which each half of the batch has some, that go back to the rows."""
    x, y = placeholders()
    labels = tf.placeholder(tf.int32, [None], "labels")
    hidden = tf.layers.dense(x, 4, name="first")
    means = tf.math.unsorted_segment_mean(hidden, labels, tf.reduce_max(labels) + 1)
    out = tf.layers.dense(hidden - tf.gather(means, labels), 1, name="second")
    return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y, labels: [1, 0, 1, 0, 2, 2, 3, 3]}


def rows_of_known_number():
    """A placeholder of known first dimension and one of an open one, both with the rows of one batch."""
    x, y = placeholders(known=8)
    return tf.reduce_mean(tf.square(tf.layers.dense(x, 1, name="dense") - y)), {x: X, y: Y}


def said_to_be_whole():
    """Temperatures, of whose mean nothing says that they are no rows."""
    x, y = placeholders()
    temperatures = tf.placeholder(tf.float32, [None], "temperatures")
    epl.keep_whole([{"of": temperatures}])
    out = tf.layers.dense(x, 1, name="dense") / tf.reduce_mean(temperatures)
    return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y, temperatures: np.arange(1.0, 9.0)}


def a_table_that_is_written():
    """Rows of a table that are written in the training step itself."""
    x, y = placeholders()
    ids, rows = tf.placeholder(tf.int32, [None], "ids"), tf.placeholder(tf.float32, [None, 3], "rows")
    bank = tf.get_variable("bank", [5, 3], initializer=tf.ones_initializer(), trainable=False)
    tf.add_to_collection("beside", tf.scatter_update(bank, ids, rows))
    out = tf.layers.dense(x * tf.reduce_mean(bank, 0), 1, name="dense")
    return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y, ids: [1, 2, 4], rows: X[:3]}


MODELS = {
    "keep probabilities": keep_probabilities,
    "unstacked": unstacked,
    "coefficients": coefficients,
    "table": table,
    "candidates": candidates,
    "dense graph": lambda: graph_of_nodes(False),
    "sparse graph": lambda: graph_of_nodes(True),
    "graph of edges": graph_of_edges,
    "graph of unknown ranks": graph_of_unknown_ranks,
    "sparse rows of unknown rank": sparse_rows_of_unknown_rank,
    "means of classes": means_of_classes,
    "known rows": rows_of_known_number,
    "said": said_to_be_whole,
    "written table": a_table_that_is_written,
}


def trained(model, steps=2):
    """Losses of steps, and variables after them."""
    tf.set_random_seed(1)
    loss, feed = model()
    train_op = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
    found = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(steps):
            found.append(sess.run([loss, train_op], feed)[0])
            sess.run(tf.get_collection("beside"), feed)
        return found + sess.run(tf.trainable_variables())


def check(init, name, annotated=None, devices=2, **config):
    """Compares what a model trains with plain TensorFlow; `annotated` is the model in its scopes."""
    init(1, annotate=False)
    expected = trained(MODELS[name])
    init(devices, annotate=annotated is None, **config)
    for value, wanted in zip(trained(annotated or MODELS[name]), expected):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_holds_no_rows_is_the_same_in_all_replicas(init, name):
    check(init, name)


@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
def test_weights_in_parts_do_not_hide_it(init, level):
    check(init, "table", zero__level=level)


@pytest.mark.parametrize(
    "name", sorted(set(MODELS) - {"sparse graph", "graph of unknown ranks", "sparse rows of unknown rank"})
)
def test_in_a_split_it_is_no_batch(init, name):
    def split():
        with epl.split(2):
            return MODELS[name]()

    check(init, name, split)


def test_a_sparse_graph_in_a_split_is_said_to_be_whole(init):
    def split():
        with epl.split(2):
            loss, feed = graph_of_nodes(True)
        epl.keep_whole(list(feed))
        return loss, feed

    check(init, "sparse graph", split)


@pytest.mark.grid
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", ["keep probabilities", "table", "sparse graph", "known rows"])
def test_in_a_pipeline_all_micro_batches_have_the_same(init, name, devices):
    def stages():
        with epl.replicate(1):
            loss, feed = MODELS[name]()
        with epl.replicate(1):
            return loss * 1.0, feed

    check(init, name, stages, devices, pipeline__num_micro_batch=2)


def refused(loss, feed, match):
    train_op = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        with pytest.raises(FeedError, match=match):
            sess.run(train_op, feed)


def test_rows_of_a_known_number_beside_others_that_are_cut(init):
    init()
    x, y = placeholders(known=8)
    loss = tf.reduce_mean(tf.concat([tf.layers.dense(x, 1), y], 1))
    match = r"x:0 was fed 8 row\(s\) that each of the 2 local replicas gets, and y:0 was fed 12 .*Feed 16 rows of both"
    refused(loss, {x: X, y: np.ones([12, 1])}, match)


def test_a_whole_value_beside_rows_that_it_meets(init):
    init()
    x, y = placeholders()
    epl.keep_whole(y)
    match = "y:0 was fed 8 row.* and x:0 was fed 8 that are cut"
    refused(tf.reduce_mean(tf.layers.dense(x, 1) - y), {x: X, y: Y}, match)


def test_rows_in_the_second_dimension(init):
    init()
    words = tf.placeholder(tf.float32, [None, None, 3], "words")
    labels = tf.placeholder(tf.float32, [None, 1], "labels")
    loss = tf.reduce_mean(tf.square(tf.layers.dense(words[-1], 1) - labels))
    feed = {words: np.ones([4, 8, 3]), labels: Y}
    match = "words:0 has the rows of labels:0 in dimension 1, .*Feed it with the rows first; or, if labels:0"
    refused(loss, feed, match)


def test_other_numbers_of_rows_where_the_graph_tells_nothing(init):
    init()
    x, y = placeholders()
    factors = tf.placeholder(tf.float32, [None], "factors")
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1) - y)) * tf.reduce_mean(factors)
    refused(loss, {x: X, y: Y, factors: np.ones(4)}, "factors:0 was fed 4 rows and x:0 was fed 8, .*epl.keep_whole")


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_groups_that_are_fed_by_number(init, is_sorted, count):
    init()
    x, y = placeholders()
    groups = tf.placeholder(tf.int32, [None], "groups")
    rows = tf.layers.dense(x, 1)
    out = tf.segment_sum(rows, groups) if is_sorted else tf.unsorted_segment_sum(rows, groups, tf.shape(y)[0])
    feed = {x: X, y: Y[:count], groups: np.arange(8) * count // 8}
    all_of_it = "" if is_sorted else f", x:0 was fed 8 rows, y:0 was fed {count} rows"
    match = f"groups:0 would be cut .*groups:0 was fed 8 rows{all_of_it}. .*epl.keep_whole for the numbers"
    refused(tf.reduce_mean(tf.square(out - y)), feed, match)


def test_groups_that_are_fed_by_number_can_all_be_whole(init):
    def model():
        x, y = placeholders()
        groups = tf.placeholder(tf.int32, [None], "groups")
        epl.keep_whole([x, y, groups])
        out = tf.unsorted_segment_sum(tf.layers.dense(x, 1, name="dense"), groups, tf.shape(y)[0])
        return tf.reduce_mean(tf.square(out - y)), {x: X, y: Y[:4], groups: [3, 3, 2, 1, 1, 1, 0, 0]}

    init(1, annotate=False)
    expected = trained(model)
    init()
    for value, wanted in zip(trained(model), expected):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


def test_nodes_of_several_graphs_are_not_cut_alone(init):
    init()
    loss, feed = graph_of_edges()
    graphs = tf.placeholder(tf.int32, [None], "graphs")
    wanted = tf.placeholder(tf.float32, [None, 1], "wanted")
    nodes = tf.get_default_graph().get_tensor_by_name("second/BiasAdd:0")
    pooled = tf.unsorted_segment_sum(nodes, graphs, tf.shape(wanted)[0])
    feed.update({graphs: np.arange(8) // 4, wanted: Y[:2]})
    refused(loss + tf.reduce_mean(tf.square(pooled - wanted)), feed, "wanted:0 would be cut .*graphs:0 was fed 8 rows")


def test_a_whole_value_of_known_first_dimension_is_fed_once_without_a_warning(init, caplog):
    init()
    x, y = placeholders()
    rows = tf.placeholder(tf.float32, [2, 3], "rows")
    bank = tf.get_variable("bank", [2, 3], initializer=tf.ones_initializer(), trainable=False)
    epl.keep_whole(rows)
    out = tf.layers.dense(x * tf.reduce_mean(rows, 0), 1)
    written = tf.placeholder(tf.float32, [2, 3], "written")
    train_op = tf.train.GradientDescentOptimizer(0.05).minimize(tf.reduce_mean(tf.square(out - y)))
    both = tf.group(train_op, bank.assign(written))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(both, {x: X, y: Y, rows: X[:2], written: X[:2]})
        np.testing.assert_array_equal(sess.run("EPL_REPLICA_1/bank:0"), X[:2])
        for placeholder in (rows, written):
            with pytest.raises(ValueError, match="Cannot feed value of shape"):
                sess.run(both, {x: X, y: Y, rows: X[:2], written: X[:2], placeholder: X[:4]})
    assert not [one for one in caplog.records if "gets all" in one.getMessage()]


def test_what_has_rows_in_two_dimensions_is_told_once(init, caplog):
    init()
    trained(MODELS["dense graph"])
    told = [one.getMessage() for one in caplog.records if "two dimensions" in one.getMessage()]
    assert len(told) == 3 and "labels:0 has the rows of adjacency:0" in told[2]


def test_another_value_than_a_tensor_is_refused(init):
    init()
    with pytest.raises(ValueError, match="epl.keep_whole, got 'x:0'"):
        epl.keep_whole(["x:0"])


def test_the_collection_has_what_is_said(init):
    init()
    x, _ = placeholders()
    rows = tf.sparse_placeholder(tf.float32, [None, 3], "rows")
    epl.keep_whole([x])
    epl.add_to_collection([x, x], epl.GraphKeys.WHOLE_INPUTS)
    epl.keep_whole({"rows": rows})
    kept = epl.get_collection(epl.GraphKeys.WHOLE_INPUTS)
    assert kept == [x, rows.indices, rows.values, rows.dense_shape] and epl.GraphKeys.WHOLE_INPUTS == "whole_inputs"
