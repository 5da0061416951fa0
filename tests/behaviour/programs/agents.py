"""Agents, graphs, Gaussian processes and clusters: variables that a step or the script itself writes."""

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests.behaviour.programs.base import ROWS, dense, feeds, integers, numbers, program, state, train
from tests.parity.context import STEPS, Context


def _of(scope: str) -> Any:
    return tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope + "/")


@program
def maddpg(ctx: Context) -> None:
    """Two agents: each has an actor, a critic of all agents, and copies of both that follow slowly."""
    seen = [tf.placeholder(tf.float32, [None, 4], "observation%d" % agent) for agent in range(2)]
    acted = [tf.placeholder(tf.float32, [None, 2], "action%d" % agent) for agent in range(2)]
    targets = tf.placeholder(tf.float32, [None], "target")

    def network(x: tf.Tensor, units: int, scope: str) -> tf.Tensor:
        with tf.variable_scope(scope, reuse=tf.AUTO_REUSE):
            return dense(dense(x, 8, "fc1", tf.nn.relu), units, "fc2")

    agents = []
    for agent in range(2):
        with tf.variable_scope("agent_%d" % agent):
            scope = tf.get_variable_scope().name
            policy = tf.nn.softmax(network(seen[agent], 2, "p_func"))
            target_policy = tf.nn.softmax(network(seen[agent], 2, "target_p_func"))
            value = network(tf.concat(seen + acted, 1), 1, "q_func")[:, 0]
            target_value = network(tf.concat(seen + acted, 1), 1, "target_q_func")[:, 0]
            q_loss = tf.reduce_mean(tf.square(value - targets))
            actions = acted[:agent] + [policy] + acted[agent + 1 :]
            p_loss = -tf.reduce_mean(network(tf.concat(seen + actions, 1), 1, "q_func")[:, 0])
            p_loss += 1e-3 * tf.reduce_mean(tf.square(policy))
            steps = []
            for loss, part in ((q_loss, "q_func"), (p_loss, "p_func")):
                optimizer = tf.train.AdamOptimizer(0.01, epsilon=1e-4, name=part + "_adam")
                pairs = optimizer.compute_gradients(loss, _of(scope + "/" + part))
                pairs = [(tf.clip_by_norm(gradient, 0.5), variable) for gradient, variable in pairs]
                steps.append(optimizer.apply_gradients(pairs))
            follow = tf.group(*[
                to.assign(0.9 * to + 0.1 * of)
                for part in ("p_func", "q_func")
                for of, to in zip(_of(scope + "/" + part), _of(scope + "/target_" + part))
            ])  # fmt: skip
            agents.append((policy, target_policy, target_value, q_loss, p_loss, steps, follow))
    rows = {one: numbers(ROWS, 4, seed=at) for at, one in enumerate(seen)}
    rows.update({one: numbers(ROWS, 2, seed=5 + at) for at, one in enumerate(acted)})
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run([agent[-1] for agent in agents])
        for feed in feeds(ctx, rows):
            for at, (policy, _, target_value, q_loss, p_loss, steps, follow) in enumerate(agents):
                sess.run(policy, {seen[at]: feed[seen[at]][:1]})
                next_actions = [sess.run(agent[1], {seen[i]: feed[seen[i]]}) for i, agent in enumerate(agents)]
                following = sess.run(target_value, {**feed, **dict(zip(acted, next_actions))})
                ctx.record(loss=sess.run([q_loss, steps[0]], {**feed, targets: 0.5 + 0.9 * following})[0])
                ctx.record(loss=sess.run([p_loss, steps[1]], feed)[0])
                sess.run(follow)
        ctx.record_variables(sess)


