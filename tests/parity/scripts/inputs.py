"""The ways in which samples reach a model: tf.data iterators, queue runners, feeds of every form."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.data import FEATURES, TOKENS, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS


def _train_op(ctx: Context, x: tf.Tensor, y: tf.Tensor, name: str = "layers") -> tuple:
    losses = ctx.towers(lambda x, y: MODELS[name](x, None, y), [x, y])
    return losses[0], ctx.minimize(losses, OPTIMIZERS["momentum"]())


def one_shot(ctx: Context, scoped: bool = False) -> None:
    """A one-shot iterator over this process's rows; each replica takes its batch from it."""
    ctx.init(annotate=not scoped)
    data = samples()
    rows = tf.data.Dataset.from_tensor_slices((ctx.stream(data.x), ctx.stream(data.y)))
    x, y = rows.batch(ctx.batch).make_one_shot_iterator().get_next()
    with ctx.scope() if scoped else tf.name_scope(None):
        loss, train_op = _train_op(ctx, x, y)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        while True:
            try:
                ctx.record(loss=sess.run([loss, train_op])[0])
            except tf.errors.OutOfRangeError:
                break
        ctx.record_variables(sess)


def initializable(ctx: Context, shapes_known: bool = False) -> None:
    """An initializable iterator fed with the arrays, two epochs; a parallel map and a shuffle that keeps the order."""
    ctx.init()
    data = samples()
    x_source = tf.placeholder(tf.float32, [None, FEATURES])
    y_source = tf.placeholder(tf.int32, [None])
    rows = tf.data.Dataset.from_tensor_slices((x_source, y_source)).map(lambda x, y: (x * 1.0, y), 2)
    rows = rows.batch(ctx.batch, drop_remainder=shapes_known).prefetch(2)
    iterator = rows.make_initializable_iterator()
    x, y = iterator.get_next()
    loss, train_op = _train_op(ctx, x, y)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            sess.run(iterator.initializer, {x_source: ctx.stream(data.x), y_source: ctx.stream(data.y)})
            for _ in range(STEPS):
                ctx.record(loss=sess.run([loss, train_op])[0])
            try:
                sess.run([loss, train_op])
                ctx.record(missing_end=True)
            except tf.errors.OutOfRangeError:
                pass
        ctx.record_variables(sess)


def reinitializable(ctx: Context) -> None:
    """One iterator over a training and a validation set in turn; validation fetches the loss alone."""
    ctx.init()
    data, other = samples(), samples(2, seed=8)
    train_rows = tf.data.Dataset.from_tensor_slices((ctx.stream(data.x), ctx.stream(data.y))).batch(ctx.batch)
    valid_rows = tf.data.Dataset.from_tensor_slices((ctx.stream(other.x), ctx.stream(other.y))).batch(ctx.batch)
    iterator = tf.data.Iterator.from_structure(
        tf.data.get_output_types(train_rows), tf.data.get_output_shapes(train_rows)
    )
    start_train, start_valid = iterator.make_initializer(train_rows), iterator.make_initializer(valid_rows)
    x, y = iterator.get_next()
    loss, train_op = _train_op(ctx, x, y)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            sess.run(start_train)
            for _ in range(STEPS // 2):
                ctx.record(loss=sess.run([loss, train_op])[0])
            sess.run(start_valid)
            for _ in range(2):
                ctx.record(loss=sess.run(loss))
        ctx.record_variables(sess)


def generator(ctx: Context) -> None:
    """tf.data.Dataset.from_generator: the rows come from Python."""
    ctx.init()
    data = samples()
    xs, ys = ctx.stream(data.x), ctx.stream(data.y)
    rows = tf.data.Dataset.from_generator(lambda: zip(xs, ys), (tf.float32, tf.int32), ([FEATURES], []))
    iterator = rows.batch(ctx.batch).make_initializable_iterator()
    x, y = iterator.get_next()
    loss, train_op = _train_op(ctx, x, y)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), iterator.initializer])
        for _ in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op])[0])
        ctx.record_variables(sess)


def queue_runners(ctx: Context) -> None:
    """tf.train.slice_input_producer and tf.train.batch, driven by tf.train.start_queue_runners."""
    ctx.init()
    data = samples()
    row = tf.train.slice_input_producer([ctx.stream(data.x), ctx.stream(data.y)], num_epochs=1, shuffle=False)
    x, y = tf.train.batch(row, ctx.batch, num_threads=1)
    loss, train_op = _train_op(ctx, x, y)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coordinator)
        try:
            while not coordinator.should_stop():
                ctx.record(loss=sess.run([loss, train_op])[0])
        except tf.errors.OutOfRangeError:
            pass
        coordinator.request_stop()
        coordinator.join(threads)
        ctx.record_variables(sess)


