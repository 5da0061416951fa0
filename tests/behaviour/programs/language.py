"""Language: ELECTRA, XLNet, OpenNMT-tf."""

import re
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests.behaviour.programs.base import ROWS, dense, fresh, integers, numbers, program, train, weights
from tests.parity.context import GLOBAL_BATCH, STEPS, Context

WORDS, LENGTH, WIDTH, MASKED = 13, 6, 8, 2


def _attend(x: tf.Tensor, name: str) -> tf.Tensor:
    """Self-attention with one head, and a layer norm."""
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
        query, key, value = [tf.tensordot(x, weights(part, WIDTH, WIDTH), 1) for part in ("query", "key", "value")]
        scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / np.sqrt(WIDTH))
        x = x + dense(tf.matmul(scores, value), WIDTH, "out")
        mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
        return (
            (x - mean)
            * tf.rsqrt(variance + 1e-6)
            * tf.get_variable("scale", [WIDTH], initializer=tf.ones_initializer())
        )


class _DecayedAdam(tf.train.Optimizer):
    """Adam with decay of weights, which writes variables and moments itself, as BERT and ELECTRA do."""

    def __init__(self, rate: Any, decay: float = 0.01) -> None:
        super().__init__(False, "DecayedAdam")
        self._rate, self._decay = rate, decay

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> tf.Operation:
        writes = []
        for grad, var in grads_and_vars:
            if grad is None:
                continue
            grad = tf.convert_to_tensor(grad)
            name = var.op.name
            m, v = [
                tf.get_variable(name + kind, var.shape, initializer=tf.zeros_initializer(), trainable=False)
                for kind in ("/m", "/v")
            ]
            next_m, next_v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * tf.square(grad)
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if not re.search("scale|bias", name):
                update += self._decay * var
            depth = 0.5 if "generator" in name else 1.0
            writes += [var.assign(var - depth * self._rate * update), m.assign(next_m), v.assign(next_v)]
        return tf.group(*writes)


@program
def electra(ctx: Context) -> None:
    """A generator fills masked words by sampling; a discriminator, with the same table, finds them."""
    ids = tf.placeholder(tf.int32, [None, LENGTH], "input_ids")
    places = tf.placeholder(tf.int32, [None, MASKED], "masked_lm_positions")
    masked = tf.placeholder(tf.int32, [None, MASKED], "masked_lm_ids")
    noise = tf.placeholder(tf.float32, [None, MASKED, WORDS], "uniform")
    batch = tf.shape(ids)[0]
    table = weights("electra/embeddings", WORDS, WIDTH)

    flat = tf.reshape(tf.range(batch)[:, None] * LENGTH + places, [-1])
    holes = tf.reshape(tf.reduce_max(tf.one_hot(places, LENGTH, dtype=tf.int32), 1), [-1, LENGTH])
    inputs = ids * (1 - holes)
    hidden = _attend(tf.nn.embedding_lookup(table, inputs), "generator")
    at_holes = tf.gather(tf.reshape(hidden, [-1, WIDTH]), flat)
    logits = tf.reshape(tf.matmul(at_holes, table, transpose_b=True), [-1, MASKED, WORDS])
    logits += tf.get_variable("generator/output_bias", [WORDS], initializer=tf.zeros_initializer())
    labels = tf.one_hot(masked, WORDS)
    generator_loss = tf.reduce_mean(-tf.reduce_sum(tf.nn.log_softmax(logits) * labels, -1))

    gumbel = -tf.log(-tf.log(noise))
    sampled = tf.stop_gradient(tf.argmax(tf.nn.softmax(logits + gumbel), -1, output_type=tf.int32))
    filled = tf.reshape(
        tf.tensor_scatter_nd_update(tf.reshape(inputs, [-1]), flat[:, None], tf.reshape(sampled, [-1])), [-1, LENGTH]
    )
    wrong = tf.cast(tf.not_equal(filled, ids), tf.float32)
    found = dense(_attend(tf.nn.embedding_lookup(table, filled), "discriminator"), 1, "discriminator/head")[:, :, 0]
    loss = generator_loss + 5.0 * tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=wrong, logits=found))

    step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(0.02, step, 20, 0.0)
    rate = tf.where(step < 2, 0.02 * (tf.cast(step, tf.float32) + 1) / 3, rate)
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    train_op = _DecayedAdam(rate).apply_gradients(list(zip(gradients, variables)))
    with tf.control_dependencies([train_op]):
        train_op = step.assign(step + 1).op
    text = integers(WORDS - 1, ROWS, LENGTH) + 1
    where = np.argsort(numbers(ROWS, LENGTH, seed=5), 1)[:, :MASKED].astype(np.int32)
    uniform = np.random.RandomState(7).uniform(0.01, 0.99, [ROWS, MASKED, WORDS]).astype(np.float32)
    rows = {ids: text, places: where, masked: np.take_along_axis(text, where, 1), noise: uniform}
    train(ctx, loss, train_op, rows)


def _relative(x: tf.Tensor) -> tf.Tensor:
    """Shifts row i of [query, place, batch] by i places."""
    size = tf.shape(x)
    x = tf.reshape(x, [size[1], size[0], size[2]])
    x = tf.slice(x, [1, 0, 0], [-1, -1, -1])
    return tf.reshape(x, [size[0], size[1] - 1, size[2]])