@program
def alphazero(ctx: Context) -> None:
    """Two heads, decay of weights in a collection, a rate that is fed; the model is saved, played and restored."""
    boards = tf.placeholder(tf.float32, [None, 3, 3, 2], "boards")
    moves = tf.placeholder(tf.float32, [None, 9], "pi")
    results = tf.placeholder(tf.float32, [None, 1], "z")
    rate = tf.placeholder(tf.float32, [], "lr")
    decay = tf.keras.regularizers.l2(1e-2)
    x = tf.layers.conv2d(
        boards, 4, 3, padding="same", kernel_initializer=tf.constant_initializer(numbers(72)), kernel_regularizer=decay
    )
    x = tf.layers.flatten(tf.nn.relu(x))
    policy, value = dense(x, 9, "policy"), tf.tanh(dense(dense(x, 4, "value1", tf.nn.relu), 1, "value2"))
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=moves, logits=policy))
    loss += tf.losses.mean_squared_error(results, value) + tf.losses.get_regularization_loss()
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True).minimize(loss, step)
    saver = tf.train.Saver(tf.trainable_variables() + [step])
    shares = np.abs(numbers(ROWS, 9, seed=3))
    rows = {
        boards: numbers(ROWS, 3, 3, 2),
        moves: shares / shares.sum(1, keepdims=True),
        results: np.sign(numbers(ROWS, 1)),
    }
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        path = ctx.directory + "/best"  # of all workers
        saver.save(sess, path)
        for number, feed in enumerate(feeds(ctx, rows)):
            ctx.record(loss=sess.run([train_op, loss], {**feed, rate: 0.02 if number < 3 else 0.002})[1])
            sess.run([tf.get_default_graph().get_tensor_by_name("policy/BiasAdd:0"), value], {boards: feed[boards][:1]})
            if number == 1:
                saver.restore(sess, path)  # the new one has lost
        ctx.record_variables(sess)


@program
def ppo(ctx: Context) -> None:
    """An old policy by assignment, clipped ratios, moments of observations that the script feeds, several epochs."""
    seen = tf.placeholder(tf.float32, [None, 4], "ob")
    taken = tf.placeholder(tf.float32, [None, 2], "ac")
    advantage, returned = [tf.placeholder(tf.float32, [None], name) for name in ("atarg", "ret")]
    clip = tf.placeholder(tf.float32, [], "lrmult")
    total, squares, count = (
        state("obfilter/sum", 4),
        state("obfilter/sumsq", 4, value=0.1),
        state("obfilter/count", value=0.1),
    )
    fed = [tf.placeholder(tf.float32, shape) for shape in ([4], [4], [])]
    filter_op = tf.group(*[one.assign_add(more) for one, more in zip((total, squares, count), fed)])
    mean = total / count
    spread = tf.sqrt(tf.maximum(squares / count - tf.square(mean), 1e-2))
    normal = tf.clip_by_value((seen - mean) / spread, -5.0, 5.0)

    def policy(scope: str) -> Any:
        with tf.variable_scope(scope):
            hidden = dense(normal, 8, "fc", tf.tanh)
            logstd = tf.get_variable("logstd", [2], initializer=tf.zeros_initializer())
            action = dense(hidden, 2, "final")
            log = -0.5 * tf.reduce_sum(tf.square((taken - action) / tf.exp(logstd)), -1) - tf.reduce_sum(logstd)
            return log, dense(hidden, 1, "vf")[:, 0], tf.reduce_sum(logstd)

    log, value, entropy = policy("pi")
    old_log, _, _ = policy("oldpi")
    ratio = tf.exp(log - tf.stop_gradient(old_log))
    surrogate = tf.minimum(ratio * advantage, tf.clip_by_value(ratio, 1 - 0.2 * clip, 1 + 0.2 * clip) * advantage)
    loss = -tf.reduce_mean(surrogate) + tf.reduce_mean(tf.square(value - returned)) - 0.01 * entropy
    optimizer = tf.train.AdamOptimizer(0.01 * clip, epsilon=1e-4)
    train_op = optimizer.minimize(loss, var_list=_of("pi"))
    copy = [old.assign(new) for old, new in zip(_of("oldpi"), _of("pi"))]
    data = numbers(ROWS, 4) * 2 + 1
    rows = {
        seen: data,
        taken: numbers(ROWS, 2, seed=2),
        advantage: numbers(ROWS, seed=3),
        returned: numbers(ROWS, seed=4),
    }
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step, feed in enumerate(feeds(ctx, rows)):
            batch = data[step * 16 : step * 16 + 16]
            sess.run(filter_op, dict(zip(fed, (batch.sum(0), np.square(batch).sum(0), len(batch)))))
            sess.run(copy)
            for _ in range(2):
                ctx.record(loss=sess.run([loss, train_op], {**feed, clip: 1.0 - 0.1 * step})[0])
        ctx.record_variables(sess)


