"""Models that are split in practice: words that are told from their neighbours, and ResNet-50 with a wide head."""
from typing import Dict

import numpy as np
import tensorflow.compat.v1 as tf

from examples.image_classification import resnet
from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.splits import OPTIMIZERS, annotations

WORDS = 1003
CLASSES = 1000
PIXELS = 32


def word2vec(ctx: Context, optimizer: str = 'momentum', tied: bool = False) -> None:
    """Skip-gram: a table of words, and a softmax over all words for a neighbour of each."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    _, split = annotations(ctx)
    word, neighbour = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
    with split():
        initial = tf.random_uniform_initializer(-0.5, 0.5, seed=2)
        words = tf.get_variable('words', [WORDS, 32], initializer=initial)
        neighbours = words if tied else tf.get_variable('neighbours', [WORDS, 32], initializer=initial)
        shift = tf.get_variable('shift', [WORDS], initializer=tf.zeros_initializer())
        scores = tf.matmul(tf.nn.embedding_lookup(words, word), neighbours, transpose_b=True) + shift
        loss = resnet.loss(neighbour, scores)
    train_op = OPTIMIZERS[optimizer]().minimize(loss)
    random = np.random.RandomState(4)
    # Words come back within a batch: the rows of their gradients are added up.
    rows = {word: random.randint(0, 10, STEPS * GLOBAL_BATCH) * 100,
            neighbour: random.randint(0, WORDS, STEPS * GLOBAL_BATCH)}
    _run(ctx, loss, train_op, rows)


def resnet_50(ctx: Context) -> None:
    """ResNet-50 on small images; its features are replicated, each with batch statistics of its own."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    replicate, split = annotations(ctx)

    def model(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with replicate():
            features = resnet.features(images, 50, 8, training=True)
        with split():
            return resnet.loss(labels, resnet.logits(features, CLASSES))

    tf.set_random_seed(3)
    inputs = [tf.placeholder(tf.float32, [None, PIXELS, PIXELS, 3]), tf.placeholder(tf.int32, [None])]
    losses = ctx.towers(model, inputs)
    train_op = ctx.minimize(losses, OPTIMIZERS['momentum']())
    random = np.random.RandomState(4)
    rows = {inputs[0]: random.uniform(-1, 1, [STEPS * GLOBAL_BATCH, PIXELS, PIXELS, 3]).astype(np.float32),
            inputs[1]: random.randint(0, CLASSES, STEPS * GLOBAL_BATCH)}
    _run(ctx, tf.add_n(losses) / len(losses), train_op, rows)


def _run(ctx: Context, loss: tf.Tensor, train_op: tf.Operation, rows: Dict[tf.Tensor, np.ndarray]) -> None:
    """Trains, and records losses and variables."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {tensor: ctx.step_rows(values, number) for tensor, values in rows.items()}
            ctx.record(loss=sess.run([loss, train_op], feeds)[0])
        variables = {v.name.partition(':')[0]: v for v in tf.global_variables()}
        ctx.results['variables'] = [sess.run(variables)]