def _stream(heads: tf.Tensor, parts: Any, biases: Any, blocked: tf.Tensor) -> tf.Tensor:
    keys, values, relative = parts
    heads = dense(heads, WIDTH, "q")
    score = tf.einsum("ibd,jbd->ijb", heads + biases[0], keys)
    score += _relative(tf.einsum("ibd,jbd->ijb", heads + biases[1], relative))[:, :LENGTH]
    return tf.einsum("ijb,jbd->ibd", tf.nn.softmax(score - 1e30 * blocked, axis=1), values)


@program
def xlnet(ctx: Context) -> None:
    """Two streams of attention with relative places; the batch is the second dimension of all tensors."""
    ids = tf.placeholder(tf.int32, [None, LENGTH], "input_k")
    order = tf.placeholder(tf.float32, [None, LENGTH, LENGTH], "perm_mask")
    words = tf.transpose(ids)  # [length, batch]
    mask = tf.transpose(order, [1, 2, 0])
    batch = tf.shape(words)[1]
    table = weights("model/transformer/word_embedding", WORDS, WIDTH)
    content = tf.nn.embedding_lookup(table, words)
    query = tf.tile(weights("model/transformer/mask_emb", 1, 1, WIDTH), [LENGTH, batch, 1])
    places = tf.range(LENGTH, -LENGTH, -1.0)
    waves = tf.einsum("i,d->id", places, 1 / (10 ** (tf.range(0, WIDTH, 2.0) / WIDTH)))
    waves = tf.tile(tf.concat([tf.sin(waves), tf.cos(waves)], -1)[:, None], [1, batch, 1])
    by_word, by_place = weights("r_w_bias", WIDTH), weights("r_r_bias", WIDTH)
    for layer in range(2):
        with tf.variable_scope("layer_%d" % layer):
            keys, values, relative = [
                tf.einsum("ibd,de->ibe", x, weights(name, WIDTH, WIDTH))
                for x, name in ((content, "k"), (content, "v"), (waves, "r"))
            ]
            with tf.variable_scope("streams", reuse=tf.AUTO_REUSE):
                own = mask * (1 - tf.eye(LENGTH))[:, :, None]
                content, query = [
                    tf.tanh(heads + _stream(heads, (keys, values, relative), (by_word, by_place), blocked))
                    for heads, blocked in ((content, own), (query, 0.999 * mask))
                ]
    logits = tf.einsum("ibd,nd->ibn", query, table)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=words, logits=logits)
    loss = tf.reduce_mean(tf.reduce_mean(losses, 0))
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdamOptimizer(tf.train.exponential_decay(0.01, step, 2, 0.9), epsilon=1e-4)
    pairs = optimizer.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.25)
    train_op = optimizer.apply_gradients(list(zip(clipped, [variable for _, variable in pairs])), step)
    seen = np.argsort(numbers(ROWS, LENGTH, seed=6), 1)
    blocked = (seen[:, :, None] < seen[:, None, :]).astype(np.float32)
    train(ctx, loss, train_op, {ids: integers(WORDS, ROWS, LENGTH), order: blocked})


@program
def opennmt(ctx: Context) -> None:
    """Batches by length from tf.data, and gradients that the script adds up over two batches."""
    lengths = 2 + integers(3, ROWS, seed=4)
    words = integers(WORDS - 1, ROWS, LENGTH) + 1
    words *= (np.arange(LENGTH) < np.repeat(lengths[::GLOBAL_BATCH], GLOBAL_BATCH)[:, None]).astype(np.int32)
    mine = np.concatenate([ctx.step_rows(words, step) for step in range(STEPS)])
    data = tf.data.Dataset.from_tensor_slices(mine).map(lambda row: tf.boolean_mask(row, row > 0))
    data = data.map(lambda row: {"ids": row, "length": tf.size(row)})
    data = data.apply(
        tf.data.experimental.group_by_window(
            lambda row: tf.constant(0, tf.int64),
            lambda key, rows: rows.padded_batch(ctx.batch, {"ids": [None], "length": []}),
            window_size=ctx.batch,
        )
    )
    iterator = tf.data.make_initializable_iterator(data)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    features = iterator.get_next()
    table = weights("encoder/w_embs", WORDS, WIDTH)
    outputs, (_, hidden) = tf.nn.dynamic_rnn(
        tf.nn.rnn_cell.LSTMCell(WIDTH, initializer=fresh()),
        tf.nn.embedding_lookup(table, features["ids"]),
        features["length"],
        dtype=tf.float32,
    )
    logits = dense(tf.concat([hidden, tf.reduce_mean(outputs, 1)], -1), WORDS, "decoder/generator")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=features["ids"][:, 0], logits=logits))

    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdamOptimizer(0.02)
    pairs = optimizer.compute_gradients(loss)
    with tf.variable_scope("accumulators"):
        count = tf.get_variable("count", [], tf.int64, tf.zeros_initializer(), trainable=False)
        sums = [
            tf.get_variable(variable.op.name, variable.shape, initializer=tf.zeros_initializer(), trainable=False)
            for _, variable in pairs
        ]
    added = [one.assign_add(gradient) for one, (gradient, _) in zip(sums, pairs)]
    with tf.control_dependencies(added):
        number = count.assign_add(1)

    def apply() -> tf.Operation:
        with tf.control_dependencies(added):
            means = [(one.read_value() if hasattr(one, "read_value") else one) / 2.0 for one in sums]
            applied = optimizer.apply_gradients([(mean, variable) for mean, (_, variable) in zip(means, pairs)], step)
        with tf.control_dependencies([applied]):
            return tf.group(*[one.assign(tf.zeros_like(one)) for one in sums])

    train_op = tf.cond(tf.equal(number % 2, 0), apply, tf.no_op)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for _ in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op])[0])
        ctx.record_variables(sess)