@program
def deepcluster(ctx: Context) -> None:
    """Labels come from clusters of fetched features; the last layer begins anew with each epoch."""
    x = tf.placeholder(tf.float32, [None, 5], "images")
    labels = tf.placeholder(tf.int32, [None], "pseudo_labels")
    features = dense(x, 6, "features", tf.nn.relu)
    logits = dense(features, 3, "top_layer")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    again = tf.variables_initializer([one for one in tf.global_variables() if one.op.name.startswith("top_layer")])
    data = numbers(ROWS, 5)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            known = sess.run(features, {x: data})
            nearest = np.argmin(np.square(np.round(known[:, None] - known[None, :3], 4)).sum(-1), 1)
            sess.run(again)
            for feed in feeds(ctx, {x: data, labels: nearest}, range(3)):
                ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)


@program
def gpflow(ctx: Context) -> None:
    """A sparse Gaussian process in float64: Cholesky, Adam for the kernel, natural gradients by hand."""
    x, y = [tf.placeholder(tf.float64, [None, 1], name) for name in ("X", "Y")]

    def value(name: str, initial: np.ndarray) -> tf.Variable:
        return tf.get_variable(name, initializer=np.asarray(initial, np.float64))

    inducing = value("Z", np.linspace(-2, 2, 4)[:, None])
    length, mean, root = value("lengthscales", 0.5), value("q_mu", np.zeros([4, 1])), value("q_sqrt", np.eye(4))

    def kernel(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return tf.exp(-tf.square(one - tf.transpose(other)) / (2 * tf.square(tf.nn.softplus(length))))

    lower = tf.cholesky(kernel(inducing, inducing) + 1e-6 * tf.eye(4, dtype=tf.float64))
    part = tf.matrix_triangular_solve(lower, kernel(inducing, x))
    triangle = tf.matrix_band_part(root, -1, 0)
    found = tf.matmul(part, mean, transpose_a=True)
    spread = (
        1 - tf.reduce_sum(tf.square(part), 0) + tf.reduce_sum(tf.square(tf.matmul(triangle, part, transpose_a=True)), 0)
    )
    expected = -0.5 * (tf.square(y - found)[:, 0] + spread) / 0.1
    divergence = 0.5 * (tf.reduce_sum(tf.square(mean)) + tf.reduce_sum(tf.square(triangle)) - 4)
    divergence -= tf.reduce_sum(tf.log(tf.abs(tf.diag_part(triangle))))
    rows = tf.cast(tf.shape(x)[0], tf.float64)
    loss = -(tf.reduce_sum(expected) * 96 / rows - divergence) / 96
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss, var_list=[inducing, length])
    natural = tf.train.GradientDescentOptimizer(0.05)
    ((slope, _),) = natural.compute_gradients(loss, [mean])
    step = tf.matmul(triangle, tf.matmul(triangle, slope, transpose_a=True))
    natural_op = natural.apply_gradients([(step, mean)])
    packed = tf.placeholder(tf.float64, [4, 4], "unpacked")
    assign = root.assign(packed)
    data = numbers(ROWS, 1, dtype="float64")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for feed in feeds(ctx, {x: data, y: np.sin(data)}):
            ctx.record(loss=sess.run([loss, natural_op], feed)[0])
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
            sess.run(assign, {packed: 0.9 * sess.run(root)})
        ctx.record_variables(sess)


