"""The translator of examples/moe: encoder and decoder, mixtures of experts with a capacity, a loss of their balance."""

import contextlib
import os
import sys
import zlib
from typing import Any

import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.pool import ROOT
from tests.parity.scripts.data import TOKENS, VOCABULARY, samples
from tests.parity.scripts.models import OPTIMIZERS

sys.path.append(os.path.join(ROOT, "examples", "moe"))

import translation_model

SIZES = translation_model.Sizes(
    VOCABULARY + 1, width=16, heads=2, hidden=512, layers=1, experts=4, every=1, capacity_factor=0.7, dropout=0.0
)
MIXTURES = 2
ALL_TO_ALLS = ("EplAllToAll", "EplAllToAllV")


def _same_values(getter: Any, name: str, *args: Any, **kwargs: Any) -> tf.Variable:
    """Weights begin with values that depend on their name and shape alone."""
    if not name.endswith("scale"):
        kwargs["initializer"] = tf.random_normal_initializer(stddev=0.2, seed=zlib.crc32(name.encode()) % 1000)
    return getter(name, *args, **kwargs)


def _model(ctx: Context, ids: tf.Tensor, gate: str) -> tf.Tensor:
    """The loss of sentences of which some end early."""
    scope: Any = contextlib.ExitStack()
    if ctx.planned:
        import epl

        scope = epl.split(ctx.replicas)
    numbers = tf.concat([ids + 1, tf.reverse(ids, [1]) + 1], 1)
    inside = tf.range(2 * TOKENS)[tf.newaxis] < TOKENS + 1 + tf.mod(ids[:, :1], TOKENS)
    source = tf.where(inside, numbers, tf.zeros_like(numbers))
    target = tf.mod(3 * numbers, VOCABULARY) + 1
    return translation_model.loss(SIZES._replace(gate=gate), source, target, scope, balance=0.1)[0]


def train(ctx: Context, gate: str, optimizer: str = "momentum", dtype: str = "float32", **config: Any) -> None:
    """Trains with weights of that type; the experts are dealt out to all devices of the job."""
    ctx.init(cluster__colocate_split_and_replicate=True, **config)
    ids = tf.placeholder(tf.int32, [GLOBAL_BATCH // (ctx.replicas if ctx.planned else 1), TOKENS], "ids")
    with tf.variable_scope("translator", custom_getter=_same_values, dtype=tf.as_dtype(dtype)):
        losses = ctx.towers(lambda rows: _model(ctx, rows, gate), [ids])
    loss = tf.add_n(losses) / len(losses) if len(losses) > 1 else losses[0]
    with tf.control_dependencies([loss]):  # which reads variables that the step writes
        train_op = ctx.minimize(losses, OPTIMIZERS[optimizer]())
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], {ids: ctx.step_rows(data.ids, number)})[0])
        moves = [op for op in sess.graph.get_operations() if op.type in ALL_TO_ALLS]  # of the first rank
        ctx.record(moves=len(moves), sent=sorted({op.inputs[0].dtype.name for op in moves}))
        variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
        ctx.results["variables"] = [sess.run(variables)]
