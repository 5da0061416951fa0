"""Which dimensions of placeholders are one, and which cannot be the rows of a batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.sharding.row_dimensions import find_dimensions, without_rows

F = tf.float32


@pytest.fixture(autouse=True)
def graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def found(loss, sparse=(), ranks=None):
    return find_dimensions(loss.graph, GraphView(loss.graph), [loss.name], sparse, ranks=ranks)


def loss_of(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def names_of_rows(dimensions):
    """Names of the placeholders whose first dimension is that of x."""
    rows = dimensions.sizes["x:0"][0]
    return {name for name, of in dimensions.sizes.items() if of[0] == rows}


def test_rows_meet_in_the_loss():
    x, y = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 1], "y")
    dimensions = found(tf.reduce_mean(tf.square(tf.layers.dense(x, 1) - y)))
    assert names_of_rows(dimensions) == {"x:0", "y:0"} and not without_rows(dimensions) and not dimensions.known


def test_one_placeholder_alone_holds_rows():
    x = tf.placeholder(F, [None, 3], "x")
    assert not found(tf.reduce_mean(tf.square(tf.layers.dense(x, 3) - x))).no_rows


def test_what_is_picked_from_holds_no_rows():
    x, keep = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None], "keep")
    assert without_rows(found(tf.reduce_mean(tf.layers.dense(x, 1) * keep[0] + keep[1]))) == ["keep:0"]


def test_a_vector_that_is_picked_from_and_summed_holds_no_rows():
    x, keep = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None], "keep")
    loss = tf.reduce_mean(tf.layers.dense(x, 1) * keep[0]) / tf.reduce_sum(keep)
    assert without_rows(found(loss)) == ["keep:0"]


def cut_to_the_longest(x, lengths):
    _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(4), x[:, : lengths[0]], sequence_length=lengths, dtype=F)
    return state


def with_the_masked_rows(x, lengths):
    return tf.gather(x[:, 0] * tf.cast(lengths[0], F), tf.where(lengths > 0)[:, 0])


def selected(x, lengths):
    return tf.reduce_sum(tf.where(lengths > 1, lengths, lengths + lengths[0])) * tf.cast(tf.shape(x)[0], tf.int32)


def computed_in_a_loop(x, lengths):
    size = tf.shape(lengths)[0]
    total = tf.while_loop(lambda i, _: i < size, lambda i, t: (i + 1, t + lengths[i]), [0, lengths[0]])[1]
    return x[:, 0] * tf.cast(total / tf.reduce_max(lengths), F)


@pytest.mark.parametrize("model", [cut_to_the_longest, with_the_masked_rows, selected, computed_in_a_loop])
def test_a_first_row_does_not_make_single_values_of_rows_that_are_taken_one_by_one(model):
    x, y = tf.placeholder(F, [None, None, 3], "x"), tf.placeholder(F, [None, 1], "y")
    lengths = tf.placeholder(tf.int32, [None], "lengths")
    out = tf.layers.dense(x[:, 0], 1) - y
    loss = tf.reduce_mean(tf.square(out)) + tf.reduce_mean(tf.cast(model(x, lengths), F))
    assert not without_rows(found(loss))


def test_a_row_may_be_taken_of_a_batch():
    x, y = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None], "y")
    rows = tf.squeeze(tf.layers.dense(x, 1), 1)
    assert not without_rows(found(tf.reduce_mean(tf.square(rows - y)) + y[0] + tf.reduce_sum(x[0])))
    assert not without_rows(found(tf.reduce_mean(tf.square(y)) + y[0]))
    assert not without_rows(found(tf.reduce_mean(rows) + tf.reduce_sum(x[0]) + tf.reduce_mean(y)))


def test_what_is_unstacked_has_a_size_of_the_model():
    x, keep = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None], "keep")
    first, second = tf.unstack(keep, num=2)
    dimensions = found(tf.reduce_mean(tf.layers.dense(x, 1) * first + second))
    assert dimensions.sizes["keep:0"] == (2,) and without_rows(dimensions) == ["keep:0"]


def test_what_each_row_looks_at_holds_no_rows():
    x, keys = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "keys")
    read = tf.matmul(tf.nn.softmax(tf.matmul(x, keys, transpose_b=True)), keys)
    assert without_rows(found(tf.reduce_mean(tf.square(read - x)))) == ["keys:0"]


def test_two_that_look_at_each_other_both_may_hold_rows():
    x, z = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "z")
    scores = tf.matmul(x, z, transpose_b=True)
    both = tf.reduce_mean(tf.reduce_logsumexp(scores, 0)) + tf.reduce_mean(tf.reduce_logsumexp(scores, 1))
    assert not found(both).no_rows


def one_hot_loss(labels, logits):
    return tf.losses.softmax_cross_entropy(tf.one_hot(labels, tf.shape(logits)[1]), logits)


@pytest.mark.parametrize("loss", [loss_of, tf.losses.sparse_softmax_cross_entropy, one_hot_loss])
def test_the_classes_of_a_cross_entropy_hold_no_rows(loss):
    x, classes = tf.placeholder(F, [None, 3], "x"), tf.placeholder(tf.int32, [None], "classes")
    logits = tf.matmul(x, tf.gather(tf.get_variable("table", [9, 3]), classes), transpose_b=True)
    assert without_rows(found(loss(tf.placeholder(tf.int32, [None], "labels"), logits))) == ["classes:0"]
    first = tf.zeros([tf.shape(x)[0]], tf.int32)
    assert without_rows(found(loss(first, tf.concat([tf.layers.dense(x, 1), logits], 1)))) == ["classes:0"]


@pytest.mark.parametrize("with_more", [False, True])
def test_classes_that_are_numbers_of_rows_may_be_rows(with_more):
    x, z = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "z")
    logits = tf.matmul(x, z, transpose_b=True)
    if with_more:
        logits = tf.concat([logits, tf.layers.dense(x, 2)], 1) / 0.1
    assert not found(loss_of(tf.range(tf.shape(x)[0]), logits)).no_rows


def cumulated(x):
    return tf.cumsum(tf.ones_like(x[:, 0], tf.int32)) - 1


def numbered_by_numpy(x):
    numbers = tf.py_func(np.arange, [tf.shape(x)[0]], tf.int64)
    numbers.set_shape([None])
    return numbers


def where_there_are_ones(x):
    return tf.where(tf.ones_like(x[:, 0]) > 0)[:, 0]


def counted_to_what_is_fed(x):
    return tf.range(tf.placeholder(tf.int32, [], "count"))


def rows_of_a_constant(x):
    return tf.constant(np.arange(99))[: tf.shape(x)[0]]


def where_a_mask_is_set(x):
    mask = tf.placeholder(tf.bool, [None], "mask")
    return tf.where(mask, tf.range(tf.shape(x)[0]), tf.zeros([tf.shape(x)[0]], tf.int32))


@pytest.mark.parametrize(
    "labels",
    [
        cumulated,
        numbered_by_numpy,
        where_there_are_ones,
        counted_to_what_is_fed,
        rows_of_a_constant,
        where_a_mask_is_set,
    ],
)
def test_labels_that_the_model_counts_itself_do_not_make_a_table_of_the_classes(labels):
    x, z = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "z")
    assert not found(loss_of(labels(x), tf.matmul(x, z, transpose_b=True))).no_rows


def looked_up(x):
    return tf.gather(tf.constant([3, 1, 2, 0]), tf.placeholder(tf.int32, [None], "labels"))


def computed_by_numpy(x):
    labels = tf.py_func(np.argmax, [tf.placeholder(F, [None, 5], "scores"), 1], tf.int64)
    labels.set_shape([None])
    return labels


def less_a_fed_number(x):
    return tf.placeholder(tf.int32, [None], "labels") - tf.placeholder(tf.int32, [], "first")


def zeros_like(x):
    return tf.cast(tf.zeros_like(x[:, 0]), tf.int32)


def iterated(x):
    return tf.data.make_initializable_iterator(tf.data.Dataset.range(9).batch(4)).get_next()


@pytest.mark.parametrize("labels", [looked_up, computed_by_numpy, less_a_fed_number, zeros_like, iterated])
def test_labels_of_data_and_constant_ones_make_a_table_of_the_classes(labels):
    x, z = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "z")
    assert "z:0" in without_rows(found(loss_of(labels(x), tf.matmul(x, z, transpose_b=True))))


def positive_first(x, z):
    return tf.concat([tf.ones([tf.shape(x)[0], 1]), tf.zeros([tf.shape(x)[0], tf.shape(z)[0]])], 1)


def one_hot_of_zeros(x, z):
    return tf.one_hot(tf.zeros([tf.shape(x)[0]], tf.int32), tf.shape(z)[0] + 1) * 0.9 + 0.1


@pytest.mark.parametrize("labels", [positive_first, one_hot_of_zeros])
def test_constant_distributions_make_a_table_of_the_classes(labels):
    x, z = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "z")
    logits = tf.concat([tf.layers.dense(x, 1), tf.matmul(x, z, transpose_b=True)], 1)
    losses = tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels(x, z), logits=logits)
    assert without_rows(found(tf.reduce_mean(losses))) == ["z:0"]


def gather_nd(entries, ids):
    return tf.gather_nd(entries, tf.stack([tf.range(tf.shape(entries)[0]), ids], 1))


def batch_gather(entries, ids):
    return tf.batch_gather(entries, ids[:, None])


def gather_in_batches(entries, ids):
    return tf.gather(entries, ids[:, None], batch_dims=1)


def gather_flat(entries, ids):
    rows, columns = tf.unstack(tf.shape(entries))
    return tf.gather(tf.reshape(entries, [-1]), tf.range(rows) * columns + ids)


@pytest.mark.parametrize("take", [gather_nd, batch_gather, gather_in_batches, gather_flat])
def test_a_gather_may_take_the_diagonal(take):
    x, z = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "z")
    scores = tf.matmul(x, z, transpose_b=True)
    norm = tf.reduce_mean(tf.reduce_logsumexp(scores, 1))
    assert not found(norm - tf.reduce_mean(take(scores, tf.range(tf.shape(x)[0])))).no_rows
    labels = tf.placeholder(tf.int32, [None], "labels")
    assert without_rows(found(norm - tf.reduce_mean(take(scores, labels)))) == ["z:0"]


def test_a_gather_of_rows_takes_no_diagonal():
    x, keys = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "keys")
    weights = tf.gather(tf.nn.softmax(tf.matmul(x, keys, transpose_b=True)), tf.range(tf.shape(x)[0]))
    assert without_rows(found(tf.reduce_mean(tf.square(tf.matmul(weights, keys) - x)))) == ["keys:0"]


def test_labels_that_count_over_the_classes_of_the_model_do_not_hide_a_table():
    x, keys = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "keys")
    read = tf.matmul(tf.nn.softmax(tf.matmul(x, keys, transpose_b=True)), keys)
    labels = tf.random.uniform([tf.shape(x)[0]], 0, 5, tf.int32)
    assert without_rows(found(loss_of(labels, tf.layers.dense(read, 5)))) == ["keys:0"]


def test_what_the_diagonal_is_taken_of_may_hold_rows():
    x, z = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 3], "z")
    scores = tf.matmul(x, z, transpose_b=True)
    assert not found(tf.reduce_mean(tf.reduce_logsumexp(scores, 1) - tf.linalg.diag_part(scores))).no_rows


def test_a_size_of_the_model():
    x, factors = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None], "factors")
    dimensions = found(tf.reduce_mean(tf.layers.dense(x, 5) * factors))
    assert dimensions.sizes["factors:0"] == (5,) and dimensions.known == {5: 5}
    assert without_rows(dimensions) == ["factors:0"]


def test_a_size_of_the_model_may_be_that_of_the_batch():
    x, y = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 1], "y")
    dimensions = found(tf.reduce_mean(tf.square(tf.layers.dense(x, 1) - y) * tf.ones([8, 1])))
    assert dimensions.known == {8: 8} and names_of_rows(dimensions) == {"x:0", "y:0"}
    assert not without_rows(dimensions)


def test_a_known_first_dimension_that_others_have():
    x, y = tf.placeholder(F, [8, 3], "x"), tf.placeholder(F, [None, 1], "y")
    dimensions = found(tf.reduce_mean(tf.square(tf.layers.dense(x, 1) - y)))
    assert names_of_rows(dimensions) == {"x:0", "y:0"} and list(dimensions.known.values()) == [8]
    assert not without_rows(dimensions)


def test_a_table_that_is_cut_to_the_rows_says_nothing_of_them():
    x, table = tf.placeholder(F, [None, 3], "x"), tf.get_variable("table", [16, 3])
    dimensions = found(tf.reduce_mean(tf.square(x + table[: tf.shape(x)[0]])))
    assert not dimensions.known and not without_rows(dimensions)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_graph_has_its_nodes_in_two_dimensions(is_sparse):
    x, labels = tf.placeholder(F, [None, 6], "x"), tf.placeholder(tf.int32, [None], "labels")
    if is_sparse:
        adjacency, multiply = tf.sparse_placeholder(F, [None, None], "adjacency"), tf.sparse_tensor_dense_matmul
    else:
        adjacency, multiply = tf.placeholder(F, [None, None], "adjacency"), tf.matmul
    logits = multiply(adjacency, tf.layers.dense(multiply(adjacency, tf.layers.dense(x, 5)), 5))
    dimensions = found(loss_of(labels, logits), [adjacency] if is_sparse else ())
    name = adjacency.indices.name if is_sparse else adjacency.name
    assert len(set(dimensions.sizes[name])) == 1 and names_of_rows(dimensions) == {name, "x:0", "labels:0"}
    assert set(without_rows(dimensions)) == {name, "x:0", "labels:0"}


def test_the_rank_of_what_is_fed_tells_where_the_graph_does_not():
    x, y = tf.sparse_placeholder(F, name="x"), tf.placeholder(F, name="y")
    loss = tf.reduce_mean(tf.square(tf.sparse_tensor_dense_matmul(x, tf.get_variable("kernel", [8, 1])) - y))
    assert found(loss, [x]).sizes == {x.indices.name: (), y.name: ()}
    sizes = found(loss, [x], {x.indices.name: 2, y.name: 2}).sizes
    assert sizes[x.indices.name][0] == sizes[y.name][0] > 1 and sizes[x.indices.name][1] == 8


def test_edges_name_the_nodes_of_one_graph():
    x, y = tf.placeholder(F, [None, 6], "x"), tf.placeholder(F, [None, 1], "y")
    edges = tf.placeholder(tf.int32, [None, 2], "edges")
    sent = tf.gather(tf.layers.dense(x, 5), edges[:, 0])
    nodes = tf.unsorted_segment_sum(sent, edges[:, 1], tf.shape(x)[0])
    dimensions = found(tf.reduce_mean(tf.square(tf.layers.dense(nodes, 1) - y)))
    assert dimensions.uncut == {of[0] for of in dimensions.sizes.values()} and not dimensions.no_rows
    assert set(without_rows(dimensions)) == {"x:0", "y:0", "edges:0"}


def test_rows_that_are_mixed_by_fed_numbers_are_one_whole():
    x, order = tf.placeholder(F, [None, 3], "x"), tf.placeholder(tf.int32, [None], "order")
    assert found(tf.reduce_mean(tf.square(tf.layers.dense(x + tf.gather(x, order), 1)))).uncut
    shuffled = tf.random_shuffle(tf.range(tf.shape(x)[0]))
    assert not found(tf.reduce_mean(tf.square(tf.layers.dense(x + tf.gather(x, shuffled), 1)))).uncut


def test_actions_that_pick_in_each_row_leave_the_rows_alone():
    x, actions = tf.placeholder(F, [None, 3], "x"), tf.placeholder(tf.int32, [None], "actions")
    picked = tf.gather(tf.layers.dense(x, 5), actions, batch_dims=1, axis=1)
    dimensions = found(tf.reduce_mean(tf.square(picked)))
    assert not dimensions.uncut and not dimensions.no_rows


def segment_sum(rows, groups, y):
    return tf.segment_sum(rows, groups)


def unsorted_segment_sum(rows, groups, y):
    return tf.unsorted_segment_sum(rows, groups, tf.shape(y)[0])


def scatter_nd(rows, groups, y):
    return tf.scatter_nd(tf.expand_dims(groups, 1), rows, [tf.shape(y)[0], 1])


@pytest.mark.parametrize("how", [segment_sum, unsorted_segment_sum, scatter_nd])
def test_rows_that_are_grouped_by_fed_numbers(how):
    x, y = tf.placeholder(F, [None, 3], "x"), tf.placeholder(F, [None, 1], "y")
    groups = tf.placeholder(tf.int32, [None], "groups")
    dimensions = found(tf.reduce_mean(tf.square(how(tf.layers.dense(x, 1), groups, y) - y)))
    number_of_groups = None if how is segment_sum else dimensions.sizes["y:0"][0]
    assert dimensions.grouped == {(dimensions.sizes["groups:0"][0], number_of_groups)}
    assert not dimensions.no_rows and not dimensions.uncut
    own = found(tf.reduce_mean(tf.square(how(tf.layers.dense(x, 1), tf.range(tf.shape(x)[0]) // 2, y) - y)))
    assert not own.grouped and not own.no_rows


def most_plus_one(labels):
    return tf.reduce_max(labels) + 1


def fed_number(labels):
    return tf.placeholder(tf.int32, [], "count")


def means_of_classes(count):
    """Labels of rows, something that is computed of each row, and its mean for each label."""
    x, labels = tf.placeholder(F, [None, 3], "x"), tf.placeholder(tf.int32, [None], "labels")
    hidden = tf.layers.dense(x, 4)
    return labels, hidden, tf.math.unsorted_segment_mean(hidden, labels, count(labels))


@pytest.mark.parametrize("count", [most_plus_one, fed_number])
def test_groups_that_go_back_to_their_rows_leave_these_alone(count):
    labels, hidden, means = means_of_classes(count)
    y = tf.placeholder(F, [None, 1], "y")
    own = tf.layers.dense(hidden - tf.gather(tf.nn.l2_normalize(means, 1), labels), 1)
    summed = tf.reduce_mean(tf.square(means))
    dimensions = found(tf.reduce_mean(tf.square(own - y)) + summed)
    assert not dimensions.grouped and not without_rows(dimensions)


def beside_other_rows(means):
    return tf.nn.relu(means) - tf.placeholder(F, [None, 4], "wanted")


def picked_by_other_rows(means):
    return tf.gather(means, tf.placeholder(tf.int32, [None], "others"))


def shaped_as_other_rows(means):
    return tf.reshape(means, tf.shape(tf.placeholder(F, [None, 4], "wanted")))


@pytest.mark.parametrize("then", [beside_other_rows, picked_by_other_rows, shaped_as_other_rows])
def test_groups_that_meet_other_rows_count_over_all(then):
    labels, _, means = means_of_classes(most_plus_one)
    dimensions = found(tf.reduce_mean(tf.square(then(means))))
    assert dimensions.grouped == {(dimensions.sizes["labels:0"][0], None)}


def test_sums_for_each_class_of_the_model_leave_the_rows_alone():
    x, labels = tf.placeholder(F, [None, 3], "x"), tf.placeholder(tf.int32, [None], "labels")
    dimensions = found(tf.reduce_mean(tf.square(tf.unsorted_segment_sum(tf.layers.dense(x, 1), labels, 10))))
    assert not dimensions.grouped and not dimensions.no_rows


def test_a_sparse_batch_of_an_embedding_is_not_grouped():
    ids, y = tf.sparse_placeholder(tf.int64, [None, None], "ids"), tf.placeholder(F, [None, 1], "y")
    looked_up = tf.nn.embedding_lookup_sparse(tf.get_variable("table", [9, 3]), ids, None, combiner="sum")
    weights = tf.nn.embedding_lookup_sparse(tf.get_variable("other", [9, 3]), ids, ids, combiner="sum")
    loss = tf.reduce_mean(tf.square(tf.layers.dense(looked_up + weights, 1) - y))
    assert not found(loss, [ids]).grouped


@pytest.mark.parametrize("multiply", [tf.sparse_tensor_dense_matmul, tf.matmul])
def test_rows_of_nodes_that_all_look_at(multiply):
    is_sparse = multiply is tf.sparse_tensor_dense_matmul
    x, labels = tf.placeholder(F, [None, 6], "x"), tf.placeholder(tf.int32, [None], "labels")
    adjacency = (tf.sparse_placeholder if is_sparse else tf.placeholder)(F, [None, None], "adjacency")
    dimensions = found(loss_of(labels, multiply(adjacency, tf.layers.dense(x, 5))), [adjacency] if is_sparse else ())
    assert without_rows(dimensions) == ["x:0"]


def test_flattened_rows_are_several_for_each_row():
    x, flat = tf.placeholder(tf.int32, [None, None], "x"), tf.placeholder(tf.int32, [None], "flat")
    words = tf.reshape(tf.nn.embedding_lookup(tf.get_variable("table", [50, 8]), x), [-1, 8])
    dimensions = found(loss_of(flat, tf.layers.dense(words, 50)))
    assert dimensions.sizes["flat:0"][0] == dimensions.sizes["x:0"][0] * dimensions.sizes["x:0"][1]
    assert not dimensions.no_rows


def test_rows_in_the_second_dimension():
    x, y = tf.placeholder(F, [None, None, 4], "x"), tf.placeholder(tf.int32, [None], "y")
    dimensions = found(loss_of(y, tf.layers.dense(x[-1], 5)))
    assert dimensions.sizes["x:0"][1] == dimensions.sizes["y:0"][0] and without_rows(dimensions) == ["x:0"]


def test_a_loop_hides_what_is_in_it():
    x, y = tf.placeholder(F, [None, 7, 4], "x"), tf.placeholder(tf.int32, [None], "y")
    _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(5), x, dtype=F)
    assert not without_rows(found(loss_of(y, tf.layers.dense(state.h, 5))))


def test_a_batch_that_the_model_has_built_in_tells_nothing():
    x = tf.placeholder(F, [None, 3], "x")
    assert found(tf.reduce_mean(tf.reshape(tf.layers.dense(x, 2), [4, 2]))) is None
