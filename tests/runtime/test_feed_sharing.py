"""How fed values are shared out among the local replicas."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.runtime.feeds import FeedSharing
from epl.utils.errors import FeedError
from tests.parallel.in_process import Linear, rewritten


def sharing(shape, dtype=tf.float32):
    """A placeholder of `shape` that the training step needs, and the FeedSharing of its graph."""
    model = Linear()
    p = tf.placeholder(dtype, shape, "p")
    model.loss += 0 * tf.reduce_sum(tf.cast(p, tf.float32))
    model.minimize()
    return p, FeedSharing(rewritten())


def parts(shared, tensor):
    """The value of each replica, in order."""
    found = {t.name: value for t, value in shared.items()}
    names = [tensor.name] + [f"EPL_REPLICA_{i}/{tensor.name}" for i in range(1, 9)]
    return [np.asarray(found[name]).tolist() for name in names if name in found]


def weights(shared, feeds):
    return [float(shared[w]) for w in feeds._rewrite.weights if w in shared]


@pytest.mark.parametrize("devices, expected", [(2, [[0, 1, 2], [3, 4]]), (3, [[0, 1], [2, 3], [4]])])
def test_unknown_first_dimension_is_cut_and_rows_weigh(init, devices, expected):
    init(devices)
    p, feeds = sharing([None])
    shared = feeds.share({p: np.arange(5, dtype="f")})
    assert parts(shared, p) == expected
    assert weights(shared, feeds) == [len(part) for part in expected]


def test_unknown_rank_is_cut(init):
    init()
    p, feeds = sharing(None)
    assert parts(feeds.share({p: np.arange(4)}), p) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("shape", [[], None])
def test_a_scalar_goes_to_all(init, shape):
    init()
    p, feeds = sharing(shape)
    shared = feeds.share({p: np.float32(3)})
    assert parts(shared, p) == [3, 3] and weights(shared, feeds) == []


def test_known_first_dimension_goes_to_all_with_one_warning(init, caplog):
    init()
    p, feeds = sharing([2])
    for _ in range(2):
        assert parts(feeds.share({p: np.array([1, 2])}), p) == [[1, 2], [1, 2]]
    (warning,) = [record.getMessage() for record in caplog.records if "p:0" in record.getMessage()]
    assert "was fed 2 rows" in warning and "Feed 4 rows" in warning


def test_known_first_dimension_times_the_replicas_is_cut(init):
    init()
    p, feeds = sharing([2])
    fed = {p: np.array([1, 2, 3, 4])}
    cut = feeds.cut_ahead(fed)
    assert sorted((t.name, v.tolist()) for t, v in cut.items()) == [("EPL_REPLICA_1/p:0", [3, 4]), ("p:0", [1, 2])]
    assert fed[p].tolist() == [1, 2, 3, 4]
    shared = feeds.share(cut)
    assert parts(shared, p) == [[1, 2], [3, 4]] and weights(shared, feeds) == [2, 2]


@pytest.mark.parametrize(
    "shape, value",
    [
        ([2], np.zeros(2)),
        ([None], np.zeros(4)),
        (None, np.zeros(4)),
        ([], np.zeros([])),
        ([2], np.zeros([4, 1])),
    ],
)
def test_what_is_no_whole_batch(init, shape, value):
    init()
    p, feeds = sharing(shape)
    ((key, cut),) = feeds.cut_ahead({p: value}).items()
    assert key is p and cut is value


@pytest.mark.parametrize("rows", [0, 1, 3, 6])
def test_rows_that_fit_neither_one_nor_all_replicas(init, rows):
    init()
    p, feeds = sharing([2])
    with pytest.raises(FeedError, match=f"p:0 .*was fed {rows} rows.*takes 4 rows, 2 for each, or 2"):
        feeds.cut_ahead({p: np.zeros(rows)})


def test_whole_batches_are_fed_through_a_session(init):
    init()
    p, _ = sharing([2, 1])
    total = tf.get_variable("total", [2, 1], initializer=tf.zeros_initializer(), trainable=False)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        value = np.arange(4, dtype="f").reshape(4, 1)
        feed_dict = {"p:0": value}
        assert sess.run("p:0", feed_dict).tolist() == [[0], [1]]
        assert list(feed_dict) == ["p:0"] and total.name == "total:0"


def test_fewer_rows_than_replicas(init):
    init(3)
    p, feeds = sharing([None])
    with pytest.raises(FeedError, match=r"p:0 was fed 2 row\(s\).*3 local replicas: feed at least 3"):
        feeds.share({p: np.arange(2)})


@pytest.mark.parametrize("rows", [(5, 6), (4, 8)])
def test_other_numbers_of_rows_of_two_placeholders(init, rows):
    init()
    model = Linear()
    model.minimize()
    feeds = FeedSharing(rewritten())
    expected = "x:0 was fed {} rows and y:0 was fed {}, .*2 local replicas.*epl.keep_whole".format(*rows)
    with pytest.raises(FeedError, match=expected):
        feeds.share({model.x: np.zeros([rows[0], 3]), model.y: np.zeros([rows[1], 1])})


def test_proportional_shares_of_rows_and_of_what_is_flattened(init):
    init()
    words = tf.placeholder(tf.int32, [None, None], "words")
    labels = tf.placeholder(tf.float32, [None], "labels")
    table = tf.get_variable("table", [5, 1], initializer=tf.ones_initializer())
    found = tf.reshape(tf.gather(table, words), [-1])
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(found - labels)))
    feeds = FeedSharing(rewritten())
    shared = feeds.share({words: np.zeros([4, 3], "i"), labels: np.arange(12)})
    assert parts(shared, labels) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert len({w.name for w in feeds._rewrite.weights} & {t.name for t in shared}) == 2
    with pytest.raises(FeedError, match="unequal shares of the two. Feed multiples of 2 rows"):
        feeds.share({words: np.zeros([5, 3], "i"), labels: np.arange(15)})


def test_what_the_training_step_does_not_need_is_fed_as_it_is(init):
    init()
    other = tf.placeholder(tf.float32, [None], "other")
    _, feeds = sharing([None])
    value = np.arange(3)
    assert feeds.share({other: value}) == {other: value}


@pytest.mark.parametrize("shape", [[2], [None]])
def test_what_a_run_does_not_need_is_fed_for_all_replicas(init, shape):
    init()
    model = Linear()
    other = tf.placeholder(tf.float32, shape, "other")
    double = 2 * other
    model.minimize()
    rewritten()
    triple = 3 * other
    value = np.arange(4, dtype="f")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, {**model.feed(), other: value})
        for needs_it in (double, triple):
            if shape == [None]:
                assert len(sess.run(needs_it, {other: value})) == 4
            else:
                with pytest.raises(FeedError, match="other:0 .* of 2 and was fed 4 rows.*replica 0 alone.*Feed it 2"):
                    sess.run([needs_it, model.train_op], {**model.feed(), other: value})


def test_rows_of_a_training_step_in_a_run_that_does_not_need_them(init):
    init()
    p, _ = sharing([2])
    with tf.Session() as sess:
        assert sess.run(tf.constant(1), {p: np.arange(4)}) == 1


def test_string_values_are_cut(init):
    init()
    model = Linear()
    names = tf.placeholder(tf.string, [None], "names")
    model.loss += 0 * tf.reduce_sum(tf.cast(tf.strings.length(names), tf.float32))
    model.minimize()
    shared = FeedSharing(rewritten()).share({names: np.array(["a", "b", "c"], object)})
    assert parts(shared, names) == [["a", "b"], ["c"]]


def sparse_model():
    """A sparse placeholder, a training op whose gradient is the mean of its rows, and the weight, of ones."""
    rows = tf.sparse_placeholder(tf.float32, [None, 3], "rows")
    w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.sparse_tensor_dense_matmul(rows, w))
    return rows, tf.train.GradientDescentOptimizer(1.0).minimize(loss), w


# 5 entries in 4 rows, the first of which has two and the last none.
SPARSE = tf.SparseTensorValue(np.array([[0, 0], [0, 1], [1, 1], [2, 2], [2, 0]]), np.arange(1, 6).astype("f"), [4, 3])


def test_a_fed_sparse_tensor_is_cut_by_its_rows(init):
    init()
    rows, train_op, w = sparse_model()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {rows: SPARSE})
        np.testing.assert_allclose(sess.run(w).ravel(), 1 - np.array([1 + 5, 2 + 3, 4]) / 4.0)
    runner = Graph.get().runner
    shared = runner.feeds.share(runner.feeds.cut_ahead({rows: SPARSE}))
    shared = {tensor.name: np.asarray(value).tolist() for tensor, value in shared.items()}
    copy = "EPL_REPLICA_1/"
    assert (shared[rows.indices.name], shared[copy + rows.indices.name]) == ([[0, 0], [0, 1], [1, 1]], [[0, 2], [0, 0]])
    assert (shared[rows.values.name], shared[copy + rows.values.name]) == ([1, 2, 3], [4, 5])


def test_sparse_rows_that_cannot_be_cut_evenly(init):
    init(3)
    rows, train_op, _ = sparse_model()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        with pytest.raises(FeedError, match="sparse tensor of 4 rows.*3 local replicas: feed a multiple of 3 rows"):
            sess.run(train_op, {rows: SPARSE})


def test_proportions_cut_rows(init):
    init(3, auto__balance="5:3:1")
    p, feeds = sharing([None])
    shared = feeds.share({p: np.arange(10, dtype="f")})
    assert [len(part) for part in parts(shared, p)] == weights(shared, feeds) == [6, 3, 1]
    assert sum(parts(shared, p), []) == list(range(10))


def test_proportions_of_which_one_would_have_no_row(init):
    init(3, auto__balance="5:3:1")
    p, feeds = sharing([None])
    with pytest.raises(FeedError, match=r"p:0 was fed 3 row\(s\), .* 5:3:1 .*replica\(s\) 2 .* Feed at least 9 rows"):
        feeds.share({p: np.arange(3)})


def test_proportions_of_what_is_flattened_are_those_of_the_rows(init):
    init(2, auto__balance="2:1")
    words = tf.placeholder(tf.int32, [None, None], "words")
    labels = tf.placeholder(tf.float32, [None], "labels")
    table = tf.get_variable("table", [5, 1], initializer=tf.ones_initializer())
    found = tf.reshape(tf.gather(table, words), [-1])
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(found - labels)))
    shared = FeedSharing(rewritten()).share({words: np.zeros([5, 3], "i"), labels: np.arange(15)})
    assert [len(part) for part in parts(shared, words)] == [3, 2]
    assert [len(part) for part in parts(shared, labels)] == [9, 6]


def test_proportions_of_a_sparse_tensor(init):
    init(2, auto__balance="3:1")
    rows, train_op, w = sparse_model()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {rows: SPARSE})
        np.testing.assert_allclose(sess.run(w).ravel(), 1 - np.array([1 + 5, 2 + 3, 4]) / 4.0)
    runner = Graph.get().runner
    shared = runner.feeds.share(runner.feeds.cut_ahead({rows: SPARSE}))
    shared = {tensor.name: np.asarray(value).tolist() for tensor, value in shared.items()}
    assert shared["EPL_REPLICA_1/" + rows.dense_shape.name] == [1, 3]
    assert shared[rows.values.name] == [1, 2, 3, 4, 5]


def test_a_known_first_dimension_has_no_proportions(init):
    init(2, auto__balance="3:1")
    p, feeds = sharing([2])
    assert parts(feeds.share({p: np.array([1, 2])}), p) == [[1, 2], [1, 2]]
    with pytest.raises(FeedError, match=r"p:0 has a first dimension of 2 and was fed 4 rows.*3:1. Leave the first"):
        feeds.cut_ahead({p: np.arange(4)})
