"""What users train with ZeRO: changed gradients, averages, checkpoints, evaluation before and after minimize."""

import contextlib
import gc
import threading
import weakref
from typing import Any, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.env import Env
from tests.behaviour.small import error_of
from tests.parity.context import STEPS, Context
from tests.parity.scripts.accumulation import ALL_OPTIMIZERS
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import MODELS, cross_entropy, dense, weights
from tests.parity.scripts.optimizers import Inputs
from tests.parity.scripts.splits import annotations


class Trusting(tf.train.Optimizer):
    """Steps as long as the weights are, as LARS and LAMB do: norms of whole variables."""

    def __init__(self, rate: float) -> None:
        super().__init__(False, "Trusting")
        self._rate = rate

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        ratio = tf.norm(var) / (tf.norm(grad) + 0.1)
        return tf.assign_sub(var, self._rate * ratio * grad)

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        return handle.assign_sub(self._rate * tf.norm(handle.read_value()) / (tf.norm(grad) + 0.1) * grad)


def _optimizer(name: str) -> tf.train.Optimizer:
    return Trusting(0.1) if name == "trusting" else ALL_OPTIMIZERS[name]()


def parts(sess: tf.Session) -> Tuple[int, int]:
    """Bytes of the variables that the first replica holds, and of those of the user."""
    graph = sess.graph
    users = sum(v.shape.num_elements() * v.dtype.base_dtype.size for v in tf.trainable_variables())
    held = [
        op
        for op in graph.get_operations()
        if op.type in ("VariableV2", "VarHandleOp") and op.name.startswith("EPL_SPLIT/")
    ]
    slots = [variable.op for variable in tf.global_variables() if variable not in tf.trainable_variables()]
    return sum(_bytes(op) for op in held + slots), users


def _bytes(op: tf.Operation) -> int:
    return tf.TensorShape(op.get_attr("shape")).num_elements() * op.get_attr("dtype").size


def train(
    ctx: Context, name: str, optimizer: str = "adam", clip: Optional[float] = None, average: bool = False, **config: Any
) -> None:
    """Trains a model of the table, fed; `clip`: the global norm."""
    ctx.init(**config)
    _train(ctx, name, optimizer, clip, average)


def _train(
    ctx: Context, name: str, optimizer: str = "adam", clip: Optional[float] = None, average: bool = False
) -> None:
    data, inputs = samples(), Inputs()
    losses = ctx.towers(MODELS[name], inputs.tensors())
    loss = tf.add_n(losses) / len(losses) if len(losses) > 1 else losses[0]
    step = tf.train.get_or_create_global_step()
    maker = _optimizer(optimizer)
    pairs = [pair for pair in maker.compute_gradients(losses[0]) if pair[0] is not None]
    for other in losses[1:]:
        pairs = [
            (gradient + more, variable)
            for (gradient, variable), (more, _) in zip(
                pairs, [pair for pair in maker.compute_gradients(other) if pair[0] is not None]
            )
        ]
    if len(losses) > 1:
        pairs = [(gradient / len(losses), variable) for gradient, variable in pairs]
    norm = tf.constant(0.0)
    if clip is not None:
        gradients, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip)
        pairs = list(zip(gradients, [variable for _, variable in pairs]))
    train_op = maker.apply_gradients(pairs, step)
    if average:
        averages = tf.train.ExponentialMovingAverage(0.9)
        with tf.control_dependencies([train_op]):
            train_op = averages.apply(tf.trainable_variables())
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for number in range(STEPS):
            found = sess.run([loss, norm, train_op], inputs.feed(ctx, data, number))
            ctx.record(loss=found[0], norm=found[1])
        ctx.record_variables(sess)
        ctx.record(parts=parts(sess))


def three_models(ctx: Context, **config: Any) -> None:
    """Trains models one after the other, and counts the threads that wait to write parts of checkpoints."""
    for _ in range(3):
        train(ctx, "layers", **config)
    ctx.record(threads=_checkpoint_threads())


def graphs_in_turn(ctx: Context, **config: Any) -> None:
    """Trains in one graph after the other, as an Estimator does in rounds, and counts what stays of them."""
    ctx.init(**config)
    graphs, held = [], []
    for _ in range(3):
        with tf.Graph().as_default():
            graphs.append(weakref.ref(tf.get_default_graph()))
            _train(ctx, "layers")
            tf.Session().run(tf.global_variables_initializer())  # a session that is dropped, not closed
        gc.collect()
        held.append(len(Env.get().held))
    ctx.record(graphs=sum(one() is not None for one in graphs), threads=_checkpoint_threads(), held=held)


