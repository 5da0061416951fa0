"""A classifier with a split head in an Estimator: trained, evaluated, asked, exported; plain TensorFlow loads it."""

from typing import Any, Dict, List

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense
from tests.parity.scripts.splits import OPTIMIZERS, WIDE, annotations

BEST = 3
ASKED = 7  # rows


def _model(ctx: Context, x: tf.Tensor) -> Dict[str, tf.Tensor]:
    """What is predicted of rows."""
    replicate, split = annotations(ctx)
    with replicate():
        features = dense(x, 16, "features", tf.nn.tanh)
    with split():
        logits = tf.identity(dense(features, WIDE, "head"), "logits")
        return {
            "logits": logits,
            "class": tf.argmax(logits, 1),
            "best": tf.nn.top_k(logits, BEST).indices,
            "probability": tf.reduce_max(tf.nn.softmax(logits), 1),
        }


def _labels(rows: np.ndarray) -> np.ndarray:
    return (np.abs(rows[:, 0]) * 1000).astype(np.int32) % WIDE


def estimator(ctx: Context) -> None:
    """Trains; the first process evaluates, predicts and exports what it has trained."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)

    def model_fn(features: Dict[str, tf.Tensor], labels: tf.Tensor, mode: str) -> tf.estimator.EstimatorSpec:
        found = _model(ctx, features["x"])
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, found)
        loss = cross_entropy(labels, found["logits"])
        metrics = {
            "accuracy": tf.metrics.accuracy(labels, found["class"]),
            "among": tf.metrics.mean(tf.nn.in_top_k(found["logits"], labels, WIDE // 2)),
        }
        train_op = None
        if mode == tf.estimator.ModeKeys.TRAIN:
            train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, found, loss, train_op, metrics)

    def inputs(rows: np.ndarray, batch: int) -> Any:
        return lambda: tf.data.Dataset.from_tensor_slices(({"x": rows}, _labels(rows))).batch(batch)

    data = samples().x
    trainer = tf.estimator.Estimator(model_fn, ctx.temporary_directory())
    trainer.train(inputs(ctx.stream(data), ctx.batch), steps=STEPS)
    if ctx.worker > 0:
        return
    ctx.record(metrics=trainer.evaluate(inputs(data[: 4 * ASKED], ASKED)))
    ctx.record(predicted=_together(list(trainer.predict(inputs(data[:ASKED], ASKED)))))
    receive = tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.placeholder(tf.float32, [None, FEATURES])}
    )
    ctx.record(exported=trainer.export_saved_model(ctx.temporary_directory(), receive).decode())


def _together(rows: List[Dict[str, np.ndarray]]) -> Dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def served(ctx: Context, exported: str) -> None:
    """What a saved model predicts."""
    with tf.Session() as sess:
        signature = tf.saved_model.load(sess, ["serve"], exported).signature_def["serving_default"]
        outputs = {name: info.name for name, info in signature.outputs.items()}
        ctx.record(predicted=sess.run(outputs, {signature.inputs["x"].name: samples().x[:ASKED]}))


def trained_and_frozen(ctx: Context) -> None:
    """Trains in a session; records what its graph with the variables as constants is, and what it computes."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    data = samples().x
    x, y = tf.placeholder(tf.float32, [None, FEATURES], "x"), tf.placeholder(tf.int32, [None])
    loss = cross_entropy(y, _model(ctx, x)["logits"])
    train_op = OPTIMIZERS["adam"]().minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            rows = ctx.step_rows(data, number)
            ctx.record(loss=sess.run([loss, train_op], {x: rows, y: _labels(rows)})[0])
        frozen = tf.graph_util.convert_variables_to_constants(sess, sess.graph_def, ["logits"])
    ctx.record(nodes=sorted((node.name, node.op) for node in frozen.node))
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        with tf.Session(graph=graph) as sess:
            ctx.record(logits=sess.run("logits:0", {"x:0": data[:ASKED]}))
