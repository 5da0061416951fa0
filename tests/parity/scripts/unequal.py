"""Models whose scopes of epl.replicate have different numbers of devices; one device has all of them."""

import contextlib
import math
from typing import Any, Callable, ContextManager, Dict, List, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.accumulation import Training
from tests.parity.scripts.data import CLASSES, FEATURES, VOCABULARY, samples
from tests.parity.scripts.models import OPTIMIZERS, cross_entropy, dense, initializer, weights
from tests.parity.scripts.optimizers import Inputs
from tests.parity.scripts.splits import minimize, parts

Scope = Callable[[], ContextManager[Any]]
MODELS: Dict[str, Callable[..., tf.Tensor]] = {}


def model(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Puts a model in the table under its name."""
    MODELS[function.__name__] = function
    return function


def scopes(ctx: Context, counts: Sequence[int]) -> List[Scope]:
    """Scopes of epl.replicate with these devices, of epl.split for negative numbers; of one number, the same twice."""
    if not ctx.planned:
        return [contextlib.suppress] * max(len(counts), 2)
    import epl

    strategies = [epl.replicate(count) if count > 0 else epl.split(-count) for count in counts]
    return [lambda one=one: one for one in strategies * (1 if len(counts) > 1 else 2)]


@model
def layers(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, first: Scope, second: Scope) -> tf.Tensor:
    """Two layers in each of two scopes."""
    with first():
        hidden = dense(dense(x, 16, "first", tf.nn.tanh), 16, "second", tf.nn.tanh)
    with second():
        return cross_entropy(y, dense(dense(hidden, 32, "third", tf.nn.relu), CLASSES, "out"))


@model
def around(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, first: Scope, second: Scope, third: Scope) -> tf.Tensor:
    """A scope between two others; what it computes is added to what goes past it. The loss weighs what it has found."""
    with first():
        hidden = dense(x, 16, "first", tf.nn.tanh)
    with second():
        middle = dense(dense(hidden, 32, "second", tf.nn.relu), 16, "third")
        penalty = tf.reduce_mean(tf.square(middle))
    with third():
        return cross_entropy(y, dense(tf.nn.tanh(hidden + middle), CLASSES, "out")) + 0.1 * penalty


@model
def tables(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, first: Scope, second: Scope) -> tf.Tensor:
    """A table with sparse gradients in each scope."""
    with first():
        words = tf.reduce_sum(tf.nn.embedding_lookup(weights("one", [VOCABULARY, 8]), ids), 1)
        hidden = dense(tf.concat([x, words], 1), 16, "hidden", tf.nn.tanh)
    with second():
        more = tf.reduce_sum(tf.nn.embedding_lookup(weights("two", [VOCABULARY, 16]), ids), 1)
        return cross_entropy(y, dense(hidden + more, CLASSES, "out"))


@model
def decayed(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, first: Scope, second: Scope) -> tf.Tensor:
    """Weight decay of all kernels, computed in the second scope."""
    loss = layers(x, ids, y, first, second)
    kernels = [v for v in tf.trainable_variables() if "kernel" in v.op.name]
    return loss + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in kernels])


def _convolved(inputs: tf.Tensor, channels: int, name: str) -> tf.Tensor:
    return tf.layers.conv2d(
        inputs, channels, 2, padding="same", activation=tf.nn.relu, name=name, kernel_initializer=initializer()
    )  # fmt: skip


@model
def convolutions(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, first: Scope, second: Scope) -> tf.Tensor:
    """A convolution in each scope."""
    with first():
        image = tf.reshape(x, [-1, 3, FEATURES // 3, 1])
        maps = _convolved(image, 6, "one")
    with second():
        maps = _convolved(maps, 8, "two")
        return cross_entropy(y, dense(tf.layers.flatten(tf.layers.max_pooling2d(maps, 2, 1)), CLASSES, "out"))


@model
def alexnet(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, first: Scope, second: Scope) -> tf.Tensor:
    """AlexNet of an eighth of the width: the convolutions in the first scope, the dense layers in the second."""
    relu, initial = tf.nn.relu, tf.glorot_uniform_initializer(seed=3)

    def conv(inputs: tf.Tensor, name: str, channels: int, size: int, stride: int = 1, padding: str = "same") -> Any:
        arguments = {"activation": relu, "kernel_initializer": initial, "name": name}
        return tf.layers.conv2d(inputs, channels, size, stride, padding, **arguments)

    def connected(inputs: tf.Tensor, name: str, units: int, activation: Any = None) -> tf.Tensor:
        return tf.layers.dense(inputs, units, activation, kernel_initializer=initial, name=name)

    with first():
        maps = tf.layers.max_pooling2d(conv(x, "conv1", 8, 11, 4, "valid"), 3, 2)
        maps = tf.layers.max_pooling2d(conv(maps, "conv2", 24, 5), 3, 2)
        maps = conv(conv(conv(maps, "conv3", 48, 3), "conv4", 32, 3), "conv5", 32, 3)
        maps = tf.layers.max_pooling2d(maps, 3, 2)
    with second():
        hidden = connected(tf.layers.flatten(maps), "fc6", 512, relu)
        return cross_entropy(y, connected(connected(hidden, "fc7", 512, relu), "fc8", 125))


def train(
    ctx: Context,
    name: str,
    counts: Sequence[int],
    optimizer: str = "momentum",
    clip: float = 0.0,
    factor: float = 1.0,
    apart: bool = False,
    **config: Any,
) -> None:
    """Trains on what is fed; scopes share devices unless `apart`; one device trains on `factor` times the loss."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=not apart, **config)
    inputs = Inputs()
    loss = MODELS[name](*inputs.tensors(), *scopes(ctx, counts))
    train_op = minimize(OPTIMIZERS[optimizer](), loss if ctx.planned else loss * factor, clip)
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])
        _record_variables(ctx, sess)