def _checkpoint_threads() -> int:
    return sum(one.name == "epl_checkpoint_parts" for one in threading.enumerate())


def around(ctx: Context, **config: Any) -> None:
    """Builds with the weights before and after minimize: penalties, an evaluation that shares them, assignments."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    table = weights("table", [CLASSES, 6])
    logits = dense(dense(inputs.x, 8, "hidden", tf.nn.tanh), CLASSES, "out")
    loss = cross_entropy(inputs.y, logits) + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
    doubled = table.assign(table * 2.0)
    train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        again = dense(dense(inputs.x, 8, "hidden", tf.nn.tanh), CLASSES, "out")
    length = tf.norm(table)
    value = tf.placeholder(tf.float32, [CLASSES, 6])
    given = table.assign(value)
    assert [v.shape.as_list() for v in tf.trainable_variables()] == [
        [CLASSES, 6],
        [FEATURES, 8],
        [8],
        [8, CLASSES],
        [CLASSES],
    ]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])
        sess.run(doubled)
        rows = {inputs.x: data.x[:7]}
        ctx.record(found=sess.run([again, logits, length, tf.trainable_variables()[1]], rows))
        sess.run(given, {value: data.x[:CLASSES, :6]})
        ctx.record(length=sess.run(length))
        saver = tf.train.Saver()  # built after the first run
        if ctx.workers == 1:  # the directory is that of one process, and every process restores its parts
            path = saver.save(sess, ctx.temporary_directory() + "/late")
            sess.run(doubled)
            saver.restore(sess, path)
        ctx.record(length=sess.run(length))
        ctx.record_variables(sess)
        sess.run(tf.global_variables_initializer())  # built after the first run, too
        ctx.record(length=sess.run(length))


def saved(ctx: Context, path: str = "", name: str = "embedding", **config: Any) -> None:
    """Begins with a checkpoint, if there is one, trains in a monitored session, and records the checkpoint it wrote."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    loss = MODELS[name](*inputs.tensors())
    train_op = ALL_OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    with ctx.saving_session(path) as sess:
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])


def beside(ctx: Context, name: str = "embedding", **config: Any) -> None:
    """Fetches variables in parts, and what is computed from them, beside steps; whether it is as before."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    loss = MODELS[name](*inputs.tensors())
    copies = {variable.op.name: tf.identity(variable) for variable in tf.trainable_variables()}
    train_op = ALL_OPTIMIZERS["adam"]().minimize(loss)
    in_parts = {op.name for op in tf.get_default_graph().get_operations()}
    read = [variable for variable in tf.trainable_variables() if "EPL_SPLIT/" + variable.op.name in in_parts]
    read += [
        slot
        for slot in tf.global_variables()
        for variable in tuple(read)
        if slot is not variable and slot.op.name.startswith(variable.op.name + "/")
    ]
    read += [copies[variable.op.name] for variable in read if variable.op.name in copies]
    assert read or not ctx.planned
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for number in range(STEPS):
            before = sess.run(read)
            value, found, _ = sess.run([loss, read, train_op], inputs.feed(ctx, data, number))
            ctx.record(loss=value, same=all(np.array_equal(*pair) for pair in zip(before, found)))
        ctx.record_variables(sess)


def begun_again(ctx: Context, **config: Any) -> None:
    """Averages of weights that begin between steps with what the weights are by then, and go on."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    loss = MODELS["layers"](*inputs.tensors())
    train_op = ALL_OPTIMIZERS["momentum"]().minimize(loss)
    average = tf.train.ExponentialMovingAverage(0.5)
    with tf.control_dependencies([train_op]):
        step_op = average.apply(tf.trainable_variables())
    shadows = [average.average(variable) for variable in tf.trainable_variables()]
    begin = tf.variables_initializer(shadows)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, step_op], inputs.feed(ctx, data, number))[0])
            if number == 1:
                sess.run(begin)
                values = zip(sess.run(shadows), sess.run(tf.trainable_variables()))
                ctx.record(same=all(np.array_equal(*pair) for pair in values))
        ctx.record_variables(sess)


