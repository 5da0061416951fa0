"""Models that are split in practice: words that are told from their neighbours, and ResNet with a wide head."""

import zlib
from typing import Any, Dict
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from examples.image_classification import resnet
from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.models import cross_entropy
from tests.parity.scripts.splits import OPTIMIZERS, annotations, parts

WORDS = 1003
LENGTH, MASKED = 5, 2  # words of a sentence
CLASSES, PIXELS = 1000, 32
SHALLOW = 14  # layers of a ResNet with one unit in each group


def word2vec(ctx: Context, optimizer: str = "momentum", tied: bool = False) -> None:
    """Skip-gram: a table of words, and a softmax over all words for a neighbour of each."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    _, split = annotations(ctx)
    word, neighbour = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
    with split():
        initial = tf.random_uniform_initializer(-0.5, 0.5, seed=2)
        words = tf.get_variable("words", [WORDS, 32], initializer=initial)
        neighbours = words if tied else tf.get_variable("neighbours", [WORDS, 32], initializer=initial)
        shift = tf.get_variable("shift", [WORDS], initializer=tf.zeros_initializer())
        scores = tf.matmul(tf.nn.embedding_lookup(words, word), neighbours, transpose_b=True) + shift
        loss = cross_entropy(neighbour, scores)
    _train(ctx, optimizer, loss, word, neighbour)


def frozen(ctx: Context) -> None:
    """Neighbours of words whose rows are not trained; each process begins with other ones."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    replicate, split = annotations(ctx)
    word, neighbour = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
    with replicate():
        initial = tf.constant_initializer(np.random.RandomState(ctx.worker).uniform(-1, 1, [WORDS, 32]))
        words = tf.get_variable("words", [WORDS, 32], initializer=initial, trainable=False)
        features = tf.nn.embedding_lookup(words, word)
    with split():
        initial = tf.random_uniform_initializer(-0.5, 0.5, seed=2)
        neighbours = tf.get_variable("neighbours", [32, WORDS], initializer=initial)
        loss = cross_entropy(neighbour, tf.matmul(features, neighbours))
    _train(ctx, "momentum", loss, word, neighbour)


def masked_words(ctx: Context) -> None:
    """BERT's head: words at masked positions, found by numbers of rows; the size of the batch is in the model."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    replicate, split = annotations(ctx)
    words = tf.placeholder(tf.int32, [ctx.batch, LENGTH])
    positions, masked = (tf.placeholder(tf.int32, [ctx.batch, MASKED]) for _ in range(2))
    initial = tf.random_normal_initializer(stddev=0.5, seed=2)
    with replicate():
        table = tf.get_variable("table", [WORDS, 16], initializer=initial)
        hidden = tf.layers.dense(tf.nn.embedding_lookup(table, words), 16, tf.tanh, kernel_initializer=initial)
        hidden = tf.reshape(hidden, [ctx.batch * LENGTH, 16])
    with split():
        mixed = tf.reshape(hidden, [ctx.batch, LENGTH, 16])
        mixed += tf.reduce_mean(mixed, 1, keepdims=True)
        before = tf.reshape(tf.range(ctx.batch) * LENGTH, [-1, 1])  # rows of the words of other sentences
        taken = tf.gather(tf.reshape(mixed, [-1, 16]), tf.reshape(positions + before, [-1]))
        scores = tf.layers.dense(taken, WORDS, kernel_initializer=initial)
        loss = cross_entropy(tf.reshape(masked, [-1]), scores)
    train_op = OPTIMIZERS["momentum"]().minimize(loss)
    random = np.random.RandomState(4)
    rows = {
        tensor: random.randint(0, most, [STEPS * GLOBAL_BATCH, tensor.shape[1]])
        for tensor, most in ((words, WORDS), (positions, LENGTH), (masked, WORDS))
    }
    _run(ctx, loss, train_op, rows)


def images(ctx: Context, depth: int, width: int, split_head: bool = True, **config: Any) -> None:
    """ResNet of so many layers in float64, in float32 its depth magnifies what is rounded; small random images.

    The features are replicated: each replica has batch statistics of its own, unless `config` says otherwise.
    """
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=split_head, **config)
    replicate, split = annotations(ctx)
    head = split if split_head else replicate

    def model(pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with replicate():
            features = resnet.features(pixels, depth, width, training=True)
        with head():
            return resnet.loss(labels, resnet.logits(features, CLASSES))

    pixels, labels = tf.placeholder(tf.float64, [None, PIXELS, PIXELS, 3]), tf.placeholder(tf.int32, [None])
    shallow = {SHALLOW: resnet.Block(True, (1, 1, 1, 1))}
    with tf.variable_scope("", custom_getter=_seeded_by_name), mock.patch.dict(resnet.DEPTHS, shallow):
        losses = ctx.towers(model, [pixels, labels])
    optimizer = OPTIMIZERS["momentum"]()
    pairs = ctx.gradients(losses, optimizer)  # which do not wait for the statistics: so many edges take minutes
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.apply_gradients(pairs)
    random = np.random.RandomState(4)
    rows = {
        pixels: random.uniform(-1, 1, [STEPS * GLOBAL_BATCH, PIXELS, PIXELS, 3]),
        labels: random.randint(0, CLASSES, STEPS * GLOBAL_BATCH),
    }
    _run(ctx, tf.add_n(losses) / len(losses), train_op, rows, split_head)


def _seeded_by_name(getter: Any, name: str, *args: Any, **kwargs: Any) -> tf.Variable:
    """Kernels begin with values that do not depend on what was built before."""
    if name.endswith("kernel"):
        kwargs["initializer"] = tf.variance_scaling_initializer(2.0, "fan_out", seed=zlib.crc32(name.encode()) % 1000)
    return getter(name, *args, **kwargs)


def _train(ctx: Context, optimizer: str, loss: tf.Tensor, word: tf.Tensor, neighbour: tf.Tensor) -> None:
    """Trains on words."""
    train_op = OPTIMIZERS[optimizer]().minimize(loss)
    random = np.random.RandomState(4)
    # Words come back within a batch: the rows of their gradients are added up.
    _run(
        ctx,
        loss,
        train_op,
        {
            word: random.randint(0, 10, STEPS * GLOBAL_BATCH) * 100,
            neighbour: random.randint(0, WORDS, STEPS * GLOBAL_BATCH),
        },
    )


def _run(
    ctx: Context, loss: tf.Tensor, train_op: tf.Operation, rows: Dict[tf.Tensor, np.ndarray], is_split: bool = True
) -> None:
    """Trains, and records losses, variables and, of a split, its parts."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {tensor: ctx.step_rows(values, number) for tensor, values in rows.items()}
            ctx.record(loss=sess.run([loss, train_op], feeds)[0])
        ctx.record_variables(sess)
        if ctx.planned and is_split:
            ctx.results["parts"] = parts(sess)
