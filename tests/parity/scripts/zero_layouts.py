"""Pipelines whose weights lie in parts on the replicas of each stage: checkpoints, and what runs beside training."""

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts import zero
from tests.parity.scripts.data import Samples
from tests.parity.scripts.models import OPTIMIZERS
from tests.parity.scripts.pipeline_models import placeholders
from tests.parity.scripts.pipelines import ALL_ROWS, STEPS, Pipeline, feed


def saved(ctx: Context, path: str = "", name: str = "mlp", **pipeline: Any) -> None:
    """Begins with a checkpoint, if there is one, trains in a monitored session, and records the checkpoint it wrote."""
    plan = Pipeline(ctx, **pipeline)
    inputs = placeholders()
    with tf.variable_scope("net"):
        loss = plan.loss(name, inputs)
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    with ctx.saving_session(path, STEPS) as sess:
        for step in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], feed(inputs, plan.rows(step)))[0])


def beside(ctx: Context, name: str, **pipeline: Any) -> None:
    """Evaluates, computes with weights and assigns to them, before, between and after the steps."""
    plan = Pipeline(ctx, **pipeline)
    inputs = placeholders()
    with tf.variable_scope("net"):
        loss = plan.loss(name, inputs)
    variables = tf.trainable_variables()
    first, last = variables[0], variables[-1]
    doubled = first.assign(first * 2.0)
    before = tf.norm(first)
    train_op = OPTIMIZERS["momentum"]().minimize(loss, tf.train.get_or_create_global_step())
    value = tf.placeholder(tf.float32, last.shape)
    given = last.assign(value)
    after = tf.norm(first) * tf.norm(last)
    rows = feed(inputs, Samples(*[values[:7] for values in ALL_ROWS]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(found=sess.run([before, after, loss], rows))
        for step in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], feed(inputs, plan.rows(step)))[0])
            if step == 2:
                sess.run(doubled)
                sess.run(given, {value: np.full(last.shape.as_list(), 0.25)})
                ctx.record(found=sess.run([before, after, loss], rows))
        ctx.record(found=sess.run([before, after, loss], rows))
        ctx.record_variables(sess)


def offloaded(ctx: Context, **arguments: Any) -> None:
    """A model of `zero`, and a record of where weights are gathered and how many copies there are."""
    zero.train(ctx, **arguments)
    if ctx.planned:
        from epl.utils import tf_compat  # not in the process of a plain run

        nodes = tf_compat.full_graph_def(tf.get_default_graph()).node
        gathers = [node for node in nodes if node.op == "EplAllGather" and "/shown/" not in node.name]
        ctx.record(
            wholes=sorted({node.device for node in gathers}), copies=sum("EPL_OFFLOAD/" in node.name for node in nodes)
        )
