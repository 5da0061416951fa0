"""The ways to drive training: MonitoredTrainingSession and hooks, Estimator, Supervisor, Saver, summaries."""

import glob
import os
from typing import Any, Dict, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.scripts.data import FEATURES, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS


def _dataset(ctx: Context) -> tf.data.Dataset:
    data = samples()
    rows = tf.data.Dataset.from_tensor_slices((ctx.stream(data.x), ctx.stream(data.y)))
    return rows.batch(ctx.batch)


def _iterator_model(ctx: Context, name: str = "layers") -> Tuple[tf.Tensor, tf.Operation]:
    iterator = _dataset(ctx).make_initializable_iterator()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    x, y = iterator.get_next()
    loss = MODELS[name](x, None, y)
    return loss, OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())


def _events(directory: str) -> Dict[str, List[float]]:
    """Returns the scalar values written under each tag, in order."""
    values: Dict[str, List[float]] = {}
    for path in sorted(glob.glob(os.path.join(directory, "events*"))):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    values.setdefault(value.tag, []).append(value.simple_value)
    return values


class _Seen(tf.train.SessionRunHook):
    """A user's hook: fetches the loss and the step, reads the variables at the end."""

    def __init__(self, ctx: Context, loss: tf.Tensor) -> None:
        self._ctx = ctx
        self._loss = loss
        self._variables: List[tf.Variable] = []

    def begin(self) -> None:
        self._variables = tf.global_variables()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs([self._loss])

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._ctx.record(loss=run_values.results[0])

    def end(self, session: tf.Session) -> None:
        self._ctx.record_variables(session, self._variables)


def monitored(ctx: Context) -> None:
    """MonitoredTrainingSession with every usual hook; ends with its data; summaries and checkpoints are looked at."""
    ctx.init()
    directory = ctx.temporary_directory()
    loss, train_op = _iterator_model(ctx)
    mean_loss = tf.identity(loss)
    tf.summary.scalar("mean_loss", mean_loss)
    tf.summary.scalar("constant", tf.constant(1.5))  # a weight is read before or after its update, as it happens
    if ctx.planned:
        import epl

        epl.add_to_collection(mean_loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    logged: List[float] = []
    hooks = [
        tf.train.StopAtStepHook(last_step=100),
        tf.train.NanTensorHook(loss),
        tf.train.LoggingTensorHook(
            {"logged": mean_loss}, every_n_iter=1, formatter=lambda values: logged.append(values["logged"]) or ""
        ),
        tf.train.StepCounterHook(2, output_dir=directory),
        tf.train.CheckpointSaverHook(directory, save_steps=2),
        tf.train.SummarySaverHook(1, output_dir=directory, summary_op=tf.summary.merge_all()),
        _Seen(ctx, loss),
    ]
    with tf.train.MonitoredTrainingSession(hooks=hooks) as sess:
        while not sess.should_stop():
            sess.run(train_op)
    ctx.record(events=_events(directory), logged=logged, checkpoint=tf.train.latest_checkpoint(directory))
    if ctx.results["checkpoint"][0]:
        ctx.record(saved=sorted(tf.train.list_variables(ctx.results["checkpoint"][0])))


def stopped(ctx: Context, last_step: int) -> None:
    """MonitoredTrainingSession that its hook stops, with everything on by default: summaries, checkpoints, steps."""
    ctx.init()
    directory = ctx.temporary_directory()
    loss, train_op = _iterator_model(ctx)
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=directory,
        save_checkpoint_steps=3,
        save_summaries_steps=2,
        log_step_count_steps=2,
        hooks=[tf.train.StopAtStepHook(last_step=last_step), _Seen(ctx, loss)],
    ) as sess:
        while not sess.should_stop():
            sess.run(train_op)
    ctx.record(files=sorted(os.listdir(directory)))


def _annotated(ctx: Context, default_strategy: bool) -> Any:
    """Annotates what is built inside, by a scope or by a call of `epl.set_default_strategy` amid the model function."""
    if default_strategy and ctx.planned:
        import epl

        epl.set_default_strategy(epl.replicate(ctx.together))
    return tf.name_scope(None) if default_strategy else ctx.scope()


def estimator(ctx: Context, default_strategy: bool) -> None:
    """tf.estimator.Estimator: train, with the model function annotated."""
    ctx.init(annotate=False)

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tf.estimator.EstimatorSpec:
        with _annotated(ctx, default_strategy):
            loss = MODELS["layers"](features, None, labels)
        train_op = OPTIMIZERS["momentum"]().minimize(loss, tf.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[_Seen(ctx, loss)])

    directory = ctx.temporary_directory()
    trainer = tf.estimator.Estimator(model_fn, directory, tf.estimator.RunConfig(save_summary_steps=1))
    trainer.train(lambda: _dataset(ctx), steps=STEPS)
    checkpoint = tf.train.latest_checkpoint(directory)
    ctx.record(checkpoint=checkpoint)
    if checkpoint:
        ctx.record(saved=sorted(tf.train.list_variables(checkpoint)))


