"""A table of small models, each a function from (x, ids, y) to a loss, and the script that trains any of them."""

from typing import Callable, Dict

import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import CLASSES, FEATURES, TOKENS, VOCABULARY, samples

Model = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]

MODELS: Dict[str, Model] = {}


class AnyOrder(tf.train.GradientDescentOptimizer):
    """Adds rows with equal indices in another order on each replica, as kernels for a GPU may."""

    def _apply_sparse_duplicate_indices(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Operation:
        order = tf.random.shuffle(tf.range(tf.size(grad.indices)))
        values, indices = tf.gather(grad.values, order), tf.gather(grad.indices, order)
        return super()._apply_sparse_duplicate_indices(tf.IndexedSlices(values, indices, grad.dense_shape), var)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
    ) -> tf.Operation:
        order = tf.random.shuffle(tf.range(tf.size(indices)))
        return super()._resource_apply_sparse_duplicate_indices(
            tf.gather(grad, order), handle, tf.gather(indices, order)
        )


OPTIMIZERS: Dict[str, Callable[[], tf.train.Optimizer]] = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "any_order": lambda: AnyOrder(0.1),
}


def model(function: Model) -> Model:
    """Puts a model in the table under its name."""
    MODELS[function.__name__] = function
    return function


def initializer(seed: int = 3) -> tf.keras.initializers.Initializer:
    """Initial values that depend on nothing but the shape."""
    return tf.random_normal_initializer(stddev=0.3, seed=seed)


def dense(inputs: tf.Tensor, units: int, name: str, activation: Callable = None) -> tf.Tensor:
    """A tf.layers.dense with the table's initial values."""
    return tf.layers.dense(inputs, units, activation, name=name, kernel_initializer=initializer())


def cross_entropy(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Mean over the rows."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def weights(
    name: str, shape: list, use_resource: bool = None, trainable: bool = True, dtype: tf.DType = None
) -> tf.Variable:
    """A variable made with tf.get_variable."""
    return tf.get_variable(
        name, shape, dtype, initializer=initializer(), use_resource=use_resource, trainable=trainable
    )


