"""Uneven rows in one process: what is read and cut, what the plan says, which batch sizes change, what is refused."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.plan import plan as plans
from epl.parallel.plan.explain import summary
from epl.parallel.plan.loaded import use_plan
from epl.parallel.strategy import record
from epl.planner.search.speed_balance import with_balance
from epl.utils.errors import PlanError
from tests.parallel.in_process import Linear
from tests.tensorflows import WITH_ESTIMATOR

ROWS = np.arange(180, dtype=np.float32).reshape(60, 3)


def rows_dataset():
    return tf.data.Dataset.from_tensor_slices(ROWS)


def train(x):
    """Means of the rows of `x`, which replica 0 shows."""
    w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
    return tf.train.GradientDescentOptimizer(1e-5).minimize(tf.reduce_mean(tf.matmul(x, w)))


def sizes_of_step(x, initializer=()):
    """Rows of the replicas in a step, and all rows of it."""
    train_op = train(x)
    count = tf.reshape(tf.shape(x)[0], [1])
    epl.add_to_collection(x, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    epl.add_to_collection(count, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), initializer])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        counts, values, _ = session.run([count, x, train_op])
        coordinator.request_stop()
    coordinator.join(threads)
    return counts.tolist(), values


DATASETS = {
    "batch": lambda: rows_dataset().batch(6),
    "then": lambda: rows_dataset().batch(6).map(lambda x: x * 1.0).repeat().prefetch(1),
    "padded": lambda: rows_dataset().padded_batch(6, [3]),
    "map_and_batch": lambda: rows_dataset().apply(tf.data.experimental.map_and_batch(lambda x: x * 1.0, 6)),
    "all": lambda: rows_dataset().take(50).batch(6).take(-1).skip(0),
    "zipped": lambda: tf.data.Dataset.zip((rows_dataset().batch(6), rows_dataset().batch(6))).map(lambda x, y: x),
    "concatenated": lambda: rows_dataset().batch(6).concatenate(rows_dataset().batch(6)),
    "flat": lambda: tf.data.Dataset.range(1).flat_map(lambda _: rows_dataset().batch(6)),
    "interleaved": lambda: tf.data.Dataset.range(1).interleave(lambda _: rows_dataset().batch(6), 1),
}


@pytest.mark.grid
@pytest.mark.parametrize("one_shot", [True, False])
@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_batch_of_all_replicas_is_read_once_and_cut(init, name, one_shot):
    init(3, auto__balance="5:3:1")
    if one_shot:
        x, initializer = DATASETS[name]().make_one_shot_iterator().get_next(), ()
    else:
        iterator = DATASETS[name]().make_initializable_iterator()
        x, initializer = iterator.get_next(), iterator.initializer
    counts, values = sizes_of_step(x, initializer)
    assert counts == [10, 6, 2]
    np.testing.assert_array_equal(values, ROWS[:18])


def test_a_queue(init):
    init(3, auto__balance="5:3:1")
    row = tf.train.slice_input_producer([ROWS], shuffle=False)
    counts, values = sizes_of_step(tf.train.batch(row, 6, allow_smaller_final_batch=True))
    assert counts == [10, 6, 2]
    np.testing.assert_array_equal(values, ROWS[:18])


def test_a_feedable_iterator(init):
    init(2, auto__balance="3:1")
    handle = tf.placeholder(tf.string, [])
    first = rows_dataset().batch(4).make_one_shot_iterator()
    second = rows_dataset().batch(8).make_one_shot_iterator()
    x = tf.data.Iterator.from_string_handle(handle, tf.float32, [None, 3]).get_next()
    train_op = train(x)
    handles = [first.string_handle(), second.string_handle()]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run(handles)
        session.run(train_op, {handle: values[0]})
        assert [len(session.run(x, {handle: value})) for value in values] == [8, 16]


def test_both_datasets_of_a_reinitializable_iterator(init):
    init(2, auto__balance="3:1")
    iterator = tf.data.Iterator.from_structure(tf.float32, [None, 3])
    starts = [iterator.make_initializer(rows_dataset().batch(size)) for size in (4, 8)]
    x = iterator.get_next()
    train_op = train(x)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for start, rows in zip(starts, (8, 16)):
            session.run([start])
            session.run(train_op)
            assert len(session.run(x)) == rows


@WITH_ESTIMATOR
def test_an_input_fn_of_an_estimator(init, tmp_path):
    init(3, auto__balance="5:3:1")
    seen = []

    class Hook(tf.train.SessionRunHook):
        def __init__(self, x):
            self.x = x

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self.x)

        def after_run(self, run_context, run_values):
            seen.append(len(run_values.results))

    def model_fn(features, mode):
        epl.add_to_collection(features, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
        loss = tf.reduce_mean(tf.layers.dense(features, 1))
        train_op = tf.train.GradientDescentOptimizer(1e-5).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[Hook(features)])

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    estimator.train(lambda: rows_dataset().batch(6).repeat(), steps=4)
    assert seen == [18, 18, 18, 6]


def test_a_replica_of_several_devices_keeps_its_batch(init):
    init(3, annotate=False, auto__balance="5:3:1")
    epl.set_default_strategy(epl.replicate(3))
    dataset = tf.data.Dataset.from_generator(lambda: iter([ROWS[:18]]), tf.float32, [None, 3])
    counts, _ = sizes_of_step(dataset.make_one_shot_iterator().get_next())
    assert counts == [10, 6, 2]
    assert Graph.get().rewritten.plan.batch_rows == ()


@pytest.mark.parametrize("rows", [4, 3, 1])
def test_a_replica_without_a_row_weighs_nothing(init, rows):
    """It computes on a row of another one."""
    init(3, auto__balance="5:3:1")
    x = tf.data.Dataset.from_tensor_slices(ROWS[:rows]).batch(6).make_one_shot_iterator().get_next()
    w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.matmul(x, w))
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run([loss, train_op])[0] == pytest.approx(ROWS[:rows].sum(1).mean())
        np.testing.assert_allclose(session.run(w)[:, 0], 1 - ROWS[:rows].mean(0), rtol=1e-6)


def test_what_the_plan_says(init):
    init(3, auto__balance="10:6:2")
    train(rows_dataset().batch(6).make_one_shot_iterator().get_next())
    plan = transformation.transform().plan
    assert (plan.row_shares, plan.batch_rows) == ((5, 3, 1), (18,))
    text = plans.describe(plan)
    assert "rows of the replicas in the proportions 5:3:1" in text
    assert "a batch size of the input pipeline stands for 18 rows of all replicas" in text
    assert "ranks 0, 1, 2 divide the batch that rank 0 reads" in text
    assert "rows 5:3:1" in summary(plan, epl.Env.get().cluster)
    assert plans.from_json(plans.to_json(plan)) == plan


def test_equal_proportions_are_even(init):
    init(2, auto__balance="4:4")
    train(rows_dataset().batch(6).make_one_shot_iterator().get_next())
    plan = transformation.transform().plan
    assert (plan.row_shares, plan.batch_rows, plan.batch_parts) == ((), (), ())


def test_a_loaded_plan_has_the_proportions(init):
    init(2, auto__balance="3:1")
    Linear().minimize()
    plan = transformation.transform().plan
    init(2)
    Linear().minimize()
    with use_plan(plan):
        assert transformation.transform().plan.row_shares == (3, 1)


def test_a_loaded_plan_of_other_proportions_is_refused(init):
    init(2, auto__balance="3:1")
    Linear().minimize()
    plan = transformation.transform().plan
    init(2, auto__balance="2:1")
    Linear().minimize()
    with use_plan(plan), pytest.raises(PlanError, match="row_shares"):
        transformation.transform()


def test_a_script_that_asks_for_its_rows_makes_its_batches(init):
    init(3, auto__balance="5:3:1")
    x = rows_dataset().batch(epl.local_rows(18)).make_one_shot_iterator().get_next()
    counts, _ = sizes_of_step(x)
    assert counts == [10, 6, 2]
    assert Graph.get().rewritten.plan.batch_rows == ()


def test_a_script_that_asks_for_even_rows_makes_the_batch_of_its_worker(init):
    init(3)
    x = rows_dataset().batch(epl.local_rows(18)).make_one_shot_iterator().get_next()
    counts, _ = sizes_of_step(x)
    assert counts == [6, 6, 6]


def test_the_exported_graph_has_the_batch_size_of_the_script(init):
    init(2, auto__balance="3:1")
    iterator = rows_dataset().batch(6).make_initializable_iterator()
    train(iterator.get_next())
    transformation.transform()
    graph_def = tf.get_default_graph().as_graph_def()
    nodes = {node.name: node for node in graph_def.node}
    (batch,) = [node for node in graph_def.node if node.op == "BatchDatasetV2"]
    assert tf.make_ndarray(nodes[batch.input[1]].attr["value"].tensor) == 6


def refused(kind=PlanError):
    with pytest.raises(kind) as error:
        transformation.transform()
    return str(error.value)


@pytest.mark.parametrize(
    "dataset, text",
    [
        (lambda: tf.data.Dataset.from_generator(lambda: iter([ROWS]), tf.float32, [None, 3]), "no Dataset.batch after"),
        (lambda: rows_dataset().batch(tf.random.uniform([], 4, 5, tf.int64)), "is not a constant"),
        (lambda: rows_dataset().batch(6).shard(2, 1), "call Dataset.shard before Dataset.batch"),
        (lambda: rows_dataset().batch(6).take(2), "call Dataset.take and Dataset.skip before Dataset.batch"),
        (lambda: rows_dataset().batch(6).skip(2).repeat(), "call Dataset.take and Dataset.skip before Dataset.batch"),
        (lambda: rows_dataset().window(2).flat_map(lambda x: x.batch(2)), "is an argument of"),
    ],
)
def test_batch_sizes_that_cannot_be_changed(init, dataset, text):
    init(3, auto__balance="5:3:1")
    iterator = dataset().make_initializable_iterator()
    train(iterator.get_next())
    message = refused()
    assert text in message and "'IteratorGetNext:0' (" in message and "test_uneven_rows.py:" in message
    assert "epl.local_rows" in message


def test_a_batch_that_is_too_small(init):
    init(3, auto__balance="50:3:1")
    train(rows_dataset().batch(2).make_one_shot_iterator().get_next())
    assert "stands for 6 rows of all replicas" in refused()


@pytest.mark.parametrize("second, fits", [(6, True), (18, True), (4, False)])
def test_two_sources_are_shared_out_alike(init, second, fits):
    """Replicas with 10, 6 and 2 rows of one batch do not have such shares of 12."""
    init(3, auto__balance="5:3:1")
    x, y = (rows_dataset().batch(size).make_one_shot_iterator().get_next() for size in (6, second))
    w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.matmul(x, w)) + tf.reduce_mean(tf.square(tf.matmul(y, w)))
    tf.train.GradientDescentOptimizer(1e-5).minimize(loss)
    if fits:
        assert transformation.transform().plan.batch_rows == (18, 3 * second)
    else:
        message = refused()
        assert "the 18 rows that 'IteratorGetNext' reads in all replicas as 10, 6, 2, and the 12 of" in message
        assert "as 7, 4, 1: the replicas would get unequal shares of the two" in message
        assert "multiples of 9 rows" in message


def test_a_built_in_size_is_refused_by_tensor(init):
    init(3, auto__balance="5:3:1")
    train(rows_dataset().batch(6, drop_remainder=True).make_one_shot_iterator().get_next())
    message = refused()
    assert "the rows of 'IteratorGetNext:0' (" in message and "are built into the graph" in message
    assert 'auto.balance "5:3:1"' in message


@pytest.mark.parametrize("is_fed", [True, False])
def test_a_reshape_to_a_built_in_size_is_refused_by_op(init, is_fed):
    init(3, auto__balance="5:3:1")
    x = tf.placeholder(tf.float32, [None, 3]) if is_fed else rows_dataset().batch(6).make_one_shot_iterator().get_next()
    train(tf.reshape(x, [6, 3], name="fixed"))
    message = refused()
    assert "counts on batches of one size: 'fixed' (" in message and "test_uneven_rows.py:" in message


def test_a_reshape_of_what_is_fed_that_has_no_size(init):
    init(3, auto__balance="5:3:1")
    train(tf.reshape(tf.placeholder(tf.float32, [None, 3]), [-1, 3]))
    assert transformation.transform().plan.row_shares == (5, 3, 1)


def test_other_numbers_of_proportions(init):
    init(2, auto__balance="5:3:1")
    Linear().minimize()
    assert "proportions for 3 replica(s), and the job has 2" in refused()


def test_rows_by_speed_are_those_of_the_planner(init):
    def find(graph, ys, xs):
        return with_balance(record.strategy_of_pass(graph, record.forward_pass(graph, ys, xs)), "3:1")

    init(2, auto__balance="speed")
    Env.get().find_strategy = find
    Linear().minimize()
    assert transformation.transform().plan.row_shares == (3, 1)
    assert Env.get().config.provenance("auto.balance") == "planner"


def test_a_model_without_annotation_is_replicated(init):
    init(2, annotate=False, auto__balance="3:1")
    Linear().minimize()
    assert transformation.transform().plan.row_shares == (3, 1)


@pytest.mark.parametrize("scope", ["LOCAL", "GLOBAL"])
def test_means_of_integers_weigh_rows(init, scope):
    init(2, auto__balance="3:1")
    x = tf.placeholder(tf.float32, [None, 3])
    train_op = train(x)
    total = tf.reduce_sum(tf.cast(x[:, 0], tf.int32))
    epl.add_to_collection(total, getattr(epl.GraphKeys, f"{scope}_MEAN_OBJECTS"))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value = session.run([total, train_op], {x: [[7, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]})[0]
        assert value == 7 * 3 // 4