def read(ctx: Context, name: str, counts: Sequence[int], rows: int = 0, micro_batches: int = 1, **config: Any) -> None:
    """Trains on all batches of a dataset; `rows` of the stream are in each, those of a step by default."""
    ctx.init(annotate=False, pipeline__num_micro_batch=micro_batches, **config)
    rows = (rows or ctx.batch) // (micro_batches if ctx.planned else 1)
    stream = tuple(map(ctx.stream, samples()))
    inputs = tf.data.Dataset.from_tensor_slices(stream).batch(rows).make_one_shot_iterator().get_next()
    loss = MODELS[name](*inputs, *scopes(ctx, counts))
    train_op = minimize(OPTIMIZERS["momentum"](), loss)
    readers = max(ctx.local_replicas // ctx.together, 1) if ctx.planned else 1
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(math.ceil(len(stream[0]) / (rows * readers * (micro_batches if ctx.planned else 1)))):
            ctx.record(loss=sess.run([loss, train_op])[0])
        _record_variables(ctx, sess)


def accumulate(ctx: Context, name: str, counts: Sequence[int], steps: int, **config: Any) -> None:
    """The same as `train` with gradient accumulation."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, pipeline__num_micro_batch=steps, **config)
    inputs = Inputs()
    loss = MODELS[name](*inputs.tensors(), *scopes(ctx, counts))
    step = tf.train.get_or_create_global_step()
    training = Training(ctx, steps, [loss], OPTIMIZERS["momentum"](), global_step=step)
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=training.run(sess, loss, inputs.feed(ctx, data, number)))
        _record_variables(ctx, sess)


def saved(ctx: Context, counts: Sequence[int], path: str = "", **config: Any) -> None:
    """Begins with a checkpoint, if there is one, trains in a monitored session, and records the checkpoint it wrote."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, **config)
    inputs = Inputs()
    loss = MODELS["layers"](*inputs.tensors(), *scopes(ctx, counts))
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    data = samples()
    with ctx.saving_session(path) as sess:
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])


def evaluated(ctx: Context, counts: Sequence[int]) -> None:
    """Trains, and records what is fetched without training: scores, accuracy and loss of other rows."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    x, y = tf.placeholder(tf.float32, [None, FEATURES]), tf.placeholder(tf.int32, [None])
    first, second = scopes(ctx, counts)
    with first():
        hidden = dense(x, 16, "hidden", tf.nn.tanh)
    with second():
        logits = dense(hidden, CLASSES, "out")
        correct = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y)
        accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
        loss = cross_entropy(y, logits)
    train_op = OPTIMIZERS["momentum"]().minimize(loss)
    rows = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {x: ctx.step_rows(rows.x, number), y: ctx.step_rows(rows.y, number)}
            ctx.record(loss=sess.run([loss, train_op], feeds)[0])
        ctx.record(found=sess.run([logits, accuracy, loss], {x: rows.x[:7], y: rows.y[:7]}))
        ctx.results["variables"] = [{}]


def images(ctx: Context, counts: Sequence[int], dtype: str, steps: int = 5, **config: Any) -> None:
    """Trains AlexNet of an eighth of the width on random images."""
    ctx.init(annotate=False, **config)
    x, y = tf.placeholder(dtype, [None, 227, 227, 3]), tf.placeholder(tf.int32, [None])
    loss = alexnet(x, y, y, *scopes(ctx, counts))
    train_op = minimize(tf.train.MomentumOptimizer(0.01, 0.9), loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(steps):
            random = np.random.RandomState(number)
            rows = random.normal(size=(GLOBAL_BATCH, 227, 227, 3))
            labels = random.randint(0, 125, GLOBAL_BATCH)
            ctx.record(loss=sess.run([loss, train_op], {x: ctx.mine(rows), y: ctx.mine(labels)})[0])
        _record_variables(ctx, sess)


def _record_variables(ctx: Context, sess: tf.Session) -> None:
    """Records what the user fetches of each variable, and the shard of it on each local device."""
    ctx.results["variables"] = [sess.run({v.name.partition(":")[0]: v for v in tf.global_variables()})]
    if ctx.planned and any(hasattr(variable, "_epl_full") for variable in tf.global_variables()):
        ctx.results["parts"] = parts(sess)