@model
def layers(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """tf.layers: ref variables."""
    return cross_entropy(y, dense(dense(x, 8, "hidden", tf.nn.tanh), CLASSES, "out"))


@model
def resource(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The same with resource variables."""
    with tf.variable_scope("net", use_resource=True):
        return layers(x, ids, y)


@model
def keras_layers(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Keras layers called as functions: resource variables, created outside of variable scopes."""
    hidden = tf.keras.layers.Dense(8, "relu", kernel_initializer=initializer(), name="hidden")(x)
    return cross_entropy(y, tf.keras.layers.Dense(CLASSES, kernel_initializer=initializer(), name="out")(hidden))


@model
def plain_variables(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """tf.get_variable, ref and resource in one model, with weight decay of both."""
    first = weights("first", [FEATURES, 8], use_resource=False)
    second = weights("second", [8, CLASSES], use_resource=True)
    decay = 0.01 * (tf.nn.l2_loss(first) + tf.nn.l2_loss(second))
    # What the loss alone needs may otherwise be read after the update that it is not needed for.
    with tf.control_dependencies([decay]):
        x = tf.identity(x)
    return cross_entropy(y, tf.matmul(tf.nn.relu(tf.matmul(x, first)), second)) + decay


@model
def convolution(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Convolution and pooling."""
    image = tf.reshape(x, [-1, 3, FEATURES // 3, 1])
    maps = tf.layers.conv2d(
        image, 4, 2, padding="same", activation=tf.nn.relu, name="conv", kernel_initializer=initializer()
    )
    return cross_entropy(y, dense(tf.layers.flatten(tf.layers.max_pooling2d(maps, 2, 1)), CLASSES, "out"))


@model
def conditional(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """tf.cond on the step, so that all replicas take the same branch, with variables used in one branch only."""
    hidden = dense(x, 8, "hidden", tf.nn.tanh)
    extra = weights("extra", [8, 8])
    step = tf.train.get_or_create_global_step()
    hidden = tf.cond(tf.equal(step % 2, 0), lambda: tf.matmul(hidden, extra), lambda: 2.0 * hidden)
    return cross_entropy(y, dense(hidden, CLASSES, "out"))


@model
def loop(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """tf.while_loop with a weight used in each round, and a loop inside a loop."""
    hidden = dense(x, 8, "hidden", tf.nn.tanh)
    kernel = weights("recurrent", [8, 8])

    def inner(i: tf.Tensor, state: tf.Tensor) -> tuple:
        return i + 1, tf.tanh(tf.matmul(state, kernel))

    def outer(i: tf.Tensor, state: tf.Tensor) -> tuple:
        _, state = tf.while_loop(lambda j, _: j < 2, inner, (tf.constant(0), state))
        return i + 1, state + hidden

    _, state = tf.while_loop(lambda i, _: i < 3, outer, (tf.constant(0), hidden))
    return cross_entropy(y, dense(state, CLASSES, "out"))


@model
def recurrent(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """tf.nn.dynamic_rnn with an LSTM cell."""
    cell = tf.nn.rnn_cell.LSTMCell(6, initializer=initializer())
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.reshape(x, [-1, 4, FEATURES // 4]), dtype=tf.float32)
    return cross_entropy(y, dense(outputs[:, -1], CLASSES, "out"))


@model
def mapped(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """tf.map_fn over the rows: TensorArrays in a loop."""
    kernel = weights("kernel", [FEATURES, CLASSES])
    logits = tf.map_fn(lambda row: tf.squeeze(tf.matmul(row[None], kernel), 0), x)
    return cross_entropy(y, logits)


@model
def embedding(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """An embedding with IndexedSlices gradients; rows repeat within and across replicas."""
    table = weights("table", [VOCABULARY, 6])
    embedded = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, TOKENS * 6])
    return cross_entropy(y, dense(tf.concat([embedded, x], 1), CLASSES, "out"))


@model
def resource_embedding(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The same on a resource variable, read twice: the gradient is a concatenation of slices."""
    table = weights("table", [VOCABULARY, 6], use_resource=True)
    both = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1) + tf.gather(table, ids[:, 0])
    return cross_entropy(y, dense(both, CLASSES, "out"))


@model
def shared_embedding(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """One table looked up and used as the output layer: slices and a dense gradient of one variable are added."""
    table = weights("table", [VOCABULARY, 6])
    hidden = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)
    return cross_entropy(y, tf.matmul(hidden, table, transpose_b=True))


@model
def unused_and_frozen(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """A variable that the loss does not reach (its gradient is None), and one that is not trained."""
    weights("unused", [3])
    frozen = weights("frozen", [FEATURES, FEATURES], trainable=False)
    return layers(tf.matmul(x, frozen), ids, y)


@model
def hash_table(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Token ids translated by a hash table."""
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.range(VOCABULARY), tf.constant([(7 * i) % VOCABULARY for i in range(VOCABULARY)])
        ),
        -1,
    )
    return embedding(x, table.lookup(ids), y)


@model
def custom_gradient(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """A function with a gradient of its own."""

    @tf.custom_gradient
    def scaled(value: tf.Tensor) -> tuple:
        return tf.identity(value), lambda grad: 0.5 * grad

    return cross_entropy(y, dense(scaled(dense(x, 8, "hidden", tf.nn.tanh)), CLASSES, "out"))


@model
def batch_norm(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Batch normalisation with UPDATE_OPS: statistics of each replica's own rows."""
    hidden = tf.layers.batch_normalization(dense(x, 8, "hidden"), training=True, momentum=0.8, name="norm")
    return cross_entropy(y, dense(tf.nn.relu(hidden), CLASSES, "out"))


@model
def fused_batch_norm(x: tf.Tensor, ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The fused kernel, on images."""
    image = tf.reshape(x, [-1, 3, FEATURES // 3, 1])
    maps = tf.layers.conv2d(image, 4, 2, name="conv", kernel_initializer=initializer())
    maps = tf.layers.batch_normalization(maps, training=True, momentum=0.8, fused=True, name="norm")
    return cross_entropy(y, dense(tf.layers.flatten(tf.nn.relu(maps)), CLASSES, "out"))


def train(ctx: Context, name: str, optimizer: str = "sgd", scoped: bool = False, **config: object) -> None:
    """Trains a model of the table in a plain session with feed_dict."""
    ctx.init(annotate=not scoped, **config)
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    function = MODELS[name]
    if scoped:

        def function(*inputs: tf.Tensor, inner: Model = MODELS[name]) -> tf.Tensor:
            with ctx.scope():
                return inner(*inputs)

    losses = ctx.towers(function, [x, ids, y])
    train_op = ctx.minimize(losses, OPTIMIZERS[optimizer]())
    loss = tf.add_n(losses) / len(losses) if len(losses) > 1 else losses[0]
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), ids: ctx.step_rows(data.ids, step), y: ctx.step_rows(data.y, step)}
            value, _ = sess.run([loss, train_op], feed)
            ctx.record(loss=value)
        ctx.record_variables(sess)


def train_bfloat16(ctx: Context, **config: object) -> None:
    """Trains weights that are stored in bfloat16, as are their gradients."""
    ctx.init(**config)
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")

    def function(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        kernel = tf.get_variable("kernel", [FEATURES, CLASSES], tf.bfloat16, tf.zeros_initializer())
        bias = tf.get_variable("bias", [CLASSES], tf.bfloat16, tf.zeros_initializer())
        return cross_entropy(y, tf.matmul(x, tf.cast(kernel, tf.float32)) + tf.cast(bias, tf.float32))

    optimizer = tf.train.GradientDescentOptimizer(0.1)
    towers = [optimizer.compute_gradients(loss) for loss in ctx.towers(function, [x, y])]
    pairs = towers[0]
    if len(towers) > 1:  # by hand: the mean of the towers is rounded once
        exact = [tf.add_n([tf.cast(gradient, tf.float32) for gradient, _ in same]) / len(same) for same in zip(*towers)]
        pairs = [(tf.cast(mean, tf.bfloat16), variable) for mean, (_, variable) in zip(exact, pairs)]
    train_op = optimizer.apply_gradients(pairs)
    values = [tf.cast(variable, tf.float32) for variable in tf.trainable_variables()]  # as numpy knows them
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            sess.run(train_op, {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)})
        ctx.record(values=sess.run(values))


def train_scaled(ctx: Context, factor: float, rate: float = 1.0, sparse: bool = False, **config: object) -> None:
    """Trains a weight with gradients near ``factor``, undone by the learning rate, from zero."""
    ctx.init(**config)
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    if sparse:
        kernel = tf.get_variable("kernel", [VOCABULARY, 4], initializer=tf.zeros_initializer())
        output = tf.reduce_sum(tf.nn.embedding_lookup(kernel, ids), [1, 2])
    else:
        kernel = tf.get_variable("kernel", [FEATURES, 1], initializer=tf.zeros_initializer())
        output = tf.matmul(x, kernel)
    train_op = tf.train.GradientDescentOptimizer(rate / factor).minimize(factor * tf.reduce_mean(output))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            sess.run(train_op, {x: ctx.step_rows(data.x, step), ids: ctx.step_rows(data.ids, step)})
            ctx.record(loss=0.0)
        ctx.record_variables(sess)
