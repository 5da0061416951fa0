"""Replicas with uneven rows: `auto.balance` of proportions; one device has all rows of a step.

A step has `rows` rows of all processes. Each process has the rows of its replicas, one process after the other.
"""

from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts import unequal
from tests.parity.scripts.accumulation import CHANGES, Training
from tests.parity.scripts.data import FEATURES, TOKENS, Samples, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS, weights
from tests.parity.scripts.pipeline_models import Inputs, build, placeholders
from tests.parity.scripts.splits import SPLITS, annotations, minimize

Shares = Sequence[int]


def scaled(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """A weight after the mean over the rows: of no rows its gradient is no number."""
    width = tf.get_variable("width", [], initializer=tf.zeros_initializer(), use_resource=True).read_value()
    return MODELS["layers"](x, ids, y) * tf.exp(-width) + width


UNEVEN_MODELS = dict(MODELS, scaled=scaled)


def cut(rows: int, shares: Shares) -> List[int]:
    """Rows by the largest remainder."""
    quotas = [rows * share / sum(shares) for share in shares]
    found = [int(quota) for quota in quotas]
    order = sorted(range(len(shares)), key=lambda rank: (found[rank] - quotas[rank], rank))
    for rank in order[: rows - sum(found)]:
        found[rank] += 1
    return found


def own_rows(ctx: Context, shares: Shares, rows: int, tail: str = "short") -> List[Samples]:
    """What this process has in each step. In the last one worker 0 has all rows if the tail is to be "empty"."""
    data = samples()
    count = len(data.y)
    found = []
    for begin in range(0, count, rows):
        end = min(begin + rows, count)
        sizes = cut(end - begin, shares)
        own = len(shares) // ctx.workers
        bounds = [begin + sum(sizes[: worker * own]) for worker in range(ctx.workers + 1)]
        if tail == "empty" and end == count:
            bounds = [begin] + [end] * ctx.workers
        if not ctx.planned:
            bounds = [begin, end]
        found.append(Samples(*[values[bounds[ctx.worker] : bounds[ctx.worker + 1]] for values in data]))
    return found


def _init(ctx: Context, shares: Shares, annotate: bool = True, **config: Any) -> None:
    ctx.init(annotate=annotate, auto__balance=":".join(map(str, shares)), **config)


def _dataset(steps: List[Samples], batch: int, is_known: bool = False) -> tf.data.Dataset:
    stream = tuple(np.concatenate(rows) for rows in zip(*steps))
    return tf.data.Dataset.from_tensor_slices(stream).batch(batch, drop_remainder=is_known)


def _merged(ctx: Context, loss: tf.Tensor) -> tf.Tensor:
    """The loss, whose fetched value is the mean over all rows of the job."""
    if ctx.planned:
        import epl

        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    return loss


def _run(ctx: Context, fetches: Any, feeds: Iterator[Any]) -> None:
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
        for feed in feeds:
            ctx.record(loss=sess.run(fetches, feed)[0])
        ctx.record_variables(sess)


def read(
    ctx: Context,
    name: str,
    shares: Shares,
    rows: int,
    optimizer: str = "momentum",
    clip: Optional[float] = None,
    kind: str = "one_shot",
    **config: Any,
) -> None:
    """Trains on a dataset whose batch size is that of one replica with even rows."""
    _init(ctx, shares, **config)
    steps = own_rows(ctx, shares, rows)
    batch = rows // max(len(shares) // ctx.together, 1) if ctx.planned else rows
    initializers = []
    if kind == "queue":
        stream = [np.concatenate(values) for values in zip(*steps)]
        row = tf.train.slice_input_producer(stream, num_epochs=1, shuffle=False)
        tensors = tf.train.batch(row, batch, num_threads=1, allow_smaller_final_batch=True)
    elif kind in ("local_rows", "known_rows"):
        size = rows
        if ctx.planned:
            import epl

            size = epl.local_rows(rows)
        is_known = kind == "known_rows"
        steps = [step for step in steps if len(step.y) == size or not is_known]
        tensors = _dataset(steps, size, is_known).make_one_shot_iterator().get_next()
    elif kind == "one_shot":
        tensors = _dataset(steps, batch).prefetch(2).make_one_shot_iterator().get_next()
    else:
        iterator = _dataset(steps, batch).map(lambda *of: of).make_initializable_iterator()
        initializers.append(iterator.initializer)
        tensors = iterator.get_next()
    loss = _merged(ctx, UNEVEN_MODELS[name](*tensors))
    train_op = minimize(OPTIMIZERS[optimizer](), loss, clip)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
        sess.run(initializers)
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coordinator)
        for _ in steps:
            ctx.record(loss=sess.run([loss, train_op])[0])
        coordinator.request_stop()
        ctx.record_variables(sess)
        coordinator.join(threads)


