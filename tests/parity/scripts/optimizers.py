"""What users do with gradients: several optimizers, clipping, own optimizers, averages, penalties, reductions."""

from typing import Callable, Iterable, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import CLASSES, FEATURES, TOKENS, Samples, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS, cross_entropy, dense, weights


class DecayedAdam(tf.train.Optimizer):
    """An optimizer as users write them: apply_gradients builds everything, with assignments of its own."""

    def __init__(self, rate: float, decay: float) -> None:
        super().__init__(False, "DecayedAdam")
        self._rate = rate
        self._decay = decay

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Tuple[Optional[tf.Tensor], tf.Variable]],
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        assignments = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            zeros = tf.zeros_initializer()
            first = tf.get_variable(variable.op.name + "/first", variable.shape, initializer=zeros, trainable=False)
            second = tf.get_variable(variable.op.name + "/second", variable.shape, initializer=zeros, trainable=False)
            gradient = tf.convert_to_tensor(gradient)  # rows of a table become a dense gradient
            next_first = 0.9 * first + 0.1 * gradient
            next_second = 0.99 * second + 0.01 * tf.square(gradient)
            update = next_first / (tf.sqrt(next_second) + 1e-3)
            if "bias" not in variable.op.name:
                update += self._decay * variable
            assignments += [
                variable.assign(variable - self._rate * update),
                first.assign(next_first),
                second.assign(next_second),
            ]
        if global_step is not None:
            assignments.append(global_step.assign_add(1))
        return tf.group(*assignments, name=name)


class Inputs:
    """Placeholders of the samples, and the feed of a step."""

    def __init__(self) -> None:
        self.x = tf.placeholder(tf.float32, [None, FEATURES], "x")
        self.ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
        self.y = tf.placeholder(tf.int32, [None], "y")

    def tensors(self) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return self.x, self.ids, self.y

    def feed(self, ctx: Context, data: Samples, step: int) -> dict:
        return {
            self.x: ctx.step_rows(data.x, step),
            self.ids: ctx.step_rows(data.ids, step),
            self.y: ctx.step_rows(data.y, step),
        }


def _loop(
    ctx: Context, inputs: Inputs, loss: tf.Tensor, fetches: Callable[[int], List[tf.Operation]], **recorded: tf.Tensor
) -> None:
    data = samples()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            values, _ = sess.run([dict(recorded, loss=loss), fetches(step)], inputs.feed(ctx, data, step))
            ctx.record(**values)
        ctx.record_variables(sess)


def two_optimizers(ctx: Context) -> None:
    """One loss, one optimizer for each half of the variables, both applied in every step."""
    ctx.init()
    inputs = Inputs()
    loss = MODELS["embedding"](*inputs.tensors())
    table, rest = tf.trainable_variables()[:1], tf.trainable_variables()[1:]
    first, second = tf.train.AdagradOptimizer(0.1), tf.train.AdamOptimizer(0.01)
    of_table, of_rest = first.compute_gradients(loss, table), second.compute_gradients(loss, rest)
    # Else the one may differentiate at variables that the other has updated already.
    with tf.control_dependencies([tf.convert_to_tensor(gradient) for gradient, _ in of_table + of_rest]):
        train_op = tf.group(first.apply_gradients(of_table), second.apply_gradients(of_rest))
    _loop(ctx, inputs, loss, lambda _: [train_op])


def split_gradients(ctx: Context) -> None:
    """One differentiation, two optimizers that apply a part each."""
    ctx.init()
    inputs = Inputs()
    loss = MODELS["embedding"](*inputs.tensors())
    pairs = tf.train.AdamOptimizer(0.01).compute_gradients(loss)
    train_op = tf.group(
        tf.train.AdagradOptimizer(0.1).apply_gradients(pairs[:1]),
        tf.train.MomentumOptimizer(0.05, 0.9).apply_gradients(pairs[1:]),
    )
    _loop(ctx, inputs, loss, lambda _: [train_op])


def alternating(ctx: Context) -> None:
    """Two losses with an optimizer each, run in turn, as in adversarial training."""
    ctx.init()
    inputs = Inputs()
    with tf.variable_scope("maker"):
        made = dense(inputs.x, FEATURES, "make", tf.nn.tanh)
    with tf.variable_scope("judge"):
        real = dense(inputs.x, 1, "judge")
    with tf.variable_scope("judge", reuse=True):
        fake = dense(made, 1, "judge")
    judge_loss = tf.reduce_mean(tf.nn.softplus(fake) + tf.nn.softplus(-real))
    maker_loss = tf.reduce_mean(tf.nn.softplus(-fake))
    judge_op = tf.train.AdamOptimizer(0.01, name="judge_adam").minimize(
        judge_loss, var_list=tf.trainable_variables("judge")
    )
    maker_op = tf.train.AdamOptimizer(0.01, name="maker_adam").minimize(
        maker_loss, var_list=tf.trainable_variables("maker")
    )
    _loop(ctx, inputs, judge_loss, lambda step: [judge_op if step % 2 else maker_op], maker_loss=maker_loss)


