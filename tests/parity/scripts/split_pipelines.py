"""Pipelines whose stages have epl.split in them: wide layers, those of a Transformer, tables of words, a wide head."""

import os
from typing import Any, Callable, List, Sequence

import tensorflow.compat.v1 as tf

from epl.parallel.plan.replica_groups import ReplicaGroups
from tests.parity.context import Context
from tests.parity.scripts import pipelines
from tests.parity.scripts.data import CLASSES, TOKENS, VOCABULARY, Samples
from tests.parity.scripts.models import OPTIMIZERS, cross_entropy, dense, weights
from tests.parity.scripts.pipeline_models import Block, Inputs, model, placeholders

WIDTH, HEADS, SIZE = 64, 4, 16
WIDE = 1003  # columns that no number of devices here divides
BIG = 4099  # rows of a table


def _wide(inputs: tf.Tensor, units: int, name: str, activation: Callable = None, use_bias: bool = True) -> tf.Tensor:
    """A dense layer whose outputs are about as large as its many inputs."""
    initial = tf.random_normal_initializer(stddev=0.05, seed=3)
    return tf.layers.dense(inputs, units, activation, use_bias, kernel_initializer=initial, name=name)


def _two_layers(hidden: tf.Tensor, name: str) -> tf.Tensor:
    """A wide layer and a narrow one: columns, then rows."""
    with tf.variable_scope(name):
        return _wide(_wide(hidden, 512, "wide", tf.nn.tanh), WIDTH, "narrow")


def _split_head(inputs: Inputs) -> Block:
    """The loss of a wide head in a split."""

    def head(hidden: tf.Tensor) -> tf.Tensor:
        with inputs.split():
            labels = tf.mod(inputs.ids[:, 0] * 97 + inputs.ids[:, 1] * 31 + inputs.ids[:, 2], WIDE)
            return cross_entropy(labels, dense(hidden, WIDE, "head"))

    return head


@model
def wide_layers(inputs: Inputs) -> List[Block]:
    """Replicated layers around wide ones, and a wide head: a split in each of two stages."""

    def first(_: None) -> tf.Tensor:
        return dense(inputs.x, WIDTH, "first", tf.nn.tanh)

    def wide(hidden: tf.Tensor) -> tf.Tensor:
        with inputs.split():
            hidden += _two_layers(hidden, "middle")
        return tf.nn.tanh(hidden)

    def third(hidden: tf.Tensor) -> tf.Tensor:
        return dense(hidden, WIDTH, "third", tf.nn.tanh)

    return [first, wide, third, _split_head(inputs)]


@model
def resource_layers(inputs: Inputs) -> List[Block]:
    """The same with resource variables."""

    def of_resources(block: Block) -> Block:
        def build(hidden: tf.Tensor) -> tf.Tensor:
            with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
                return block(hidden)

        return build

    return [of_resources(block) for block in wide_layers(inputs)]


@model
def wide_head(inputs: Inputs) -> List[Block]:
    """Replicated features in all stages but the last, which is a split head."""
    return [
        lambda _: dense(inputs.x, WIDTH, "first", tf.nn.tanh),
        lambda hidden: dense(hidden, WIDTH, "second", tf.nn.tanh),
        lambda hidden: dense(hidden, WIDTH, "third", tf.nn.tanh),
        _split_head(inputs),
    ]


@model
def transformer(inputs: Inputs) -> List[Block]:
    """Everything is split: a table of words, two layers of attention by heads, scores of words."""

    def embed(_: None) -> tf.Tensor:
        with inputs.split():
            words = tf.get_variable("words", [VOCABULARY, WIDTH], initializer=tf.random_normal_initializer(0, 0.3, 5))
            return tf.nn.embedding_lookup(words, inputs.ids) + weights("places", [TOKENS, WIDTH])

    def layer(name: str) -> Block:
        def build(hidden: tf.Tensor) -> tf.Tensor:
            with inputs.split(), tf.variable_scope(name):
                hidden += _attention(hidden)
                return hidden + _two_layers(hidden, "inner")

        return build

    def predict(hidden: tf.Tensor) -> tf.Tensor:
        with inputs.split():
            scores = _wide(tf.reshape(hidden, [-1, WIDTH]), WIDE, "scores")
            return cross_entropy(tf.reshape(tf.mod(inputs.ids * 97, WIDE), [-1]), scores)

    return [embed, layer("lower"), layer("upper"), predict]


def _attention(hidden: tf.Tensor) -> tf.Tensor:
    # A bias of the keys changes nothing: its gradient is rounding alone.
    parts = [_wide(hidden, HEADS * SIZE, name, use_bias=name != "key") for name in ("query", "key", "value")]
    query, key, value = [
        tf.transpose(tf.reshape(part, [-1, TOKENS, HEADS, SIZE]), [0, 2, 1, 3]) for part in parts
    ]  # fmt: skip
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / SIZE**0.5)
    mixed = tf.reshape(tf.transpose(tf.matmul(scores, value), [0, 2, 1, 3]), [-1, TOKENS, HEADS * SIZE])
    return _wide(mixed, WIDTH, "joined")


