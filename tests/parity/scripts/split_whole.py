"""Models that are split in practice: words that are told from their neighbours."""
import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.models import cross_entropy
from tests.parity.scripts.splits import OPTIMIZERS, annotations

WORDS = 1003


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
        loss = cross_entropy(neighbour, scores)
    _train(ctx, optimizer, loss, word, neighbour)


def frozen(ctx: Context) -> None:
    """Neighbours of words whose rows are not trained; each process begins with other ones."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    replicate, split = annotations(ctx)
    word, neighbour = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
    with replicate():
        initial = tf.constant_initializer(np.random.RandomState(ctx.worker).uniform(-1, 1, [WORDS, 32]))
        words = tf.get_variable('words', [WORDS, 32], initializer=initial, trainable=False)
        features = tf.nn.embedding_lookup(words, word)
    with split():
        initial = tf.random_uniform_initializer(-0.5, 0.5, seed=2)
        neighbours = tf.get_variable('neighbours', [32, WORDS], initializer=initial)
        loss = cross_entropy(neighbour, tf.matmul(features, neighbours))
    _train(ctx, 'momentum', loss, word, neighbour)


def _train(ctx: Context, optimizer: str, loss: tf.Tensor, word: tf.Tensor, neighbour: tf.Tensor) -> None:
    """Trains, and records losses and variables."""
    train_op = OPTIMIZERS[optimizer]().minimize(loss)
    random = np.random.RandomState(4)
    # Words come back within a batch: the rows of their gradients are added up.
    rows = {word: random.randint(0, 10, STEPS * GLOBAL_BATCH) * 100,
            neighbour: random.randint(0, WORDS, STEPS * GLOBAL_BATCH)}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {tensor: ctx.step_rows(values, number) for tensor, values in rows.items()}
            ctx.record(loss=sess.run([loss, train_op], feeds)[0])
        variables = {v.name.partition(':')[0]: v for v in tf.global_variables()}
        ctx.results['variables'] = [sess.run(variables)]