def clipped(ctx: Context, after: bool, adam: bool = True, **config: object) -> None:
    """tf.gradients, clip_by_global_norm, apply_gradients; by hand every tower clips its own."""
    ctx.init(communication__clip_after_allreduce=after, **config)
    inputs = Inputs()
    losses = ctx.towers(MODELS["embedding"], inputs.tensors())
    variables = tf.trainable_variables()
    towers, norms = [], []
    for loss in losses:
        gradients, norm = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)
        towers.append(gradients)
        norms.append(norm)
    gradients = towers[0]
    if len(towers) > 1:
        gradients = [tf.add_n([tf.convert_to_tensor(g) for g in same]) / len(same) for same in zip(*towers)]
    optimizer = OPTIMIZERS["adam" if adam else "sgd"]()
    train_op = optimizer.apply_gradients(zip(gradients, variables), tf.train.get_or_create_global_step())
    _loop(
        ctx,
        inputs,
        tf.add_n(losses) / len(losses) if len(losses) > 1 else losses[0],
        lambda _: [train_op],
        norm=norms[0],
    )


def user_written(ctx: Context) -> None:
    """An optimizer that overrides apply_gradients, with a None gradient, called through minimize."""
    ctx.init()
    inputs = Inputs()
    weights("unused", [3])
    loss = MODELS["layers"](*inputs.tensors())
    train_op = DecayedAdam(0.01, 0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())
    _loop(ctx, inputs, loss, lambda _: [train_op])


def user_written_clipped(ctx: Context) -> None:
    """The same as BERT does it: tf.gradients, clip, own apply_gradients, and an assignment of the step of its own.

    Only that assignment counts steps: next to an increment in apply_gradients, which nothing orders with it, plain
    TensorFlow loses steps, too.
    """
    ctx.init(communication__clip_after_allreduce=True)
    inputs = Inputs()
    loss = MODELS["plain_variables"](*inputs.tensors())
    step = tf.train.get_or_create_global_step()
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.5)
    train_op = DecayedAdam(0.01, 0.1).apply_gradients(zip(gradients, variables))
    train_op = tf.group(train_op, [step.assign(step + 1)])
    _loop(ctx, inputs, loss, lambda _: [train_op])


def averaged_and_decayed(ctx: Context) -> None:
    """A learning rate that decays with the global step, and moving averages of the weights."""
    ctx.init()
    inputs = Inputs()
    loss = MODELS["layers"](*inputs.tensors())
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.1, step, 2, 0.5, staircase=True)
    train_op = tf.train.RMSPropOptimizer(rate).minimize(loss, step)
    averages = tf.train.ExponentialMovingAverage(0.9, step)
    with tf.control_dependencies([train_op]):
        train_op = averages.apply(tf.trainable_variables())
    _loop(ctx, inputs, loss, lambda _: [train_op], rate=rate)


def gradient_penalty(ctx: Context) -> None:
    """A loss that contains gradients: tf.gradients with respect to the inputs, differentiated again."""
    ctx.init()
    inputs = Inputs()
    logits = dense(dense(inputs.x, 8, "hidden", tf.nn.tanh), CLASSES, "out")
    (slope,) = tf.gradients(logits, [inputs.x])
    loss = cross_entropy(inputs.y, logits) + 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(slope), 1))
    train_op = OPTIMIZERS["momentum"]().minimize(loss)
    _loop(ctx, inputs, loss, lambda _: [train_op])


def processed_gradients(ctx: Context) -> None:
    """compute_gradients, something linear done to each gradient, apply_gradients; one with a None gradient."""
    ctx.init()
    inputs = Inputs()
    weights("unused", [3])
    loss = MODELS["layers"](*inputs.tensors())
    optimizer = OPTIMIZERS["momentum"]()
    pairs = [
        (gradient if gradient is None else 0.5 * gradient, variable)
        for gradient, variable in optimizer.compute_gradients(loss)
    ]
    train_op = optimizer.apply_gradients(pairs, tf.train.get_or_create_global_step())
    _loop(ctx, inputs, loss, lambda _: [train_op])


def summed(ctx: Context, name: str, factor: float) -> None:
    """The reduction method "sum": gradients are as many times larger as there are replicas."""
    ctx.init(communication__gradients_reduce_method="sum")
    inputs = Inputs()
    loss = MODELS[name](*inputs.tensors())
    factor = 1.0 if ctx.planned else factor
    train_op = OPTIMIZERS["sgd"]().minimize(loss * factor if factor != 1.0 else loss)
    _loop(ctx, inputs, loss, lambda _: [train_op])


def keras_model(ctx: Context) -> None:
    """A tf.keras.Sequential called as a function, trained with an optimizer of tf.train."""
    ctx.init()
    inputs = Inputs()
    kernel = tf.random_normal_initializer(stddev=0.3, seed=3)
    network = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, "tanh", kernel_initializer=kernel, input_shape=(FEATURES,)),
            tf.keras.layers.Dense(CLASSES, kernel_initializer=kernel),
        ]
    )
    loss = cross_entropy(inputs.y, network(inputs.x))
    train_op = OPTIMIZERS["momentum"]().minimize(loss, var_list=network.trainable_weights)
    _loop(ctx, inputs, loss, lambda _: [train_op])