@program
def graph_nets(ctx: Context) -> None:
    """Several graphs in one: nodes, edges, senders, receivers and their numbers are fed, all of them whole."""
    nodes = tf.placeholder(tf.float32, [None, 3], "nodes")
    edges = tf.placeholder(tf.float32, [None, 2], "edges")
    senders, receivers = [tf.placeholder(tf.int32, [None], name) for name in ("senders", "receivers")]
    sizes = tf.placeholder(tf.int32, [None], "n_node")
    targets = tf.placeholder(tf.float32, [None, 1], "globals")
    inputs = [nodes, edges, senders, receivers, sizes, targets]
    if ctx.planned:
        import epl

        epl.keep_whole(inputs)
    count = tf.shape(nodes)[0]
    x, e = dense(nodes, 4, "encode_nodes"), dense(edges, 4, "encode_edges")
    for _ in range(2):
        with tf.variable_scope("core", reuse=tf.AUTO_REUSE):
            e = dense(tf.concat([e, tf.gather(x, senders), tf.gather(x, receivers)], 1), 4, "edge", tf.tanh)
            x = dense(tf.concat([x, tf.unsorted_segment_sum(e, receivers, count)], 1), 4, "node", tf.tanh)
    graph = tf.cast(tf.reduce_sum(tf.cast(tf.range(count)[:, None] >= tf.cumsum(sizes)[None], tf.int32), 1), tf.int32)
    out = dense(tf.unsorted_segment_sum(x, graph, tf.shape(sizes)[0]), 1, "decode")
    loss = tf.reduce_mean(tf.square(out - targets))
    train_op = tf.train.AdamOptimizer(0.01, epsilon=1e-4).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            random = np.random.RandomState(step)
            of_graphs = random.randint(2, 5, 3 + step)
            total, links = of_graphs.sum(), 7 + step
            ends = random.randint(0, total, [2, links])
            values = [numbers(total, 3), numbers(links, 2), ends[0], ends[1], of_graphs, numbers(len(of_graphs), 1)]
            ctx.record(loss=sess.run([loss, train_op], dict(zip(inputs, values)))[0])
        ctx.record_variables(sess)


class _Multistep(tf.train.AdamOptimizer):
    """Adam that applies the mean of the gradients of two steps: they are added up in a slot, a counter says when."""

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)
        self._create_non_slot_variable(0, "iter", min(var_list, key=lambda one: one.name))
        for variable in var_list:
            self._zeros_slot(variable, "grad_acc", self._name)

    def _counter(self) -> tf.Variable:
        return self._get_non_slot_variable("iter", tf.get_default_graph())

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        total = self.get_slot(var, "grad_acc")

        def apply() -> tf.Operation:
            mean = (total + grad) / 2.0
            with tf.control_dependencies([super(_Multistep, self)._apply_dense(mean, var)]):
                return tf.group(total.assign(tf.zeros_like(grad)))

        return tf.cond(tf.equal(self._counter(), 1), apply, lambda: tf.group(total.assign_add(grad)))

    def _finish(self, update_ops: Any, name_scope: str) -> tf.Operation:
        powers = self._get_beta_accumulators()
        with tf.control_dependencies(update_ops):

            def move() -> tf.Operation:
                return tf.group(*[one.assign(one * by) for one, by in zip(powers, (self._beta1_t, self._beta2_t))])

            moved = tf.cond(tf.equal(self._counter(), 1), move, tf.no_op)
            with tf.control_dependencies([moved]):
                counted = self._counter().assign(1 - self._counter())
        return tf.group(*update_ops, counted, name=name_scope)