def two_sessions(ctx: Context, **config: Any) -> None:
    """Trains two sessions of one graph, and saves each; whether the checkpoints hold what the sessions do."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    loss = MODELS["layers"](*inputs.tensors())
    train_op = ALL_OPTIMIZERS["momentum"]().minimize(loss)
    saver, variables = tf.train.Saver(), {v.op.name: v for v in tf.trainable_variables()}
    directory = ctx.temporary_directory()
    with tf.Session() as one, tf.Session() as other:
        sessions = {"one": one, "other": other}
        for number, sess in enumerate((one, other)):
            sess.run(tf.global_variables_initializer())
            for step in range(2 + number):
                sess.run(train_op, inputs.feed(ctx, data, step))
        for name in ("one", "other", "one"):
            values = sessions[name].run(variables)
            if ctx.worker == 0:
                reader = tf.train.load_checkpoint(saver.save(sessions[name], directory + "/" + name))
                ctx.record(same=all(np.array_equal(reader.get_tensor(key), value) for key, value in values.items()))
            sessions[name].run(train_op, inputs.feed(ctx, data, 0))


def in_pieces(ctx: Context, **config: Any) -> None:
    """Asks for variables before they have values, trains, and saves them all in small pieces, and each by itself."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    loss = MODELS["layers"](*inputs.tensors())
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    variables = {v.op.name: v for v in tf.trainable_variables()}
    savers = {key: tf.train.Saver({key: variable}) for key, variable in variables.items()}
    if ctx.planned:
        from epl.runtime.saver import MemoryEfficientBuilder

        savers["all"] = tf.train.Saver(builder=MemoryEfficientBuilder(8))
    directory = ctx.temporary_directory()
    with tf.Session() as sess:
        if ctx.planned:
            ctx.record(errors=[error_of(sess.run, variable).split(",")[0] for variable in variables.values()])
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])
        values = sess.run(variables)
        for key, saver in savers.items():
            if ctx.planned and ctx.worker == 0:
                reader = tf.train.load_checkpoint(saver.save(sess, directory + "/" + key.replace("/", "_")))
                saved = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
                same = all(np.array_equal(values[name], value) for name, value in saved.items())
                ctx.record(same=same and sorted(saved) == (sorted(values) if key == "all" else [key]))
        ctx.record_variables(sess)


def deep(ctx: Context, **config: Any) -> None:
    """Many layers, their weights no multiple of the ranks, one of them used again and again, and all penalized."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()

    def model(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        hidden = x
        for layer in range(4):
            hidden = dense(hidden, 13, "layer%d" % layer, tf.nn.tanh)
        shared = weights("shared", [13, 11])
        for _ in range(2):
            hidden = tf.tanh(tf.matmul(tf.tanh(tf.matmul(hidden, shared)), shared, transpose_b=True))
            tf.add_to_collection("checkpoints", hidden)
        loss = cross_entropy(y, dense(hidden, CLASSES, "out"))
        return loss + 0.01 * tf.add_n([tf.nn.l2_loss(variable) for variable in tf.trainable_variables()])

    losses = ctx.towers(model, [inputs.x, inputs.y])
    loss = tf.add_n(losses) / len(losses) if len(losses) > 1 else losses[0]
    optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
    train_op = optimizer.apply_gradients(ctx.gradients(losses, optimizer))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])
        ctx.record_variables(sess)


def two_trainings(ctx: Context, **config: Any) -> None:
    """A head on a trunk that it leaves as it is, with an optimizer of its own: in turn, together, and no updates."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    target = tf.placeholder(tf.float32, [None, FEATURES])  # of the head alone
    hidden, layers = inputs.x, []
    for layer in range(12):
        hidden = dense(hidden, FEATURES, "layer%d" % layer, tf.nn.tanh)
        layers.append(hidden)
    loss = cross_entropy(inputs.y, dense(hidden, CLASSES, "out"))
    trunk = tf.train.MomentumOptimizer(0.05, 0.9)
    pairs = trunk.compute_gradients(loss)
    trunk_op = trunk.apply_gradients(pairs)
    with tf.variable_scope("head"):
        guess = dense(tf.stop_gradient(layers[5]), FEATURES, "guess")
    head_loss = tf.reduce_mean(tf.square(guess - target))
    head_op = tf.train.AdamOptimizer(0.01, name="head_adam").minimize(
        head_loss, var_list=tf.trainable_variables("head")
    )
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            feed = inputs.feed(ctx, data, number)
            fed = {target: ctx.step_rows(data.x, number), **feed}
            ctx.record(gradients=sess.run([gradient for gradient, _ in pairs], feed))
            if number % 3 == 0:
                ctx.record(loss=sess.run([loss, trunk_op], feed)[0])
            else:
                ops = [head_op] if number % 3 == 1 else [trunk_op, head_op]
                found = sess.run([loss, head_loss, ops], fed)
                ctx.record(loss=found[0], head_loss=found[1])
        ctx.record_variables(sess)