def file_queue(ctx: Context) -> None:
    """tf.train.string_input_producer over text files, a reader, a decoder and tf.train.batch."""
    ctx.init()
    data = samples()
    path = os.path.join(ctx.temporary_directory(), "rows.csv")
    np.savetxt(path, np.column_stack([ctx.stream(data.x), ctx.stream(data.y)]), fmt="%.9g", delimiter=",")
    files = tf.train.string_input_producer([path], num_epochs=1, shuffle=False)
    _, line = tf.TextLineReader().read(files)
    columns = tf.decode_csv(line, [[0.0]] * FEATURES + [[0]])
    x, y = tf.train.batch([tf.stack(columns[:-1]), columns[-1]], ctx.batch)
    loss, train_op = _train_op(ctx, x, y)
    with tf.train.MonitoredSession() as sess:
        while not sess.should_stop():
            try:
                ctx.record(loss=sess.run([loss, train_op])[0])
            except tf.errors.OutOfRangeError:
                break
            if len(ctx.results["loss"]) == STEPS:
                ctx.record_variables(sess)


def fed(ctx: Context, first_dimension: str) -> None:
    """feed_dict with placeholders whose first dimension is unknown or the batch of one device, and with scalars."""
    ctx.init()
    data = samples()
    rows = {"unknown": None, "known": ctx.batch}[first_dimension]
    x = tf.placeholder(tf.float32, [rows, FEATURES], "x")
    y = tf.placeholder(tf.int32, [rows], "y")
    rate = tf.placeholder(tf.float32, [], "rate")
    keep = tf.placeholder_with_default(1.0, [], "keep")
    loss = MODELS["layers"](x * keep, None, y)
    train_op = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step), rate: 0.1 / (step + 1)}
            if step % 2:
                feed[keep] = 0.5
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)


def fed_whole(ctx: Context) -> None:
    """A placeholder of known first dimension, fed with that many rows: all replicas get all of them."""
    ctx.init()
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    scale = tf.placeholder(tf.float32, [FEATURES], "scale")
    loss = MODELS["layers"](x * scale, None, y)
    train_op = OPTIMIZERS["momentum"]().minimize(loss)
    factors = np.linspace(0.5, 1.5, FEATURES).astype(np.float32)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step), scale: factors}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)


def fed_uneven(ctx: Context) -> None:
    """Batches that do not divide by the replicas: rows weigh in the mean, not replicas."""
    ctx.init()
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    loss = MODELS["layers"](x, None, y)
    train_op = OPTIMIZERS["sgd"]().minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            rows = slice(step * GLOBAL_BATCH, step * GLOBAL_BATCH + 11 + step % 3)
            ctx.record(loss=sess.run([loss, train_op], {x: data.x[rows], y: data.y[rows]})[0])
        ctx.record_variables(sess)


def fed_odd_ids(ctx: Context) -> None:
    """Uneven rows and sparse gradients: 11 rows on the replicas of one process."""
    ctx.init()
    data = samples()
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    loss = MODELS["resource_embedding"](None, ids, y)
    train_op = OPTIMIZERS["sgd"]().minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            rows = slice(step * GLOBAL_BATCH, step * GLOBAL_BATCH + 11)
            ctx.record(loss=sess.run([loss, train_op], {ids: data.ids[rows], y: data.y[rows]})[0])
        ctx.record_variables(sess)


def fed_updates(ctx: Context) -> None:
    """Variables that the script writes between steps, by what it feeds: rows of a table, a rate, all of a bias.

    The workers set different rates: that of worker 0 counts.
    """
    ctx.init()
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    table = tf.get_variable("table", [5, FEATURES], initializer=tf.ones_initializer())
    rate = tf.get_variable("rate", [], initializer=tf.zeros_initializer(), trainable=False)
    loss = MODELS["layers"](x * tf.reduce_mean(table, 0), None, y)
    train_op = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss)
    ids = tf.placeholder(tf.int32, [None], "ids")
    values = tf.placeholder(tf.float32, None, "values")
    write_rows = tf.scatter_update(table, ids, values)
    write_rate = rate.assign(values)
    bias = [variable for variable in tf.trainable_variables() if variable.shape.ndims == 1][0]
    write_bias = bias.assign(tf.reshape(values, bias.shape))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)}
            ctx.record(shown=sess.run([loss, write_rate], {**feed, values: (0.1 + ctx.worker) / (step + 1)})[1].shape)
            sess.run(write_rows, {ids: [step % 5, 1], values: np.full([2, FEATURES], 0.5 + step)})
            sess.run(write_bias, {values: np.full(bias.shape.as_list(), 0.1 * step)})
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)