@program
def sampled_neighbours(ctx: Context) -> None:
    """A row is a node with the neighbours that the script drew; segments sum over the edges of the batch."""
    nodes = tf.placeholder(tf.float32, [None, 4], "batch")
    neighbours = tf.placeholder(tf.float32, [None, 3, 4], "neigh_samples")
    known = tf.placeholder(tf.bool, [None, 3], "neigh_known")
    labels = tf.placeholder(tf.float32, [None, 2], "labels")
    places = tf.tile(tf.range(tf.shape(nodes)[0])[:, None], [1, 3])
    edges, ends = tf.boolean_mask(neighbours, known), tf.boolean_mask(places, known)
    seen = tf.math.segment_sum(dense(edges, 5, "aggregate", tf.nn.relu), ends)
    x = tf.nn.l2_normalize(tf.concat([dense(nodes, 5, "self"), seen], 1), 1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=dense(x, 2, "predict")))
    loss += tf.add_n([1e-3 * tf.nn.l2_loss(one) for one in tf.trainable_variables()])
    optimizer = _Multistep(0.02, epsilon=1e-4)
    pairs = [(tf.clip_by_value(slope, -5.0, 5.0), one) for slope, one in optimizer.compute_gradients(loss)]
    here = numbers(ROWS, 3, seed=3) > 0
    here[:, 0] = True
    rows = {nodes: numbers(ROWS, 4), neighbours: numbers(ROWS, 3, 4, seed=1), known: here}
    rows[labels] = (numbers(ROWS, 2, seed=2) > 0).astype(np.float32)
    train(ctx, loss, optimizer.apply_gradients(pairs), rows)


@program
def replay_buffer(ctx: Context) -> None:
    """Transitions are put into a ring of variables by the rows of the step, and others are read for the loss."""
    seen = tf.placeholder(tf.float32, [None, 4], "observation")
    chosen = tf.placeholder(tf.int32, [None], "indices")
    ring, place = state("ring", 48, 4), tf.get_variable("place", initializer=0, trainable=False, use_resource=True)
    known, at = ring.read_value(), place.read_value()
    value = dense(tf.concat([seen, tf.gather(known, chosen)], 1), 1, "q")
    loss = tf.reduce_mean(tf.square(value - 1))
    count = tf.shape(seen)[0]
    with tf.control_dependencies([loss]):
        put = tf.scatter_nd_update(ring, ((at + tf.range(count)) % 48)[:, None], seen)
        moved = place.assign((at + count) % 48)
    train_op = tf.group(tf.train.AdamOptimizer(0.01).minimize(loss), put, moved)
    train(ctx, loss, train_op, {seen: numbers(ROWS, 4), chosen: integers(48, ROWS)})


@program
def count_sketch(ctx: Context) -> None:
    """Three hashes of each row count visits in a table; the least of the three is the row's own number."""
    keys = tf.placeholder(tf.int32, [None], "states")
    x = tf.placeholder(tf.float32, [None, 4], "observation")
    table = state("sketch", 3, 7)
    hashes = [(keys * factor + 1) % 7 for factor in (3, 5, 11)]
    known = table.read_value()
    visits = tf.reduce_min(tf.stack([tf.gather(known[row], one) for row, one in enumerate(hashes)]), 0)
    loss = tf.reduce_mean(tf.square(dense(x, 1, "q")[:, 0] - 1 / tf.sqrt(visits + 1)))
    with tf.control_dependencies([loss]):
        places = tf.concat([tf.stack([tf.fill(tf.shape(keys), row), one], 1) for row, one in enumerate(hashes)], 0)
        counted = tf.scatter_nd_add(table, places, tf.ones(tf.shape(places)[:1]))
    train_op = tf.group(tf.train.GradientDescentOptimizer(0.1).minimize(loss), counted)
    train(ctx, loss, train_op, {keys: integers(40, ROWS), x: numbers(ROWS, 4)})


@program
def population_norm(ctx: Context) -> None:
    """Layers are normalized by the mean and spread of earlier batches, which the step then moves."""
    x = tf.placeholder(tf.float32, [None, 5], "x")
    hidden = dense(x, 4, "hidden")
    mean, variance = state("mean", 4), state("variance", 4, value=1.0)
    known = mean.read_value(), variance.read_value()
    normal = (hidden - known[0]) * tf.rsqrt(known[1] + 1e-3)
    loss = tf.reduce_mean(tf.square(dense(tf.tanh(normal), 1, "out") - 1))
    moments = tf.nn.moments(hidden, [0])
    with tf.control_dependencies([loss]):
        moved = [one.assign(0.9 * old + 0.1 * new) for one, old, new in zip((mean, variance), known, moments)]
    train_op = tf.group(tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss), *moved)
    train(ctx, loss, train_op, {x: numbers(ROWS, 5)})
