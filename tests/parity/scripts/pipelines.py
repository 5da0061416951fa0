"""Pipelines, and what they must equal: one device that accumulates the gradients of the micro batches one by one.

The scripts take stages, micro batches and local replicas as arguments, and use that many devices whatever the worker
process was started with. The models are in ``pipeline_models.py``.
"""

import contextlib
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import Context, clone_name
from tests.parity.scripts.data import FEATURES, Samples, samples
from tests.parity.scripts.models import OPTIMIZERS, dense
from tests.parity.scripts.pipeline_models import STATISTICS, Inputs, build, placeholders

STEPS = 6
# Adam divides gradients near zero by themselves, which makes much of the rounding of a deep model.
OPTIMIZER_OF = {
    "mlp": "adam", "cnn": "momentum", "lstm": "momentum", "keras_recurrent": "momentum",
    "encoder": "momentum", "embedding": "momentum", "contrast": "momentum",
}  # fmt: skip
STEP_ROWS = 32  # of all micro batches of all replicas of all processes
ALL_ROWS = samples(STEPS * STEP_ROWS // 16)


class Pipeline:
    """What a pipeline does in one process, or one device in its place, which takes all rows at once.

    Attributes:
        micro_rows: rows of a micro batch.
        process_rows: rows that this process takes in a step.
    """

    def __init__(
        self,
        ctx: Context,
        stages: int,
        micro_batches: int = 1,
        replicas: int = 1,
        schedule: str = "PreferBackward",
        interleaved: bool = False,
        default_strategies: bool = False,
        split: int = 0,
        **config: Any,
    ) -> None:
        self._ctx = ctx
        self._split = split
        self.stages = stages
        self._scope = self._default_strategy if default_strategies else ctx.scope
        if config.get("auto__auto_parallel"):
            self._scope = contextlib.suppress
        ctx.stages = stages // 2 if interleaved else stages
        ctx.devices = ctx.stages * replicas
        workers = ctx.workers if ctx.planned else 1
        self.process_rows = STEP_ROWS // workers
        readers = max(replicas // ctx.together, 1)  # of this process; each reads a batch for its replicas
        self.micro_rows = self.process_rows // (micro_batches * readers) if ctx.planned else STEP_ROWS
        ctx.init(
            annotate=False,
            cluster__num_virtual_devices=ctx.devices,
            pipeline__num_micro_batch=micro_batches,
            pipeline__strategy=schedule,
            **config,
        )
        if interleaved and ctx.planned:
            _interleave(stages)

    def loss(self, name: str, inputs: Inputs) -> tf.Tensor:
        """The loss of a model, its blocks annotated; `split` devices for what is split in a stage."""
        if self._ctx.planned and self._split:
            import epl

            inputs = inputs._replace(split=lambda: epl.split(self._split))
        return build(name, inputs, self.stages, self._scope)

    @contextlib.contextmanager
    def _default_strategy(self) -> Iterator[None]:
        if self._ctx.planned:
            import epl

            epl.set_default_strategy(epl.replicate(self._ctx.together))
        yield

    def rows(self, step: int) -> Samples:
        """This process's samples of a step."""
        first = step * STEP_ROWS + self._ctx.worker * self.process_rows
        return Samples(*[rows[first : first + self.process_rows] for rows in ALL_ROWS])

    def stream(self) -> Samples:
        """This process's samples of all steps."""
        return Samples(*[np.concatenate(rows) for rows in zip(*[self.rows(step) for step in range(STEPS)])])


def _interleave(stages: int) -> None:
    """Deals the stages out to the devices of each replica round and round: two on each."""
    import epl

    names = epl.Env.get().cluster.all_devices
    per_replica = stages // 2
    first = range(0, len(names), per_replica)
    layout = [[[names[start + stage % per_replica]] for start in first] for stage in range(stages)]
    epl.Cluster(layout={"specific": layout}).__enter__()


def feed(inputs: Inputs, rows: Samples) -> Dict[tf.Tensor, np.ndarray]:
    """The feed of a step: of the placeholders that the model takes."""
    return {tensor: value for tensor, value in zip(inputs, rows) if tensor.consumers()}


def train(
    ctx: Context,
    name: str,
    optimizer: str = "",
    rows_known: bool = False,
    resource: bool = False,
    clip: Optional[float] = None,
    dtype: str = "float32",
    **pipeline: Any,
) -> None:
    """Trains a model with feed_dict, its gradients clipped by their global norm or not."""
    plan = Pipeline(ctx, **pipeline)
    inputs = placeholders(plan.micro_rows if rows_known else None, dtype)
    with tf.variable_scope("net", use_resource=resource, dtype=tf.as_dtype(dtype)):
        loss = plan.loss(name, inputs)
    train_op = _train_op(loss, optimizer or OPTIMIZER_OF[name], clip)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], feed(inputs, plan.rows(step)))[0])
        ctx.record(devices=sorted({each.device for each in [loss] + tf.trainable_variables()}))
        ctx.record_variables(sess)


def _train_op(loss: tf.Tensor, optimizer: str, clip: Optional[float] = None) -> tf.Operation:
    """The training op, with UPDATE_OPS before it."""
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        if clip is None:
            return OPTIMIZERS[optimizer]().minimize(loss, global_step=step)
        variables = tf.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), clip)
        return OPTIMIZERS[optimizer]().apply_gradients(zip(gradients, variables), global_step=step)


