"""Mixed precision under a plan, and the same on one device: a tower for each part of the rows, all in half precision.

The rounding of float16 depends on how the rows are divided, so the reference divides them as the plan does.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts.data import CLASSES, FEATURES, TOKENS, VOCABULARY, Samples, samples
from tests.parity.scripts.models import cross_entropy, initializer

STEPS = 6
ROWS = 16  # of all parts of a step
OPTIMIZERS: Dict[str, Callable[[], tf.train.Optimizer]] = {
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.05),
    "slow_sgd": lambda: tf.train.GradientDescentOptimizer(0.025),
}
Scope = Callable[[], Any]


def _dense(x: tf.Tensor, units: int, name: str, activation: Any = None) -> tf.Tensor:
    return tf.layers.dense(x, units, activation, name=name, kernel_initializer=initializer())


def _layers(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, scope: Scope) -> tf.Tensor:
    with scope():
        hidden = _dense(_dense(x, 8, "first", tf.nn.relu), 8, "second", tf.nn.tanh)
    with scope():
        return cross_entropy(y, _dense(_dense(hidden, 8, "third", tf.nn.sigmoid), CLASSES, "out"))


def _embedding(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, scope: Scope) -> tf.Tensor:
    with scope():
        table = tf.get_variable("table", [VOCABULARY, 6], initializer=initializer())
        hidden = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, TOKENS * 6])
    with scope():
        return cross_entropy(y, _dense(_dense(hidden, 8, "first", tf.nn.relu), CLASSES, "out"))


def _recurrent(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, scope: Scope) -> tf.Tensor:
    with scope():
        steps = tf.reshape(x, [-1, 4, FEATURES // 4])
        cell = tf.nn.rnn_cell.GRUCell(6, kernel_initializer=initializer())
        _, state = tf.nn.dynamic_rnn(cell, steps, dtype=tf.float32)
    with scope():
        return cross_entropy(y, _dense(state, CLASSES, "out"))


MODELS = {"layers": _layers, "embedding": _embedding, "recurrent": _recurrent}


def train(
    ctx: Context,
    name: str,
    parts: int = 1,
    stages: int = 1,
    replicas: int = 1,
    micro_batches: int = 1,
    optimizer: str = "momentum",
    clip: Optional[str] = None,
    resource: bool = False,
    overflow_at: int = -1,
    good_steps: float = 0.0,
    **config: Any,
) -> None:
    """Trains a model in mixed precision, its gradients clipped or not.

    Args:
        ctx: the run.
        name: of the model.
        parts: the towers of the reference; 1 under the plan.
        stages, replicas, micro_batches: of the plan.
        optimizer: its name.
        clip: "norm" or "value".
        resource: whether variables are resources.
        overflow_at: the step in which the last rows overflow; only the last part of the rows holds them.
        good_steps: how many good steps there were before.
        config: further configuration.
    """
    runs = micro_batches if stages == 1 else 1  # of a training step
    if stages > 1:
        ctx.stages = stages
        ctx.devices = stages * replicas
    ctx.init(
        annotate=stages == 1,
        amp__level="O1",
        cluster__num_virtual_devices=ctx.devices,
        pipeline__num_micro_batch=micro_batches,
        **config,
    )
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    scope = ctx.scope if stages > 1 else _no_scope
    pieces = zip(*[tf.split(tensor, parts) if parts > 1 else [tensor] for tensor in (x, ids, y)])
    losses = []
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE, use_resource=resource):
        for piece in pieces:
            losses.append(MODELS[name](*piece, scope))
    loss = tf.add_n(losses) / float(parts) if parts > 1 else losses[0]
    train_op = _train_op(losses, OPTIMIZERS[optimizer](), clip)
    data = samples(STEPS * ROWS // 16)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        if good_steps:
            variable = next(v for v in tf.global_variables() if v.op.name == "good_steps")
            variable.load(good_steps, sess)
        for step in range(STEPS):
            seen = []
            for rows in _runs(_rows(ctx, data, step, step == overflow_at), runs):
                feed = {x: rows.x, ids: rows.ids, y: rows.y}
                seen.append(sess.run([loss, train_op], feed)[0])
            ctx.record(loss=0.0 if step == overflow_at else np.mean(seen))
        ctx.record_variables(sess)


@contextlib.contextmanager
def _no_scope() -> Iterator[None]:
    yield


def _train_op(losses: List[tf.Tensor], optimizer: tf.train.Optimizer, clip: Optional[str]) -> tf.Operation:
    variables = tf.trainable_variables()
    global_step = tf.train.get_or_create_global_step()
    if clip is None and len(losses) == 1:
        return optimizer.minimize(losses[0], global_step)
    towers = [tf.gradients(loss, variables, gate_gradients=True) for loss in losses]
    gradients = [_mean(same) for same in zip(*towers)]
    if clip == "norm":
        gradients = tf.clip_by_global_norm(gradients, 0.2)[0]
    if clip == "value":
        gradients = [tf.clip_by_value(tf.convert_to_tensor(gradient), -0.05, 0.05) for gradient in gradients]
    return optimizer.apply_gradients(zip(gradients, variables), global_step)


def _mean(same: Sequence[Any]) -> Any:
    if len(same) == 1:
        return same[0]
    if isinstance(same[0], tf.IndexedSlices):
        values = tf.concat([gradient.values for gradient in same], 0) / float(len(same))
        return tf.IndexedSlices(values, tf.concat([g.indices for g in same], 0), same[0].dense_shape)
    return tf.add_n(list(same)) / float(len(same))


def _rows(ctx: Context, data: Samples, step: int, overflows: bool) -> Samples:
    """This process's rows of a step."""
    x = data.x[step * ROWS : (step + 1) * ROWS].copy()
    if overflows:
        x[-1] = 1e30
    size = ROWS // ctx.workers
    first = step * ROWS + ctx.worker * size
    own = slice(first, first + size)
    return Samples(x[ctx.worker * size : (ctx.worker + 1) * size], data.ids[own], data.y[own])


def _runs(rows: Samples, count: int) -> Iterator[Samples]:
    """The rows of each run of a training step."""
    size = len(rows.x) // count
    for run in range(count):
        yield Samples(*[values[run * size : (run + 1) * size] for values in rows])
