"""Models with epl.split: heads, embeddings, encoders and experts, each as it is written for one device."""
import contextlib
from typing import Any, Callable, Dict

import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import CLASSES, FEATURES, TOKENS, VOCABULARY, samples
from tests.parity.scripts.models import OPTIMIZERS, cross_entropy, dense, weights

WIDE = 1003  # columns that no number of devices here divides

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
        features = dense(x, 16, 'features', tf.nn.tanh)
    with split():
        return cross_entropy(_wide_labels(ids), dense(features, WIDE, 'head'))


@split_model
def resource_head(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """The same with resource variables."""
    with tf.variable_scope('net', use_resource=True):
        return head(x, ids, y, replicate, split)


@split_model
def loss_outside(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """The wide layers are split; what follows is replicated again."""
    with split():
        hidden = _wide(_wide(x, 768, 'wide', tf.nn.tanh), 16, 'narrow')
    with replicate():
        return cross_entropy(y, dense(hidden, CLASSES, 'out'))


@split_model
def decayed(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """Weight decay of all kernels, computed inside of the split."""
    loss = head(x, ids, y, replicate, split)
    kernels = [v for v in tf.trainable_variables() if 'kernel' in v.op.name]
    return loss + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in kernels])


@split_model
def everything(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor, replicate: Scope, split: Scope) -> tf.Tensor:
    """No replicated part: two wide layers, a table of words, a head."""
    with split():
        table = weights('table', [VOCABULARY, 64])
        words = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, TOKENS * 64])
        hidden = _wide(tf.concat([x, words], 1), 512, 'first', tf.nn.tanh)
        return cross_entropy(y, _wide(_wide(hidden, 64, 'second'), CLASSES, 'out'))


def train(ctx: Context, name: str, optimizer: str = 'sgd', clip: float = 0., resource: bool = False,
          **config: Any) -> None:
    """Trains a model of the table; the wide layers are split over all devices of the job."""
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True, **config)
    replicate: Scope = contextlib.suppress
    split: Scope = contextlib.suppress
    if ctx.planned:
        import epl
        replicate, split = (lambda: epl.replicate(1)), (lambda: epl.split(ctx.replicas))
    x = tf.placeholder(tf.float32, [None, FEATURES], 'x')
    ids = tf.placeholder(tf.int32, [None, TOKENS], 'ids')
    y = tf.placeholder(tf.int32, [None], 'y')
    loss = SPLITS[name](x, ids, y, replicate, split)
    step = tf.train.get_or_create_global_step()
    made = OPTIMIZERS[optimizer]()
    if clip:
        variables = tf.trainable_variables()
        gradients, norm = tf.clip_by_global_norm(tf.gradients(loss, variables), clip)
        train_op = made.apply_gradients(zip(gradients, variables), step)
    else:
        norm = tf.zeros([])
        train_op = made.minimize(loss, step)
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feeds = {x: ctx.step_rows(data.x, number), ids: ctx.step_rows(data.ids, number),
                     y: ctx.step_rows(data.y, number)}
            value, found, _ = sess.run([loss, norm, train_op], feeds)
            ctx.record(loss=value, norm=found)
        ctx.results['names'] = [v.name for v in tf.global_variables()]
        variables = {v.name.partition(':')[0]: v for v in tf.global_variables()}
        ctx.results['variables'] = [sess.run(variables)]
