"""Models with epl.split: heads, embeddings, encoders and experts, each as it is written for one device."""

import contextlib
import functools
import itertools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ops.adam_weight_decay_optimizer import AdamWeightDecayOptimizer
from epl.utils import tf_compat
from tests.parity.context import STEPS, Context
from tests.parity.scripts import models
from tests.parity.scripts.accumulation import CHANGES, Training
from tests.parity.scripts.data import CLASSES, FEATURES, TOKENS, VOCABULARY, samples
from tests.parity.scripts.models import cross_entropy, dense, weights
from tests.parity.scripts.optimizers import Inputs

WIDE = 1003  # columns that no number of devices here divides


class Layerwise(tf.train.Optimizer):
    """Steps that are as long as a part of the weights' own length, variable by variable."""

    def __init__(self, rate: float) -> None:
        super().__init__(False, "Layerwise")
        self._rate = rate

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        return self._step(grad, var)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Operation:
        return self._step(tf.convert_to_tensor(grad), var)

    def _step(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        ratio = tf.norm(var) / (tf.norm(grad) + 1e-6)
        return tf.assign_sub(var, self._rate * ratio * grad).op


OPTIMIZERS = dict(
    models.OPTIMIZERS,
    layerwise=lambda: Layerwise(0.05),
    adagrad=lambda: tf.train.AdagradOptimizer(0.1),
    ftrl=lambda: tf.train.FtrlOptimizer(0.1),
    rmsprop=lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    adam_with_decay=lambda: AdamWeightDecayOptimizer(0.01, weight_decay_rate=0.1),
)

Scope = Callable[[], Any]
SPLITS: Dict[str, Callable[..., tf.Tensor]] = {}


def split_model(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Puts a model in the table under its name."""
    SPLITS[function.__name__] = function
    return function


def _wide(inputs: tf.Tensor, units: int, name: str, activation: Callable = None) -> tf.Tensor:
    """A dense layer whose outputs are about as large as its many inputs."""
    initial = tf.random_normal_initializer(stddev=0.05, seed=3)
    return tf.layers.dense(inputs, units, activation, name=name, kernel_initializer=initial)


def _wide_labels(ids: tf.Tensor) -> tf.Tensor:
    return tf.mod(ids[:, 0] * 97 + ids[:, 1] * 31 + ids[:, 2], WIDE)


@split_model
def head(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Replicated features, a wide classification head."""
    with replicate():
        features = dense(x, 16, "features", tf.nn.tanh)
    with split():
        return cross_entropy(_wide_labels(ids), dense(features, WIDE, "head"))


@split_model
def resource_head(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """The same with resource variables."""
    with tf.variable_scope("net", use_resource=True):
        return head(x, ids, y, replicate, split)


@split_model
def loss_outside(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """The wide layers are split; what follows is replicated again."""
    with split():
        hidden = _wide(_wide(x, 768, "wide", tf.nn.tanh), 16, "narrow")
    with replicate():
        return cross_entropy(y, dense(hidden, CLASSES, "out"))


@split_model
def decayed(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Weight decay of all kernels, computed inside of the split."""
    loss = head(x, ids, y, replicate, split)
    kernels = [v for v in tf.trainable_variables() if "kernel" in v.op.name]
    return loss + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in kernels])


@split_model
def everything(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """No replicated part: two wide layers, a table of words, a head."""
    with split():
        table = weights("table", [VOCABULARY, 64], dtype=x.dtype)
        words = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, TOKENS * 64])
        hidden = _wide(tf.concat([x, words], 1), 512, "first", tf.nn.tanh)
        return cross_entropy(y, _wide(_wide(hidden, 64, "second"), CLASSES, "out"))


@split_model
def two_tables(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Tables of words with sparse gradients: devices have columns of one, and rows of the other."""
    initial = tf.random_normal_initializer(stddev=0.3, seed=4)
    with replicate():
        hidden = dense(x, 8, "features", tf.nn.tanh)
    with split():
        by_columns = tf.get_variable("by_columns", [WIDE, 8], initializer=initial)
        by_rows = tf.get_variable("by_rows", [20011, 1], initializer=initial)
        hidden += tf.reduce_sum(tf.nn.embedding_lookup(by_columns, ids * 91), 1)
        hidden += tf.reduce_sum(tf.nn.embedding_lookup(by_rows, ids * 1819), 1)
        return cross_entropy(_wide_labels(ids), dense(hidden, WIDE, "head"))


def pictures(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Convolutions and pools whose windows overlap, on pictures of 16 by 5 pixels."""
    initial = tf.random_normal_initializer(stddev=0.3, seed=3)
    with replicate():
        pixels = tf.reshape(dense(x, 16 * 5 * 2, "pixels", tf.nn.tanh), [-1, 16, 5, 2])
    with split():
        hidden = tf.layers.conv2d(pixels, 4, 3, 1, "same", name="one", activation=tf.tanh, kernel_initializer=initial)
        hidden = tf.nn.max_pool(hidden, [1, 3, 3, 1], [1, 2, 2, 1], "SAME", name="pool")
        hidden = tf.layers.conv2d(hidden, 3, 5, 2, "same", name="two", activation=tf.tanh, kernel_initializer=initial)
        return cross_entropy(y, dense(tf.reshape(hidden, [-1, 4 * 2 * 3]), CLASSES, "classes"))


@split_model
def encoder(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """A Transformer encoder: attention by heads, two dense layers, norms; embeddings tied with the scores of words."""
    heads, size, width = 4, 16, 64
    with split():
        table = tf.get_variable("words", [VOCABULARY, width], initializer=tf.random_normal_initializer(0.0, 0.05, 5))
        places = tf.get_variable("places", [TOKENS, width], initializer=tf.random_normal_initializer(0.0, 0.05, 6))
        hidden = tf.nn.embedding_lookup(table, ids) + places
        for layer in range(2):
            with tf.variable_scope("layer%d" % layer):
                parts = [_wide(hidden, heads * size, name) for name in ("query", "key", "value")]
                query, key, value = [
                    tf.transpose(tf.reshape(part, [-1, TOKENS, heads, size]), [0, 2, 1, 3]) for part in parts
                ]
                scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / size**0.5)
                mixed = tf.reshape(tf.transpose(tf.matmul(scores, value), [0, 2, 1, 3]), [-1, TOKENS, heads * size])
                hidden = _normalised(hidden + _wide(mixed, width, "joined"), "first")
                wide = _wide(_wide(hidden, 4 * width, "wide", tf.nn.relu), width, "narrow")
                hidden = _normalised(hidden + wide, "second")
        scores = tf.matmul(tf.reshape(hidden, [-1, width]), table, transpose_b=True)
        labels = tf.reshape(tf.mod(ids + 1, VOCABULARY), [-1])
        return cross_entropy(labels, scores)


def _normalised(inputs: tf.Tensor, name: str) -> tf.Tensor:
    with tf.variable_scope(name):
        scale = tf.get_variable("scale", [inputs.shape[-1]], initializer=tf.ones_initializer())
        offset = tf.get_variable("offset", [inputs.shape[-1]], initializer=tf.zeros_initializer())
        mean, variance = tf.nn.moments(inputs, [-1], keep_dims=True)
        return (inputs - mean) * tf.rsqrt(variance + 1e-3) * scale + offset


@split_model
def experts(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope, count: int = 4) -> tf.Tensor:
    """A mixture of experts: the best one of each row, with a capacity, and a loss that balances them."""
    capacity, width, wide = 16, 32, 256
    with replicate():
        hidden = dense(x, width, "features", tf.nn.tanh)
    with split():
        gates = tf.nn.softmax(dense(hidden, count, "gate"))
        chosen = tf.one_hot(tf.argmax(gates, 1), count)
        place = tf.cumsum(chosen, 0, exclusive=True) * chosen
        kept = chosen * tf.cast(tf.less(place, capacity), tf.float32)
        slots = tf.one_hot(tf.cast(tf.reduce_sum(place, 1), tf.int32), capacity)
        combine = tf.einsum("s,se,sc->sec", tf.reduce_sum(gates * kept, 1), kept, slots)
        dispatch = tf.cast(tf.greater(combine, 0.0), tf.float32)
        first = tf.get_variable("first", [count, width, wide], initializer=tf.random_normal_initializer(0.0, 0.1, 8))
        second = tf.get_variable("second", [count, wide, width], initializer=tf.random_normal_initializer(0.0, 0.1, 9))
        taken = tf.einsum("sec,sm->ecm", dispatch, hidden)
        given = tf.einsum("ech,ehm->ecm", tf.nn.relu(tf.einsum("ecm,emh->ech", taken, first)), second)
        mixed = tf.einsum("sec,ecm->sm", combine, given)
        balance = count * tf.reduce_sum(tf.reduce_mean(gates, 0) * tf.reduce_mean(chosen, 0))
    with replicate():
        return cross_entropy(y, dense(hidden + mixed, CLASSES, "out")) + 0.01 * balance


@split_model
def tied(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """One table of words and nothing else: what looks them up, and what gives them scores."""
    with split():
        table = weights("table", [WIDE, 32])
        hidden = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.mod(ids * 53, WIDE)), 1)
        return cross_entropy(_wide_labels(ids), tf.matmul(hidden, table, transpose_b=True))


@split_model
def blocks(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Blocks of two wide layers; the checkpoints of the user are what lies between."""
    with replicate():
        hidden = dense(x, 64, "features", tf.nn.tanh)
    with split():
        for number in range(3):
            with tf.variable_scope("block%d" % number):
                hidden += _wide(_wide(hidden, 512, "wide", tf.nn.relu), 64, "narrow")
            tf.add_to_collection("checkpoints", hidden if number else hidden.op)
        return cross_entropy(y, dense(tf.nn.tanh(hidden), CLASSES, "out"))


@split_model
def small_table(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """A table that is too small to be cut, and a head that is not; weight decay outside of the split."""
    with split():
        words = tf.reshape(tf.nn.embedding_lookup(weights("table", [VOCABULARY, 3]), ids), [-1, TOKENS * 3])
        loss = cross_entropy(_wide_labels(ids), dense(words, WIDE, "head"))
    with replicate():
        return loss + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])


@split_model
def regularised(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Penalties of kernels in the collections of losses, in both forms; summed inside of the split, and after it."""
    del tf.get_collection_ref(tf.GraphKeys.LOSSES)[:]  # of another tower
    squares, halves = tf.keras.regularizers.l2(0.01), lambda kernel: 0.02 * tf.nn.l2_loss(kernel)
    initial = tf.random_normal_initializer(stddev=0.2, seed=3)
    with replicate():
        hidden = tf.layers.dense(x, 16, tf.nn.tanh, kernel_initializer=initial, kernel_regularizer=squares, name="body")
    with split():
        hidden = tf.layers.dense(
            hidden, WIDE, tf.nn.tanh, kernel_initializer=initial, kernel_regularizer=squares, name="wide"
        )
    with split():
        logits = tf.layers.dense(hidden, CLASSES, kernel_initializer=initial, kernel_regularizer=halves, name="out")
        tf.losses.sparse_softmax_cross_entropy(y, logits)
        inside = tf.losses.get_regularization_loss()
    with replicate():
        return tf.losses.get_total_loss() + 0.5 * inside


@split_model
def three_scopes(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """A table of words, two wide layers and a head, each in a scope of its own; norms of all weights after them."""
    with split():
        table = weights("table", [VOCABULARY, 64])
        words = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, TOKENS * 64])
    with split():
        hidden = _wide(_wide(tf.concat([x, words], 1), 512, "first", tf.nn.tanh), 64, "second")
    with split():
        loss = cross_entropy(_wide_labels(ids), _wide(hidden, WIDE, "head"))
    return loss + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])


@split_model
def branched(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """A loop over the scores; what is computed of them depends on them."""
    with split():
        first = dense(x, WIDE, "head")
        _, logits = tf.while_loop(lambda i, _: i < 2, lambda i, found: (i + 1, found + tf.sin(found)), [0, first])
        loss = cross_entropy(_wide_labels(ids), logits)
        return tf.cond(tf.reduce_mean(first) > 0, lambda: loss, lambda: 2 * loss + tf.reduce_mean(tf.square(logits)))


@tf.RegisterGradient("Clipped")
def _clipped_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_norm(gradient, 0.05)


def _steep(hidden: tf.Tensor) -> tf.Tensor:
    """A function whose gradient is written with what it took and what a loop gave."""

    @tf.custom_gradient
    def twice(value: tf.Tensor) -> Tuple[tf.Tensor, Callable]:
        _, found = tf.while_loop(lambda i, _: i < 2, lambda i, v: (i + 1, tf.tanh(v)), (tf.constant(0), value))
        return tf.identity(found), lambda gradient: gradient * (1.0 + tf.abs(found)) * tf.cos(value)

    return twice(hidden)


@split_model
def own_gradients(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Gradients of the script's own, in the split and of what leaves it; one of them is clipped by the norm of all."""
    with split():
        hidden = _steep(_wide(x, 768, "wide"))
        with tf.get_default_graph().gradient_override_map({"Identity": "Clipped"}):
            hidden = tf.identity(hidden)
        hidden = _wide(hidden, 16, "narrow")
    with replicate():
        return cross_entropy(y, dense(_steep(hidden), CLASSES, "out"))


@split_model
def scaled_by_a_loss(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """The loss of replicated code goes into the split, where more than a sum is made of it."""
    with replicate():
        hidden = dense(x, 16, "features", tf.nn.tanh)
        first = cross_entropy(y, dense(hidden, CLASSES, "out"))
    with split():
        second = cross_entropy(_wide_labels(ids), dense(hidden, WIDE, "head"))
        return second * tf.sqrt(first) + first


@split_model
def penalised(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """A penalty on gradients: through both borders of the split, parts, maxima over them and means over the batch."""
    with replicate():
        hidden = dense(x, 16, "features", tf.nn.tanh)
        scale = tf.reduce_mean(tf.square(hidden))
    with split():
        wide = _wide(hidden, WIDE, "wide", tf.nn.tanh)
        found = tf.reduce_max(wide, 1) * scale + tf.reduce_sum(tf.nn.softmax(3.0 * wide) * wide, 1)
        scores = _wide(wide, CLASSES, "narrow") + found[:, None]
        total = tf.reduce_sum(scores)
        loss = tf.reduce_mean(scores)
        (slopes,) = tf.gradients(scores, hidden)
        loss += tf.reduce_mean(tf.square(tf.norm(slopes, axis=1) - 1.0))
    with replicate():
        return loss + tf.reduce_mean(tf.square(tf.gradients([found, total], [x])[0] + x))


@tf.RegisterGradient("Halved")
def _halved_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    return gradient * 0.5 * (1.0 + tf.reduce_mean(op.inputs[0], 0))


@split_model
def python_functions(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Functions of the script that compute with all rows; one of them has a gradient."""
    with split():
        hidden = _wide(x, WIDE, "wide", tf.nn.tanh)
        with tf.get_default_graph().gradient_override_map({"PyFunc": "Halved"}):
            centred = tf.py_func(lambda rows: rows - rows.mean(0), [hidden], tf.float32)
        centred.set_shape([None, WIDE])
        above = tf.py_func(lambda rows: (rows > np.median(rows)).astype(rows.dtype), [hidden], tf.float32)
        above.set_shape([None, WIDE])
        classes = tf.py_func(lambda wanted: wanted % CLASSES, [y], tf.int32)  # row by row
        classes.set_shape([None])
        return cross_entropy(classes, dense(centred + hidden * above, CLASSES, "out"))


# Besides those of the table what only some tests train.
MODELS = dict(SPLITS, pictures=pictures, seven_experts=functools.partial(experts, count=7))


def annotations(
    ctx: Context,
    groups: int = 1,
    ratios: Sequence[Any] = (),
    apart: Sequence[int] = (),
    choices: Optional[Dict[str, str]] = None,
) -> Tuple[Scope, Scope]:
    """The scopes of what is replicated and of what is split, over all devices of the job or of each of so many groups.

    Parts are as equal as they can be, or in the given ratios: the same for each scope of a split, or in turn those of a
    list. With `apart` both have devices of their own: so many.
    """
    if not ctx.planned:
        return contextlib.suppress, contextlib.suppress
    import epl

    count = apart[1] if apart else ctx.replicas // groups
    together = apart[0] if apart else ctx.together
    in_turn = itertools.cycle(ratios if ratios and isinstance(ratios[0], (list, tuple)) else [ratios])
    return (lambda: epl.replicate(together)), (lambda: epl.split(count, ratios=next(in_turn) or None, choices=choices))


def saved(
    ctx: Context,
    path: str = "",
    resource: bool = False,
    groups: int = 1,
    ratios: Sequence[float] = (),
    apart: Sequence[int] = (),
    **config: Any,
) -> None:
    """Begins with a checkpoint, if there is one, trains in a monitored session, and records the checkpoint it wrote."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=not apart, **config)
    inputs = [
        tf.placeholder(tf.float32, [None, FEATURES]),
        tf.placeholder(tf.int32, [None, TOKENS]),
        tf.placeholder(tf.int32, [None]),
    ]
    loss = SPLITS["resource_head" if resource else "head"](*inputs, *annotations(ctx, groups, ratios, apart))
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    data = samples()
    with ctx.saving_session(path) as sess:
        for number in range(STEPS):
            rows = [ctx.step_rows(values, number) for values in data]
            ctx.record(loss=sess.run([loss, train_op], dict(zip(inputs, rows)))[0])


def evaluated(
    ctx: Context, groups: int = 1, apart: Sequence[int] = (), ratios: Sequence[float] = (), **config: Any
) -> None:
    """Trains, and records what is fetched in evaluation: scores, the best classes, accuracy, the loss of other rows."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=not apart, **config)
    replicate, split = annotations(ctx, groups, ratios, apart)
    if apart:  # what follows is on the devices of the features
        features_scope = replicate()
        replicate = lambda: features_scope  # noqa: E731
    x = tf.placeholder(tf.float32, [None, FEATURES])
    ids = tf.placeholder(tf.int32, [None, TOKENS])
    with replicate():
        features = dense(x, 16, "features", tf.nn.tanh)
    with split():
        labels = _wide_labels(ids)
        logits = dense(features, WIDE, "head")
        found = tf.nn.softmax(logits)
        best = tuple(tf.nn.top_k(found, 3))
        correct = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
        accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
        loss = cross_entropy(labels, logits)
    train_op = OPTIMIZERS["sgd"]().minimize(loss)
    with replicate():
        among = tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, labels, 100), tf.float32))  # built after minimize
    rows = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {x: ctx.step_rows(rows.x, number), ids: ctx.step_rows(rows.ids, number)}
            ctx.record(loss=sess.run([loss, train_op], feeds)[0])
        feeds = {x: rows.x[:7], ids: rows.ids[:7]}  # the same in every process
        ctx.record(found=sess.run([logits, found, best, accuracy, among, loss, correct], feeds))
        ctx.record(predicted=sess.run(logits, {x: rows.x[:7]}))
        ctx.results["variables"] = [{}]


def vector(ctx: Context) -> None:
    """Trains on the losses of the rows, whose sum TensorFlow differentiates."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    replicate, split = annotations(ctx)
    x, ids = tf.placeholder(tf.float32, [None, FEATURES]), tf.placeholder(tf.int32, [None, TOKENS])
    with replicate():
        features = dense(x, 16, "features", tf.nn.tanh)
    with split():
        logits = dense(features, WIDE, "head")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=_wide_labels(ids), logits=logits)
        loss = tf.reduce_mean(losses)
    train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(losses)
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {x: ctx.step_rows(data.x, number), ids: ctx.step_rows(data.ids, number)}
            ctx.record(loss=sess.run([loss, train_op], feeds)[0])
        ctx.results["variables"] = [sess.run({v.name.partition(":")[0]: v for v in tf.global_variables()})]


def scored(ctx: Context) -> None:
    """A branch of the split scores rows of its own between steps; the columns have weights, which are no batch."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    replicate, split = annotations(ctx)
    x, asked = [tf.placeholder(tf.float32, [None, FEATURES], name) for name in ("x", "asked")]
    ids = tf.placeholder(tf.int32, [None, TOKENS])
    weight = tf.placeholder(tf.float32, [None], "weight")  # of each column, as many as the model has
    with replicate():
        features = dense(x, 16, "features", tf.nn.tanh)
    with split():
        kernel = tf.get_variable("kernel", [16, WIDE], initializer=tf.random_normal_initializer(stddev=0.05, seed=3))
        scores = tf.reduce_max(tf.matmul(asked[:, :1] * tf.ones([1, 16]), kernel), 1)
        logits = tf.matmul(features * weight, kernel)
        loss = cross_entropy(_wide_labels(ids), logits)
    train_op = minimize(tf.train.MomentumOptimizer(0.05, 0.9), loss)
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {
                x: ctx.step_rows(data.x, number),
                ids: ctx.step_rows(data.ids, number),
                weight: np.linspace(0.5, 1.5, 16),
            }
            ctx.record(loss=sess.run([loss, train_op], feeds)[0])
            ctx.record(scores=sess.run(scores, {asked: data.x[:3]}))
        ctx.results["variables"] = [sess.run({v.name.partition(":")[0]: v for v in tf.global_variables()})]


def minimize(optimizer: tf.train.Optimizer, loss: tf.Tensor, clip: Optional[float] = None) -> tf.Operation:
    """The training op, which counts steps; gradients are clipped by their global norm if `clip` says to which."""
    pairs = optimizer.compute_gradients(loss)
    if clip:
        gradients, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip)
        pairs = list(zip(gradients, [variable for _, variable in pairs]))
    return optimizer.apply_gradients(pairs, tf.train.get_or_create_global_step())


def train(
    ctx: Context,
    name: str,
    optimizer: str = "sgd",
    clip: float = 0.0,
    factor: float = 1.0,
    groups: int = 1,
    devices: Sequence[Sequence[str]] = (),
    ratios: Sequence[float] = (),
    apart: Sequence[int] = (),
    dtype: str = "float32",
    averages: bool = False,
    own_losses: bool = False,
    choices: Optional[Dict[str, str]] = None,
    **config: Any,
) -> None:
    """Trains a model of the table; the wide layers are split over all devices of the job, or of each of its groups.

    One device trains on `factor` times the loss; by hand, on the mean of those of the groups. `devices` are those of
    the groups where the layout says it. With `averages` all weights have moving averages besides. With `own_losses` the
    loss of each group is differentiated by itself: gradient functions of the script need not be linear.
    """
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=not apart, **config)
    if ctx.planned and devices:
        import epl

        epl.Env.get().use(epl.Cluster(layout={"specific": [devices]}))
    x = tf.placeholder(dtype, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    scopes = annotations(ctx, groups, ratios, apart, choices)
    losses = (
        [MODELS[name](x, ids, y, *scopes)]
        if groups == 1
        else ctx.towers(lambda *inputs: MODELS[name](*inputs, *scopes), [x, ids, y])
    )
    loss = losses[0] if len(losses) == 1 else tf.add_n(losses) / len(losses)
    step = tf.train.get_or_create_global_step()
    made = OPTIMIZERS[optimizer]()
    differentiated = losses if own_losses else [loss]
    pairs = ctx.gradients(differentiated if ctx.planned else [one * factor for one in differentiated], made)
    norm = tf.zeros([])
    if clip:
        gradients, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip)
        pairs = list(zip(gradients, [variable for _, variable in pairs]))
    with tf.control_dependencies([loss]):  # which reads variables that the step writes
        train_op = made.apply_gradients(pairs, step)
    if averages:
        with tf.control_dependencies([train_op]):
            train_op = tf.train.ExponentialMovingAverage(0.9, step).apply(tf.trainable_variables())
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {
                x: ctx.step_rows(data.x, number),
                ids: ctx.step_rows(data.ids, number),
                y: ctx.step_rows(data.y, number),
            }
            value, found, _ = sess.run([loss, norm, train_op], feeds)
            ctx.record(loss=value, norm=found)
        ctx.record(recomputed=sum("EPL_RECOMPUTE/" in op.name for op in sess.graph.get_operations()))
        variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
        ctx.results["variables"] = [sess.run(variables)]
        if ctx.planned:
            ctx.results["parts"] = parts(sess)


def parts(sess: tf.Session) -> List[Tuple[int, Dict[str, Any]]]:
    """For each local device, which part of each group it holds, and the parts of variables."""
    from epl.ir.graph import Graph
    from epl.parallel.plan.replica_groups import ReplicaGroups
    from epl.parallel.sharded_variables.savers import value_of

    with tf_compat.unfinalized(sess.graph), sess.graph.as_default():
        graph = Graph.of(sess.graph)
        split, rewrite = graph.state_of(ReplicaGroups), graph.rewritten
        copies = range(rewrite.local_replicas)
        with graph.building_own_ops():  # a script may not take the part of one rank
            # What is fetched of a variable itself is all of it.
            reads = [
                {name: tf.stack([value_of(sess.graph, rewrite.prefix(copy) + name)]) for name in split.shards}
                for copy in copies
            ]
        return [(split.group.place(rewrite.base_rank + copy).rank, sess.run(reads[copy])) for copy in copies]


def accumulated(
    ctx: Context,
    name: str,
    steps: int,
    optimizer: str = "momentum",
    change: str = "",
    factor: float = 1.0,
    groups: int = 1,
    ratios: Sequence[float] = (),
    **config: Any,
) -> None:
    """Trains a model of the table with accumulation; one device on `factor` times the loss."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, pipeline__num_micro_batch=steps, **config)
    inputs = Inputs()
    loss = SPLITS[name](*inputs.tensors(), *annotations(ctx, groups, ratios))
    training = Training(
        ctx,
        steps,
        [loss if ctx.planned else loss * factor],
        OPTIMIZERS[optimizer](),
        change=CHANGES[change] if change else None,
        global_step=tf.train.get_or_create_global_step(),
    )
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=training.run(sess, loss, inputs.feed(ctx, data, number)))
        variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
        ctx.results["variables"] = [sess.run(variables)]


def until_the_end(ctx: Context, groups: int, batches: Sequence[int], apart: Sequence[int] = ()) -> None:
    """Trains a head on as many batches as each process has, twice."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=not apart)
    count = batches[ctx.worker] * 4
    dataset = tf.data.Dataset.from_tensor_slices(tuple(values[:count] for values in samples())).batch(4)
    iterator = dataset.make_initializable_iterator()
    loss = SPLITS["head"](*iterator.get_next(), *annotations(ctx, groups, apart=apart))
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            sess.run(iterator.initializer)
            steps = 0
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while True:
                    sess.run([loss, train_op])
                    steps += 1
            ctx.record(steps=steps)
        ctx.results["variables"] = [sess.run({v.name.partition(":")[0]: v for v in tf.global_variables()})]
