"""Models that compute with the rows of all replicas, and the collectives that a step of them runs for that."""

from collections import Counter
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.communicators import is_of_writes
from epl.parallel.plan.plan import Plan

WIDTH, ROWS = 8, 12  # rows of each replica

LossOf = Callable[[tf.Tensor], tf.Tensor]
ByKind = Dict[str, Tuple[int, int]]  # collective -> how many, and their bytes


def batch_norms(x: tf.Tensor) -> tf.Tensor:
    """Two of them, the second fused, each between layers."""
    hidden = tf.layers.batch_normalization(tf.layers.dense(x, 6), training=True)
    hidden = tf.reshape(tf.layers.dense(hidden, 12), [-1, 2, 2, 3])
    hidden = tf.layers.batch_normalization(tf.nn.relu(hidden), training=True)
    return tf.reduce_mean(tf.square(tf.layers.dense(hidden, 2)))


def batch_norm_of_data(x: tf.Tensor) -> tf.Tensor:
    """Through which no gradient flows."""
    return tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.batch_normalization(x, training=True), 3)))


def clip(x: tf.Tensor) -> tf.Tensor:
    """Each row of one view against all rows of the other, both ways."""
    scores = tf.matmul(tf.layers.dense(x, 5), tf.layers.dense(x, 5), transpose_b=True)
    labels = tf.range(tf.shape(x)[0])
    ways = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=one)
        for one in (scores, tf.transpose(scores))
    ]
    return tf.reduce_mean(ways[0]) + tf.reduce_mean(ways[1])


def views(x: tf.Tensor) -> tf.Tensor:
    """SimCLR: each of two views of each row against all views of all rows."""
    found = tf.concat([tf.layers.dense(x, 5), tf.layers.dense(x, 5)], 0)
    rows = tf.shape(x)[0]
    scores = tf.matmul(found, found, transpose_b=True) - 1e9 * tf.eye(2 * rows)
    partners = tf.concat([tf.range(rows) + rows, tf.range(rows)], 0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partners, logits=scores))


def masked(x: tf.Tensor) -> tf.Tensor:
    """A mean of the rows that count."""
    mask = tf.cast(x[:, 0] > 0, tf.float32)
    return tf.reduce_sum(mask * tf.reduce_sum(tf.square(tf.layers.dense(x, 3)), 1)) / (1 + tf.reduce_sum(mask))


def normalized(x: tf.Tensor) -> tf.Tensor:
    """By moments of the rows, of which one takes no gradient."""
    hidden = tf.layers.dense(x, 3)
    mean, variance = tf.nn.moments(hidden, [0])
    return tf.reduce_mean(tf.abs(tf.layers.dense((hidden - mean) / tf.sqrt(variance + 1e-3), 2)))


def codebook(x: tf.Tensor) -> tf.Tensor:
    """A step that writes a sum over rows, and puts rows into a bank."""
    hidden = tf.layers.dense(x, 4)
    sums, bank = (tf.get_variable(name, [5, 4], trainable=False) for name in ("sums", "bank"))
    ids = tf.cast(tf.abs(x[:, 0]) * 100, tf.int32) % 5
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, sums.assign(tf.math.unsorted_segment_sum(hidden, ids, 5)))
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.scatter_update(bank, ids, hidden))
    return tf.reduce_mean(tf.square(tf.layers.dense(hidden, 3)))


def two_stages(x: tf.Tensor) -> tf.Tensor:
    """Each with a batch norm; the loss is a mean of the rows that count."""
    with epl.replicate(1):
        hidden = tf.layers.batch_normalization(tf.layers.dense(x, 6), training=True)
    with epl.replicate(1):
        return masked(tf.layers.batch_normalization(tf.layers.dense(hidden, 5), training=True))


SYNC, ALL = {"batch_norm.sync": True}, {"replicate.batch": "all"}
MODELS: Dict[str, Tuple[LossOf, Dict[str, Any]]] = {
    "batch norms": (batch_norms, SYNC),
    "batch norm of data": (batch_norm_of_data, SYNC),
    "moving averages": (batch_norms, {}),
    "contrastive loss": (clip, ALL),
    "loss of two views": (views, ALL),
    "masked mean": (masked, ALL),
    "moments": (normalized, ALL),
    "codebook": (codebook, {}),
}


def build(loss_of: LossOf, annotate: bool = True) -> Tuple[tf.Tensor, tf.Operation]:
    """Builds a model, after `epl.init`: its rows, and the op that trains."""
    if annotate:
        epl.set_default_strategy(epl.replicate(1))
    x = tf.placeholder(tf.float32, [None, WIDTH], "x")
    loss = loss_of(x)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return x, tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def ran(x: tf.Tensor, train: tf.Operation, rows: int) -> ByKind:
    """The collectives of rows that ran on the first replica of this process in a step of so many rows."""
    metadata = tf.RunMetadata()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        fed = np.random.RandomState(0).normal(size=[rows, WIDTH])
        session.run(train, {x: fed}, options, metadata)
    graph = Graph.of(x.graph)
    assert graph is not None and graph.rewritten is not None
    rewrite = graph.rewritten
    of_first = {
        op.name: op
        for op in x.graph.get_operations()
        if op.type in COLLECTIVE_OP_TYPES and op.get_attr("rank") == rewrite.base_rank
    }
    times: Dict[str, int] = Counter()
    sizes: Dict[str, int] = Counter()
    for one in [one for device in metadata.step_stats.dev_stats for one in device.node_stats]:
        op = of_first.get(one.node_name)
        if op is None or not is_of_rows(rewrite.plan, op.get_attr("communicator").decode()):
            continue
        kind = COLLECTIVE_OP_TYPES[op.type].kind.replace("_", "-")
        times[kind] += 1
        for output in one.output:
            if op.outputs[output.slot].name not in numbers_of_rows(op, kind):
                shape = [dim.size for dim in output.tensor_description.shape.dim]
                sizes[kind] += op.outputs[output.slot].dtype.size * int(np.prod(shape))
    return {kind: (times[kind], sizes[kind]) for kind in times}


def numbers_of_rows(op: tf.Operation, kind: str) -> List[str]:
    """The output of a collective that says how many rows have come from each rank."""
    return [op.outputs[-1].name] if kind in ("all-gather", "all-to-all") else []


def is_of_rows(plan: Plan, communicator: str) -> bool:
    """Whether a communicator is one by which replicas compute with the rows of all."""
    starts = f"{plan.name}/batch_norm/", f"{plan.name}/whole_batch/"
    return communicator.startswith(starts) or is_of_writes(plan, communicator)


def ran_in_job() -> Dict[str, ByKind]:
    """The same of each model in turn, on the one replica of a worker."""
    found = {}
    for name, (loss_of, config) in MODELS.items():
        tf.reset_default_graph()
        epl.init(epl.Config(config))
        found[name] = ran(*build(loss_of), ROWS)
    return found
