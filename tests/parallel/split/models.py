"""Small whole models that are split in tests, written as for one device."""

import tensorflow.compat.v1 as tf

from tests.parallel.split.harness import Model

FLOAT = tf.float64  # so that rounding hides nothing


def weights(name, *shape):
    """A variable with an initial value of its own."""
    return tf.get_variable(name, shape, FLOAT, tf.random_normal_initializer(stddev=0.3, seed=len(name)))


def norm(x, name):
    """Layer normalization over the last dimension."""
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
        scale, shift = weights("scale", x.shape[-1].value), weights("shift", x.shape[-1].value)
        return (x - mean) * tf.rsqrt(variance + 1e-5) * scale + shift


def cross_entropy(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def classifier(hidden=32, classes=10):
    """dense + relu + dense, softmax cross entropy, accuracy."""
    x = tf.placeholder(FLOAT, [None, 12], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    with tf.variable_scope("m"):
        h = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights("w1", 12, hidden)), weights("b1", hidden)))
        logits = tf.nn.bias_add(tf.matmul(h, weights("kernel2", hidden, classes)), weights("bias2", classes))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), FLOAT))
    return Model(cross_entropy(logits, y), [logits, accuracy])


def attention(x, heads, size, name):
    """Self attention of [batch, positions, width], with its residual and norm."""
    width = x.shape[-1].value
    positions = x.shape[1].value
    with tf.variable_scope(name):
        flat = tf.reshape(x, [-1, width])

        def head(which):
            return tf.transpose(
                tf.reshape(tf.matmul(flat, weights(which, width, heads * size)), [-1, positions, heads, size]),
                [0, 2, 1, 3],
            )

        scores = tf.matmul(head("q"), head("key"), transpose_b=True) * size**-0.5
        mixed = tf.matmul(tf.nn.softmax(scores), head("value"))
        joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, heads * size])
        out = tf.reshape(tf.matmul(joined, weights("output", heads * size, width)), [-1, positions, width])
        return norm(x + out, "norm")


def feed_forward(x, hidden, name):
    width = x.shape[-1].value
    with tf.variable_scope(name):
        h = tf.nn.tanh(tf.tensordot(x, weights("inner", width, hidden), 1) + weights("shift", hidden))
        return norm(x + tf.tensordot(h, weights("outer_", hidden, width), 1) + weights("shift_2", width), "norm")


def transformer(heads=6, size=4, hidden=20, vocabulary=11, positions=5, width=8):
    """One encoder layer on token ids, and the tied softmax over the vocabulary at every position."""
    tokens = tf.placeholder(tf.int32, [None, positions], "tokens")
    table = weights("table", vocabulary, width)
    x = tf.nn.embedding_lookup(table, tokens) + weights("positions", positions, width)
    x = attention(x, heads, size, "attention")
    x = feed_forward(x, hidden, "ffn")
    logits = tf.matmul(tf.reshape(x, [-1, width]), table, transpose_b=True)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(tokens, [-1]), logits=logits)
    return Model(tf.reduce_mean(losses), [logits, tf.argmax(logits, -1)])


def one_hot(index, depth):
    return tf.one_hot(index, depth, dtype=FLOAT)


def mixture(experts=4, width=6, hidden=10, capacity=4, top=2, inner=False):
    """A mixture of experts in plain einsum: the gate picks two experts of a token, those that are full drop it."""
    x = tf.placeholder(FLOAT, [None, 8, width], "x")  # [groups, tokens, width]
    if inner:  # a layer in the middle of a model: its input has a gradient
        x = tf.nn.tanh(x * weights("before", width))
    gates = tf.nn.softmax(tf.einsum("gsm,me->gse", x, weights("gate", width, experts)))
    combine, left, taken = 0.0, gates, 0.0
    for _ in range(top):
        index = tf.argmax(left, -1, output_type=tf.int32)
        mask = one_hot(index, experts)
        place = (tf.cumsum(mask, 1, exclusive=True) + taken) * mask
        taken = taken + tf.reduce_sum(mask, 1, keepdims=True)
        mask *= tf.cast(tf.less(place, capacity), FLOAT)
        gate = tf.reduce_sum(gates * mask, -1, keepdims=True)
        position = one_hot(tf.cast(tf.reduce_sum(place, -1), tf.int32), capacity)
        combine += tf.expand_dims(gate * mask, -1) * tf.expand_dims(position, 2)
        left *= 1 - one_hot(index, experts)
    dispatch = tf.cast(tf.greater(combine, 0), FLOAT)
    sent = tf.einsum("gsec,gsm->egcm", dispatch, x)
    h = tf.nn.relu(tf.einsum("egcm,emh->egch", sent, weights("expert_in", experts, width, hidden)))
    back = tf.einsum("egch,ehm->egcm", h, weights("expert_out", experts, hidden, width))
    y = tf.einsum("gsec,egcm->gsm", combine, back)
    balance = tf.reduce_mean(tf.reduce_mean(gates, 1) * tf.reduce_mean(one_hot(tf.argmax(gates, -1), experts), 1))
    return Model(tf.reduce_mean(tf.square(y - x)) + balance, [y])