def accumulated(
    ctx: Context,
    name: str,
    micro_batches: int,
    replicas: int,
    optimizer: str = "",
    clip: Optional[float] = None,
    summed: bool = False,
    dtype: str = "float32",
    joined: bool = False,
) -> None:
    """What `train` must equal: one micro batch after the other, their gradients added up in numpy, applied once.

    Every replica has its own statistics, and clips its own gradient; the gradients of the replicas are averaged. If
    they are `joined`, there is one replica, with micro batches of the rows of all of them.
    """
    numbers = np.arange(STEP_ROWS).reshape([replicas, micro_batches, -1])
    if joined:
        numbers = np.swapaxes(numbers, 0, 1).reshape([1, micro_batches, -1])
    replicas, _, rows = numbers.shape
    inputs = placeholders(rows, dtype)
    with tf.variable_scope("net", dtype=tf.as_dtype(dtype)):
        loss = build(name, inputs)
    variables = tf.trainable_variables()
    gradients = [tf.convert_to_tensor(gradient) for gradient in tf.gradients(loss, variables)]
    given = [tf.placeholder(dtype, variable.shape) for variable in variables]
    of_replica = given if clip is None else tf.clip_by_global_norm(given, clip)[0]
    step_op = OPTIMIZERS[optimizer or OPTIMIZER_OF[name]]().apply_gradients(
        zip(given, variables), tf.train.get_or_create_global_step()
    )
    micro_step = [loss, gradients, tf.get_collection(tf.GraphKeys.UPDATE_OPS)]
    own = [variable for variable in tf.global_variables() if STATISTICS in variable.op.name]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        statistics = [sess.run(own)] * replicas
        for step in range(STEPS):
            losses, totals = [], []
            for replica in range(replicas):
                for variable, value in zip(own, statistics[replica]):
                    variable.load(value, sess)
                micro = []
                for of_step in numbers[replica]:
                    of_micro_batch = Samples(*[values[step * STEP_ROWS + of_step] for values in ALL_ROWS])
                    value, parts, _ = sess.run(micro_step, feed(inputs, of_micro_batch))
                    losses.append(value)
                    micro.append(parts)
                statistics[replica] = sess.run(own)
                mean = [sum(parts) / np.float32(1 if summed else micro_batches) for parts in zip(*micro)]
                totals.append(sess.run(of_replica, dict(zip(given, mean))))
            mean = [sum(parts) / np.float32(1 if summed else replicas) for parts in zip(*totals)]
            sess.run(step_op, dict(zip(given, mean)))
            ctx.record(loss=np.mean(losses))
        _record_towers(ctx, sess, own, statistics)


def _record_towers(ctx: Context, sess: tf.Session, own: List[tf.Variable], statistics: List[List[np.ndarray]]) -> None:
    ctx.record_variables(sess)
    values = ctx.results["variables"][0]
    for replica, arrays in enumerate(statistics):
        values.update((clone_name(v.op.name, replica), array) for v, array in zip(own, arrays))


def read(ctx: Context, name: str, optimizer: str = "", surplus: int = 0, **pipeline: Any) -> None:
    """Trains from a one-shot iterator to its end, with UPDATE_OPS beside the optimizer.

    `surplus` micro batches more than the steps need are in it. The end comes late, so that whatever does not wait for
    it has run.
    """
    plan = Pipeline(ctx, **pipeline)
    stream = plan.stream()
    count = STEPS * (plan.process_rows // plan.micro_rows)

    def micro_batches() -> Iterator[Tuple[np.ndarray, ...]]:
        for number in range(count + surplus):
            first = number % count * plan.micro_rows
            yield tuple(rows[first : first + plan.micro_rows] for rows in stream)
        time.sleep(0.5 if surplus else 0.0)

    kinds = (tf.float32, tf.int32, tf.int32)
    shapes = tuple(tf.TensorShape((None,) + rows.shape[1:]) for rows in stream)
    batches = tf.data.Dataset.from_generator(micro_batches, kinds, shapes)
    inputs = Inputs(*batches.make_one_shot_iterator().get_next())
    with tf.variable_scope("net"):
        loss = plan.loss(name, inputs)
    step = tf.train.get_or_create_global_step()
    train_op = OPTIMIZERS[optimizer or OPTIMIZER_OF[name]]().minimize(loss, global_step=step)
    train_op = tf.group(train_op, tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                ctx.record(loss=sess.run([loss, train_op])[0])
        ctx.record_variables(sess)


def alternating(ctx: Context, **pipeline: Any) -> None:
    """Two losses with an optimizer each, run in turn: maker and judge of adversarial training, a stage each.

    A step of the maker does not feed what the judge alone needs.
    """
    plan = Pipeline(ctx, stages=2, **pipeline)
    noise, real = [tf.placeholder(tf.float32, [None, FEATURES], name) for name in ("noise", "real")]
    with ctx.scope(), tf.variable_scope("maker"):
        made = dense(dense(noise, 8, "hidden", tf.nn.tanh), FEATURES, "make")
    with ctx.scope(), tf.variable_scope("judge", reuse=tf.AUTO_REUSE):
        of_real, of_made = dense(real, 1, "judge"), dense(made, 1, "judge")
        judge_loss = 0.5 * tf.reduce_mean(tf.nn.softplus(of_made)) + tf.reduce_mean(tf.nn.softplus(-of_real))
        maker_loss = tf.reduce_mean(tf.nn.softplus(-of_made))
    steps = [
        tf.train.AdamOptimizer(0.01, name=part).minimize(
            part_loss, tf.train.get_or_create_global_step(), tf.trainable_variables(part)
        )
        for part, part_loss in (("maker", maker_loss), ("judge", judge_loss))
    ]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            rows = plan.rows(step).x
            feeds = {noise: rows} if step % 2 == 0 else {noise: rows, real: rows[::-1]}
            ctx.record(loss=sess.run([[maker_loss, judge_loss][step % 2], steps[step % 2]], feeds)[0])
        ctx.record_variables(sess)