@model
def big_table(inputs: Inputs) -> List[Block]:
    """A table with sparse gradients that is split; weight decay of all weights outside of the split."""

    def look_up(_: None) -> tf.Tensor:
        with inputs.split():
            table = weights("table", [BIG, WIDTH])
            return tf.reduce_sum(tf.nn.embedding_lookup(table, tf.mod(inputs.ids * 997, BIG)), 1)

    def predict(hidden: tf.Tensor) -> tf.Tensor:
        loss = cross_entropy(inputs.y, dense(hidden, CLASSES, "out"))
        kernels = [v for v in tf.trainable_variables() if "kernel" in v.op.name]
        return loss + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in kernels])

    def middle(name: str) -> Block:
        def build(hidden: tf.Tensor) -> tf.Tensor:
            with inputs.split():
                return tf.nn.tanh(_two_layers(tf.nn.tanh(hidden), name))

        return build

    return [look_up, middle("second"), middle("third"), predict]


@model
def tied_table(inputs: Inputs) -> List[Block]:
    """A table of the first stage that makes the scores of the last one."""

    def table() -> tf.Variable:
        with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
            return weights("table", [WIDE, WIDTH])

    def look_up(_: None) -> tf.Tensor:
        with inputs.split():
            return tf.reduce_sum(tf.nn.embedding_lookup(table(), tf.mod(inputs.ids * 53, WIDE)), 1)

    def predict(hidden: tf.Tensor) -> tf.Tensor:
        with inputs.split():
            labels = tf.mod(inputs.ids[:, 0] * 97 + inputs.ids[:, 1], WIDE)
            return cross_entropy(labels, tf.matmul(hidden, table(), transpose_b=True))

    return [
        look_up,
        lambda hidden: dense(hidden, WIDTH, "second", tf.nn.tanh),
        lambda hidden: dense(hidden, WIDTH, "third", tf.nn.tanh),
        predict,
    ]


def train(ctx: Context, **arguments: Any) -> None:
    """`pipelines.train` of a model above; records which variables are held in parts."""
    pipelines.train(ctx, **arguments)
    if ctx.planned:
        from epl.ir.graph import Graph

        graph = Graph.get()
        ctx.results["held"] = sorted(held.full_name for held in graph.state_of(ReplicaGroups).shards.values())


def read(ctx: Context, **arguments: Any) -> None:
    """`pipelines.read` of a model above."""
    pipelines.read(ctx, **arguments)


def accumulated(ctx: Context, **arguments: Any) -> None:
    """`pipelines.accumulated` of a model above: what `train` must equal."""
    pipelines.accumulated(ctx, **arguments)


def uneven(ctx: Context, name: str, workers: Sequence[int], optimizer: str, **pipeline: Any) -> None:
    """Trains a model above in processes that are fed different numbers of rows."""
    plan = pipelines.Pipeline(ctx, **pipeline)
    inputs = placeholders()
    with tf.variable_scope("net"):
        loss = plan.loss(name, inputs)
    train_op = OPTIMIZERS[optimizer]().minimize(loss, tf.train.get_or_create_global_step())
    begin, size = (sum(workers[: ctx.worker]), workers[ctx.worker]) if ctx.planned else (0, sum(workers))
    if ctx.planned:
        import epl

        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(pipelines.STEPS):
            first = step * pipelines.STEP_ROWS + begin
            rows = Samples(*[values[first : first + size] for values in pipelines.ALL_ROWS])
            ctx.record(loss=sess.run([loss, train_op], pipelines.feed(inputs, rows))[0])
        ctx.record_variables(sess)


def saved(ctx: Context, name: str, optimizer: str, path: str = "", **pipeline: Any) -> None:
    """Begins with a checkpoint, if there is one, trains, and records what is in the checkpoint that it writes."""
    plan = pipelines.Pipeline(ctx, **pipeline)
    inputs = placeholders()
    with tf.variable_scope("net"):
        loss = plan.loss(name, inputs)
    train_op = OPTIMIZERS[optimizer]().minimize(loss, tf.train.get_or_create_global_step())
    saver = tf.train.Saver()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        if path:
            saver.restore(sess, path)
        for step in range(pipelines.STEPS):
            ctx.record(loss=sess.run([loss, train_op], pipelines.feed(inputs, plan.rows(step)))[0])
        written = saver.save(sess, os.path.join(ctx.temporary_directory(), "model"))
    if not ctx.worker:  # the others do not write what all hold
        ctx.record_checkpoint(written)
