"""`epl.replicate(n)` in one process: what of a batch each device has, what is fetched, and what is refused."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.plan import plan as plans
from epl.utils.errors import LayoutError, PlanError

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


class Read:
    """Least squares on batches of a dataset, with one weight of ones."""

    def __init__(self, together, batch=8, drop_remainder=False, rows=ROWS):
        dataset = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(batch, drop_remainder)
        self.iterator = dataset.make_initializable_iterator()
        with epl.replicate(together):
            self.x, y = self.iterator.get_next()
            w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
            self.out = tf.matmul(self.x, w, name="out")
            self.loss = tf.reduce_mean(tf.square(self.out - y), name="loss")
        self.train_op = tf.train.GradientDescentOptimizer(1e-5).minimize(self.loss)

    def begin(self, session):
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), self.iterator.initializer])


def refused(build):
    build()
    with pytest.raises((PlanError, LayoutError)) as error:
        transformation.transform()
    return str(error.value)


@pytest.mark.parametrize("together, devices, expected", [(2, 2, ()), (2, 4, ()), (4, 4, ())])
def test_the_plan_says_who_divides_a_batch(init, together, devices, expected):
    init(devices, annotate=False)
    Read(together)
    report = transformation.transform()
    parts = report.plan.batch_parts
    assert [(part.reader, part.index, part.parts) for part in parts] == [
        (rank // together * together, rank % together, together) for rank in range(devices)
    ]
    ranks = ", ".join(map(str, range(together)))
    assert f"ranks {ranks} divide the batch that rank 0 reads" in plans.describe(report.plan)


def test_replicate_1_divides_nothing(init):
    init(2, annotate=False)
    Read(1)
    assert transformation.transform().plan.batch_parts == ()


def test_a_batch_is_read_once_for_all_devices(init):
    init(4, annotate=False)
    model = Read(4, batch=5)
    epl.add_to_collection(model.x, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    with tf.Session() as session:
        model.begin(session)
        for step in range(4):
            np.testing.assert_array_equal(
                session.run([model.x, model.train_op])[0], ROWS[step * 5 : step * 5 + 5]
            )  # fmt: skip
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(model.train_op)


@pytest.mark.parametrize("key, expected", [("CONCAT", None), ("SUM", "sum"), ("MEAN", "mean")])
@pytest.mark.parametrize("scope", ["LOCAL", "GLOBAL"])
def test_outputs_of_fewer_rows_than_devices(init, key, expected, scope):
    init(4, annotate=False)
    model = Read(4, batch=3)
    output = model.x if expected is None else tf.reduce_sum(model.x) if expected == "sum" else tf.reduce_mean(model.x)
    epl.add_to_collection(output, getattr(epl.GraphKeys, f"{scope}_{key}_OBJECTS"))
    with tf.Session() as session:
        model.begin(session)
        value = session.run([output, model.train_op])[0]
        wanted = ROWS[:3] if expected is None else getattr(np, expected)(ROWS[:3])
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


def test_what_replica_0_computes_alone_has_all_rows(init):
    init(4, annotate=False)
    model = Read(4)
    with tf.Session() as session:
        model.begin(session)
        np.testing.assert_array_equal(session.run(model.x), ROWS[:8])
        out, loss = session.run([model.out, model.loss])
        assert out.shape == (8, 1)
        assert loss == pytest.approx(np.mean(np.square(ROWS[8:16].sum(1) - ROWS[8:16, 0])))


def test_metrics_have_all_rows(init):
    init(4, annotate=False)
    model = Read(4)
    iterator = tf.data.Dataset.from_tensor_slices(ROWS).batch(8).make_initializable_iterator()
    value, update = tf.metrics.mean(iterator.get_next())
    with tf.Session() as session:
        model.begin(session)
        session.run(iterator.initializer)
        for _ in range(3):
            session.run(update)
        assert session.run(value) == pytest.approx(ROWS.mean())


def test_metrics_of_the_data_of_training_have_all_rows(init):
    init(4, annotate=False)
    model = Read(4)
    value, update = tf.metrics.mean(model.x)
    with tf.Session() as session:
        model.begin(session)
        for _ in range(3):
            session.run(update)
        assert session.run(value) == pytest.approx(ROWS.mean())


def test_metrics_of_a_step_count_no_row_twice(init):
    init(4, annotate=False)
    model = Read(4, batch=9)  # the last batch has fewer rows than there are devices
    value, update = tf.metrics.mean(model.x)
    with tf.Session() as session:
        model.begin(session)
        for _ in range(3):
            seen, _ = session.run([update, model.train_op])
        assert session.run("mean/count:0") == ROWS.size
        assert seen == session.run(value) == pytest.approx(ROWS.mean())


def test_metrics_with_a_batch_for_each_device_need_no_other_device(init):
    init(2, annotate=False)
    model = Read(1, batch=20)  # one batch: a step of two devices would find no data
    value, update = tf.metrics.mean(model.x)
    with tf.Session() as session:
        model.begin(session)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run([update, model.train_op])
        assert session.run("mean/count:0") == 0  # the end of data changes nothing


def test_fed_rows_are_divided(init):
    init(4, annotate=False)
    with epl.replicate(4):
        x = tf.placeholder(tf.float32, [None, 3])
        w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.matmul(x, w))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op, {x: ROWS[:10]})
        np.testing.assert_allclose(session.run(w)[:, 0], 1 - 0.1 * ROWS[:10].mean(0), rtol=1e-6)


def test_the_batch_may_be_fed_in_place_of_reading_it(init):
    init(4, annotate=False)
    model = Read(2)
    x, y = model.x, model.x.op.outputs[1]
    with tf.Session() as session:
        model.begin(session)
        seen, _ = session.run([model.loss, model.train_op], {x: ROWS[:10], y: ROWS[:10, :1]})
        assert seen == pytest.approx(np.mean(np.square(ROWS[:10].sum(1) - ROWS[:10, 0])))


def test_what_the_script_keeps_whole_is_not_cut(init):
    init(2, annotate=False)
    rows = tf.data.Dataset.from_tensor_slices(ROWS).batch(8)
    scale = tf.data.Dataset.from_generator(lambda: iter([np.arange(3.0)] * 9), tf.float32, [None])
    x, factors = tf.data.Dataset.zip((rows, scale)).make_one_shot_iterator().get_next()
    epl.keep_whole(factors)
    with epl.replicate(2):
        w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.matmul(x * factors, w))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run([loss, train_op])[0] == pytest.approx((ROWS[:8] * np.arange(3)).sum(1).mean())


def test_outputs_of_different_rows_are_refused(init):
    init(2, annotate=False)
    rows = tf.data.Dataset.from_tensor_slices(ROWS).batch(8)
    scale = tf.data.Dataset.from_generator(lambda: iter([np.arange(3.0)] * 9), tf.float32, [None])
    x, factors = tf.data.Dataset.zip((rows, scale)).make_one_shot_iterator().get_next()
    with epl.replicate(2):
        w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.matmul(x, w)) * tf.reduce_sum(factors)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match="has different numbers of rows.*keep_whole"):
            session.run(train_op)


def test_a_batch_of_fewer_rows_than_a_split_has_devices_is_refused(init):
    init(4, annotate=False, cluster__colocate_split_and_replicate=True)
    x = tf.data.Dataset.from_tensor_slices(ROWS[:7]).batch(4).make_one_shot_iterator().get_next()
    with epl.replicate(4):
        x = tf.layers.dense(x, 4)
    with epl.split(4):
        loss = tf.reduce_mean(tf.layers.dense(x, 400))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        with pytest.raises(tf.errors.InvalidArgumentError, match="is too small for a split"):
            session.run(train_op)


def test_the_end_of_data_changes_nothing(init):
    init(4, annotate=False)
    model = Read(2, batch=8)  # three batches, two a step
    with tf.Session() as session:
        model.begin(session)
        session.run(model.train_op)
        before = session.run("w:0")
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(model.train_op)
        np.testing.assert_array_equal(session.run("w:0"), before)
        session.run(model.iterator.initializer)
        session.run(model.train_op)
        assert not np.array_equal(session.run("w:0"), before)


def test_copies_of_variables_stay_equal(init):
    init(4, annotate=False)
    model = Read(4, batch=7)
    with tf.Session() as session:
        model.begin(session)
        for _ in range(3):
            session.run(model.train_op)
        values = [session.run(prefix + "w:0") for prefix in ["", "EPL_REPLICA_1/", "EPL_REPLICA_3/"]]
        for value in values[1:]:
            np.testing.assert_array_equal(value, values[0])


def test_devices_that_are_no_multiple_are_refused(init):
    init(4, annotate=False)
    text = refused(lambda: Read(3))
    assert "4 is not divisible by num_device_per_replica 3" in text


def test_devices_that_are_no_multiple_are_refused_where_scopes_share_devices(init):
    init(4, annotate=False, cluster__colocate_split_and_replicate=True)
    text = refused(lambda: Read(3))
    assert "epl.replicate(3) puts one replica of the model on 3 devices together, and the job has 4 device(s)" in text


def test_a_known_batch_is_refused_by_name_and_line(init):
    init(2, annotate=False)
    text = refused(lambda: Read(2, drop_remainder=True))
    assert "the rows of 'IteratorGetNext:0' (" in text and "test_divided_batches.py:" in text
    assert "shape (8, 3), are built into the graph" in text


def test_placeholders_of_a_known_batch_are_refused_by_name_and_line(init):
    init(2, annotate=False)

    def build():
        x = tf.placeholder(tf.float32, [8, 3], "x")
        labels = tf.placeholder(tf.int32, [8], "labels")
        with epl.replicate(2):
            logits = tf.layers.dense(x, 4)
            loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)

    text = refused(build)
    assert "'x:0'" in text and "'labels:0'" in text and "are built into the graph" in text
    assert "test_divided_batches.py:" in text


def test_a_known_first_dimension_that_is_no_batch_is_none_of_its(init):
    init(2, annotate=False)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    scale = tf.placeholder(tf.float32, [3], "scale")
    with epl.replicate(2):
        loss = tf.reduce_mean(tf.layers.dense(x * scale, 3) * scale)
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert transformation.transform().plan.batch_parts


def test_data_that_is_read_in_a_branch_is_refused(init):
    init(2, annotate=False)

    def build():
        one = tf.data.Dataset.from_tensor_slices(ROWS).batch(8).make_one_shot_iterator()
        other = tf.data.Dataset.from_tensor_slices(ROWS).batch(4).make_one_shot_iterator()
        x = tf.cond(tf.placeholder_with_default(True, []), one.get_next, other.get_next)
        with epl.replicate(2):
            loss = tf.reduce_mean(tf.layers.dense(x, 1))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)

    assert "in a loop or in a branch of tf.cond" in refused(build)


@pytest.mark.parametrize("kind", ["ragged", "transposed"])
def test_rows_that_are_not_first_are_refused_beside_those_that_are(init, kind):
    init(2, annotate=False)

    def build():
        x = ROWS if kind == "transposed" else tf.RaggedTensor.from_row_lengths(tf.range(20.0), [1] * 20)
        dataset = tf.data.Dataset.from_tensor_slices((x, ROWS[:, :1])).batch(4)
        if kind == "transposed":
            dataset = dataset.map(lambda x, y: (tf.transpose(x), y))
        x, y = dataset.make_one_shot_iterator().get_next()
        x = tf.transpose(x) if kind == "transposed" else tf.reshape(tf.reduce_sum(x.to_tensor(), 1), [-1, 1])
        with epl.replicate(2):
            loss = tf.reduce_mean(tf.square(tf.layers.dense(x[:, :1], 1) - y))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)

    assert "cannot tell those of 'IteratorGetNext:0'" in refused(build)


def test_data_without_rows_is_refused(init):
    init(2, annotate=False)

    def build():
        number = tf.data.Dataset.from_tensor_slices(ROWS[:, 0]).make_one_shot_iterator().get_next()
        with epl.replicate(2):
            w = tf.get_variable("w", [], initializer=tf.ones_initializer())
            tf.train.GradientDescentOptimizer(0.1).minimize(w * number)

    assert "what 'IteratorGetNext' (" in refused(build)


@pytest.mark.parametrize("how", ["reshape", "add"])
def test_a_model_that_counts_on_a_size_is_refused_by_name_and_line(init, how):
    init(2, annotate=False)

    def build():
        x = tf.data.Dataset.from_tensor_slices(ROWS).batch(8).make_one_shot_iterator().get_next()
        with epl.replicate(2):
            out = tf.layers.dense(x, 1)
            out = tf.reshape(out, [8, 1], name="fixed") if how == "reshape" else tf.add(out, tf.zeros([8, 1]), "fixed")
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(out))

    text = refused(build)
    assert "the model counts on batches of one size: 'fixed' (" in text and "test_divided_batches.py:" in text


def test_random_data_of_a_constant_shape_is_named_once(init, caplog):
    init(2, annotate=False)
    with epl.replicate(2):
        x = tf.random.normal([4, 3], name="noise")
        loss = tf.reduce_mean(tf.layers.dense(x, 1) + tf.reduce_mean(tf.random.normal([2])))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with caplog.at_level(logging.WARNING, "epl"):
        transformation.transform()
    lines = [line for line in caplog.messages if "random numbers" in line]
    assert len(lines) == 1 and "'noise" in lines[0] and "[4, 3]" in lines[0]


def test_a_write_before_the_data_is_read_is_refused(init):
    init(2, annotate=False)

    def build():
        counter = tf.get_variable("counter", [], initializer=tf.zeros_initializer(), trainable=False)
        iterator = tf.data.Dataset.from_tensor_slices(ROWS).batch(8).make_one_shot_iterator()
        with tf.control_dependencies([counter.assign_add(1.0)]):
            x = iterator.get_next()
        with epl.replicate(2):
            tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.layers.dense(x, 1)))

    assert "has to run before it is read" in refused(build)


# ---- Weights of replicas that read a batch each


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_a_short_last_batch_weighs_less(init, micro_steps):
    """Two devices read 8 and 4 rows: the step is that of one device on 12."""
    init(2, annotate=False, pipeline__num_micro_batch=micro_steps)
    model = Read(1, batch=8, rows=ROWS[:12])
    mean = tf.reduce_mean(model.x, name="mean")
    epl.add_to_collection(mean, epl.GraphKeys.LOCAL_MEAN_OBJECTS)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = []
        for _ in range(micro_steps):
            session.run(model.iterator.initializer)
            loss, seen, _ = session.run([model.loss, mean, model.train_op])
            losses.append(loss)
        x = ROWS[:12]
        error = x.sum(1) - x[:, 0]
        assert losses[0] == pytest.approx(np.mean(np.square(error)))
        assert seen == pytest.approx(x.mean())
        np.testing.assert_allclose(session.run("w:0")[:, 0], 1 - 1e-5 * 2 * (error[:, None] * x).mean(0), rtol=1e-6)


def test_a_fed_run_beside_a_reading_one_reads_nothing(init):
    init(2, annotate=False)
    model = Read(1, batch=4)
    number = tf.placeholder(tf.float32, [None])
    mean, update = tf.metrics.mean(number)
    with tf.Session() as session:
        model.begin(session)
        session.run(model.train_op)
        session.run(update, {number: [1.0, 3.0]})
        assert session.run(mean) == 2.0
        np.testing.assert_array_equal(session.run(model.x), ROWS[8:12])


def test_known_batches_weigh_by_their_size(init):
    init(2, annotate=False)
    Read(1, batch=4, drop_remainder=True)
    transformation.transform()
    weight = Graph.get().rewritten.weights[0]
    with tf.Session() as session:
        assert session.run(weight.op.inputs[0]) == 4.0