def fed(
    ctx: Context,
    name: str,
    shares: Shares,
    rows: int,
    optimizer: str = "momentum",
    clip: Optional[float] = None,
    tail: str = "short",
    total: bool = False,
    **config: Any,
) -> None:
    """Trains on what is fed, by the mean over the rows or by their sum divided by a constant."""
    _init(ctx, shares, **config)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    loss = _merged(ctx, UNEVEN_MODELS[name](x, ids, y))
    trained = loss * tf.cast(tf.shape(y)[0], tf.float32) / rows if total else loss
    train_op = minimize(OPTIMIZERS[optimizer](), trained, clip)
    feeds = [{x: of.x, ids: of.ids, y: of.y} for of in own_rows(ctx, shares, rows, tail)]
    _run(ctx, [loss, train_op], iter(feeds))


def fed_sparse(ctx: Context, shares: Shares, rows: int) -> None:
    """Feeds a sparse tensor and labels."""
    _init(ctx, shares)
    x = tf.sparse_placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    hidden = tf.sparse.sparse_dense_matmul(x, weights("first", [FEATURES, 8]))
    loss = _merged(ctx, MODELS["layers"](hidden, None, y))
    train_op = minimize(OPTIMIZERS["momentum"](), loss)
    feeds = []
    for of in own_rows(ctx, shares, rows):
        places = np.argwhere(of.x > 0.3)
        feeds.append({x: tf.SparseTensorValue(places, of.x[of.x > 0.3], of.x.shape), y: of.y})
    _run(ctx, [loss, train_op], iter(feeds))


def empty_batches(ctx: Context, name: str, shares: Shares, rows: int, **config: Any) -> None:
    """Reads batches that a generator makes; worker 0 has all rows of the last step, the others read none."""
    _init(ctx, shares, **config)
    size = rows
    if ctx.planned:
        import epl

        size = epl.local_rows(rows)
    steps = own_rows(ctx, shares, rows, "empty")
    assert len(steps[0].y) == size
    shapes = ([None, FEATURES], [None, TOKENS], [None])
    dataset = tf.data.Dataset.from_generator(lambda: iter(steps), (tf.float32, tf.int32, tf.int32), shapes)
    loss = _merged(ctx, UNEVEN_MODELS[name](*dataset.make_one_shot_iterator().get_next()))
    train_op = minimize(OPTIMIZERS["momentum"](), loss)
    _run(ctx, [loss, train_op], iter([None] * len(steps)))


def accumulate(
    ctx: Context, name: str, shares: Shares, rows: int, steps: int, change: Optional[str] = None, **config: Any
) -> None:
    """Reads, and applies the mean of the gradients of `steps` runs."""
    _init(ctx, shares, pipeline__num_micro_batch=steps, **config)
    of_runs = own_rows(ctx, shares, rows)
    batch = rows // len(shares) if ctx.planned else rows
    loss = _merged(ctx, UNEVEN_MODELS[name](*_dataset(of_runs, batch).make_one_shot_iterator().get_next()))
    training = Training(
        ctx,
        steps,
        [loss],
        OPTIMIZERS["momentum"](),
        change=CHANGES[change] if change else None,
        global_step=tf.train.get_or_create_global_step(),
    )
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in of_runs:
            ctx.record(loss=training.run(sess, loss))
        ctx.record_variables(sess)