def too_late(ctx: Context, **config: Any) -> None:
    """Computes with a weight in an op that was built after the first run."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(MODELS["plain_variables"](*inputs.tensors()))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, inputs.feed(ctx, data, 0))
        sess.run(tf.reduce_sum(tf.trainable_variables()[0]))


def after(ctx: Context, **config: Any) -> None:
    """Takes weights after the update: an average by hand, rows of a table, and what waits for such values in turn."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    kernel = weights("kernel", [FEATURES, 6])
    table = weights("table", [CLASSES, 6], use_resource=True)
    average = weights("average", [FEATURES, 6], trainable=False)
    loss = cross_entropy(inputs.y, tf.matmul(tf.matmul(inputs.x, kernel), table, transpose_b=True))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.control_dependencies([train_op]):
        rows = tf.nn.embedding_lookup(table, [1, 0])
        total = tf.reduce_sum(table)
        averaged = average.assign(0.75 * average + 0.25 * kernel)
    with tf.control_dependencies([averaged, total]):
        length = tf.norm(kernel) + tf.norm(table)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            found = sess.run([loss, rows, length, train_op], inputs.feed(ctx, data, number))
            ctx.record(loss=found[0], rows=found[1], length=found[2])
        ctx.record_variables(sess)


def two_kinds(ctx: Context, **config: Any) -> None:
    """Two optimizers of one table: the parts are chosen by the dense gradient of the first, the next is sparse."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    table = weights("table", [CLASSES, 6])
    dense_loss = cross_entropy(inputs.y, tf.matmul(inputs.x[:, :6], table, transpose_b=True))
    sparse_loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, inputs.y) - inputs.x[:, 6:]))
    train_ops = [tf.train.GradientDescentOptimizer(0.1).minimize(loss) for loss in (dense_loss, sparse_loss)]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            sess.run(train_ops[0], inputs.feed(ctx, data, number))
            ctx.record(loss=sess.run([sparse_loss, train_ops[1]], inputs.feed(ctx, data, number))[0])
        ctx.record_variables(sess)


def loaded_late(ctx: Context, resource: bool, split: bool = False, **config: Any) -> None:
    """Trains, loads other weights by the two ways that scripts have, and goes on."""
    ctx.init(annotate=not split, **config)
    data, inputs = samples(), Inputs()
    scope = annotations(ctx)[1] if split else contextlib.ExitStack
    with scope():
        wide = tf.tanh(tf.matmul(inputs.x, weights("wide", [FEATURES, 1024], use_resource=resource)))
        loss = cross_entropy(inputs.y, tf.matmul(wide, weights("head", [1024, CLASSES], use_resource=resource)))
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            if number == 2:
                random = np.random.RandomState(3)
                values = [random.uniform(-0.2, 0.2, sess.run(v).shape) for v in tf.trainable_variables()]
                for index, (variable, value) in enumerate(zip(tf.trainable_variables(), values)):
                    if index % 2:
                        variable.load(value, sess)
                    else:
                        fed = tf.placeholder(tf.float32, value.shape)
                        sess.run(variable.assign(fed), {fed: value})
                ctx.record(loaded=sess.run(tf.trainable_variables()))
            ctx.record(loss=sess.run([loss, train_op], inputs.feed(ctx, data, number))[0])
        ctx.record_variables(sess)
        ctx.record(parts=sum(op.name in ("EPL_SPLIT/wide", "EPL_SPLIT/head") for op in sess.graph.get_operations()))


def shown_gradient(ctx: Context, **config: Any) -> None:
    """Fetches a gradient of a training step."""
    ctx.init(**config)
    data, inputs = samples(), Inputs()
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(MODELS["layers"](*inputs.tensors()))
    train_op = optimizer.apply_gradients(pairs)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(gradient=sess.run([pairs[0][0], train_op], inputs.feed(ctx, data, 0))[0])


def misused(ctx: Context, **config: Any) -> None:
    """Does with a variable in parts what cannot be done, each thing twice."""
    ctx.init(**config)

    def trained() -> tf.Variable:
        table = weights("table", [CLASSES, 6], use_resource=True)
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, [0, 1, 1])))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return table

    table, value = trained(), np.zeros([CLASSES, 6])
    total = tf.reduce_sum(table)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        ctx.record(feed=error_of(sess.run, total, {table: value}))
        rows = tf.nn.embedding_lookup(table, [0, 1])
        ctx.record(late=[error_of(sess.run, rows) for _ in range(2)])
    with tf.Graph().as_default(), tf.Session() as sess:
        table = trained()
        looped = tf.while_loop(
            lambda i: i < 2.0, lambda i: i + tf.reduce_sum(tf.square(table)) + 1.0, [tf.constant(0.0)]
        )
        ctx.record(loop=[error_of(sess.run, looped) for _ in range(2)])