def estimator_twice(ctx: Context, default_strategy: bool) -> None:
    """Estimator: training continued from its own checkpoint in a second call, a new graph and session."""
    ctx.init(annotate=False)

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tf.estimator.EstimatorSpec:
        with _annotated(ctx, default_strategy):
            loss = MODELS["layers"](features, None, labels)
        train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[_Seen(ctx, loss)])

    trainer = tf.estimator.Estimator(model_fn, ctx.temporary_directory())
    for _ in range(2):
        ctx.results.pop("variables", None)
        trainer.train(lambda: _dataset(ctx), steps=STEPS // 2)


def supervisor(ctx: Context) -> None:
    """tf.train.Supervisor and its managed session."""
    ctx.init()
    loss, train_op = _iterator_model(ctx)
    manager = tf.train.Supervisor(
        logdir=ctx.temporary_directory(),
        is_chief=True,
        save_model_secs=0,
        local_init_op=tf.group(tf.local_variables_initializer(), tf.tables_initializer()),
    )
    with manager.managed_session() as sess:
        for _ in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op])[0])
        ctx.record_variables(sess)


def save_or_resume(ctx: Context, save: str, resume: str, steps: Tuple[int, int], name: str = "embedding") -> None:
    """Trains steps[0] to steps[1]; starts from the checkpoint `resume` if given, writes `save` if given."""
    ctx.init()
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, data.ids.shape[1]], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    losses = ctx.towers(MODELS[name], [x, ids, y])
    loss = tf.add_n(losses) / len(losses) if len(losses) > 1 else losses[0]
    train_op = ctx.minimize(losses, OPTIMIZERS["adam"]())
    saver = tf.train.Saver()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        if resume:
            saver.restore(sess, resume)
        for step in range(*steps):
            feed = {x: ctx.step_rows(data.x, step), ids: ctx.step_rows(data.ids, step), y: ctx.step_rows(data.y, step)}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        if save:
            saver.save(sess, save)
        ctx.record_variables(sess)


def resume_monitored(ctx: Context, directory: str) -> None:
    """MonitoredTrainingSession that continues from a checkpoint which only the first process can see."""
    ctx.init()
    loss, train_op = _iterator_model(ctx)
    if ctx.worker:
        directory = ctx.temporary_directory()
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=directory,
        save_checkpoint_steps=None,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        hooks=[_Seen(ctx, loss)],
    ) as sess:
        while not sess.should_stop():
            sess.run(train_op)


def write_checkpoint(ctx: Context, path: str, factor: float) -> None:
    """Writes a checkpoint of the monitored model with values that no initializer gives."""
    loss, train_op = _iterator_model(ctx)
    del loss, train_op
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for variable in tf.trainable_variables():
            variable.load(factor * sess.run(variable) + 0.01, sess)
        tf.train.Saver().save(sess, path)


def file_writer(ctx: Context) -> None:
    """tf.summary.FileWriter in a plain session, on a merged tensor and on a tensor of the first replica."""
    ctx.init()
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    loss = MODELS["layers"](x, None, y)
    train_op = OPTIMIZERS["momentum"]().minimize(loss)
    total = tf.reduce_sum(x)
    if ctx.planned:
        import epl

        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection([total], epl.GraphKeys.GLOBAL_SUM_OBJECTS)
    tf.summary.scalar("loss", loss)
    tf.summary.scalar("total", total)
    tf.summary.histogram("kernel", tf.trainable_variables()[0])
    merged = tf.summary.merge_all()
    directory = ctx.temporary_directory()
    writer = tf.summary.FileWriter(directory, tf.get_default_graph())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)}
            summary, value, _ = sess.run([merged, loss, train_op], feed)
            writer.add_summary(summary, step)
            ctx.record(loss=value)
        ctx.record_variables(sess)
    writer.close()
    ctx.record(events=_events(directory))


def different_seeds(ctx: Context, resource: bool, session: str, unseeded: bool) -> None:
    """Each process draws other initial values; those of the first must be everyone's before the first step."""
    ctx.init()
    if not unseeded:
        tf.set_random_seed(100 + ctx.worker)
    data = samples()
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    with tf.variable_scope("net", use_resource=resource):
        logits = tf.layers.dense(tf.layers.dense(x, 8, name="a"), 5, name="b")
        tf.get_variable("statistic", [3], initializer=tf.random_normal_initializer(), trainable=False)
    loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
    train_op = OPTIMIZERS["adam"]().minimize(loss)
    initial: List[Any] = [np.array(0)]

    def steps(sess: tf.Session) -> None:
        for step in range(STEPS):
            feed = {x: ctx.step_rows(data.x, step), y: ctx.step_rows(data.y, step)}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess, variables)

    variables = tf.global_variables()
    if session == "plain":
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            initial[0] = sess.run(tf.trainable_variables()[0])
            steps(sess)
    else:
        with tf.train.MonitoredTrainingSession() as sess:
            steps(sess)
    ctx.record(initial=initial[0])