def pipeline(ctx: Context, shares: Shares, rows: int, micro_batches: int, read_rows: bool, **config: Any) -> None:
    """Two stages; `rows` of a step are divisible by the micro batches and the replicas."""
    ctx.stages = 2
    ctx.devices = 2 * len(shares) // (ctx.workers if ctx.planned else 1)
    _init(
        ctx,
        shares,
        annotate=False,
        cluster__num_virtual_devices=ctx.devices,
        pipeline__num_micro_batch=micro_batches,
        **config,
    )
    whole = len(samples().y) // rows
    steps = own_rows(ctx, shares, rows)[:whole]
    if read_rows:
        of_micro_batches = own_rows(ctx, shares, rows // micro_batches) if ctx.planned else steps
        dataset = _dataset(of_micro_batches, rows // (micro_batches * len(shares)) if ctx.planned else rows)
        inputs = Inputs(*dataset.make_one_shot_iterator().get_next())
    else:
        inputs = placeholders()
    loss = build("mlp", inputs, 2, ctx.scope)
    feeds: List[Any] = [None] * whole
    if not read_rows:
        feeds = [{tensor: of for tensor, of in zip(inputs, step) if tensor.consumers()} for step in steps]
    loss = _merged(ctx, loss)
    train_op = minimize(OPTIMIZERS["momentum"](), loss)
    _run(ctx, [loss, train_op], iter(feeds))


def split(ctx: Context, shares: Shares, rows: int, groups: int = 1, **config: Any) -> None:
    """A head that is split, fed."""
    _init(ctx, shares, annotate=False, cluster__colocate_split_and_replicate=True, **config)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    loss = SPLITS["head"](x, ids, y, *annotations(ctx, groups))
    train_op = minimize(OPTIMIZERS["momentum"](), loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for of in own_rows(ctx, shares, rows):
            feed = {t: v for t, v in ((x, of.x), (ids, of.ids), (y, of.y)) if t.consumers()}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
        ctx.results["variables"] = [sess.run(variables)]


def scopes(
    ctx: Context,
    name: str,
    counts: Sequence[int],
    shares: Shares,
    rows: int,
    is_read: bool = False,
    optimizer: str = "momentum",
    **config: Any,
) -> None:
    """Scopes of epl.replicate with different numbers of devices."""
    _init(ctx, shares, annotate=False, cluster__colocate_split_and_replicate=True, **config)
    steps = own_rows(ctx, shares, rows)
    feeds: List[Any] = [None] * len(steps)
    if is_read:
        batches = max(len(shares) // ctx.together, ctx.workers) if ctx.planned else 1
        inputs = _dataset(steps, rows // batches).make_one_shot_iterator().get_next()
    else:
        inputs = placeholders()[:3]
    loss = _merged(ctx, unequal.MODELS[name](*inputs, *unequal.scopes(ctx, counts)))
    if not is_read:
        feeds = [{tensor: of for tensor, of in zip(inputs, step) if tensor.consumers()} for step in steps]
    _run(ctx, [loss, minimize(OPTIMIZERS[optimizer](), loss)], iter(feeds))


def refused(ctx: Context, shares: Shares, kind: str) -> None:
    """Records the error of the first step."""
    _init(ctx, shares)
    data = samples()
    rows: Tuple[Any, ...] = (data.x, data.y)
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    if kind == "shard":
        dataset = dataset.batch(8).shard(ctx.workers, ctx.worker)
    elif kind == "generator":
        batches = [tuple(values[:8] for values in rows)] * 4
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(batches), (tf.float32, tf.int32), ([None, FEATURES], [None])
        )
    x, y = dataset.make_one_shot_iterator().get_next()
    train_op = minimize(OPTIMIZERS["sgd"](), MODELS["layers"](x, None, y))
    with tf.Session() as sess:
        try:
            sess.run(tf.global_variables_initializer())
            sess.run(train_op)
        except RuntimeError as error:
            ctx.record(error=str(error))
