"""What a pipeline trains equals plain TensorFlow: unusual data flow, control flow, gradients, optimizers."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.utils.errors import PlanError
from tests.parallel.in_process import plain_graph
from tests.parallel.pipelines import Chain, begin, dense, equals_plain, no_stage, rewritten, rows, stage


class Model:
    """What `equals_plain` runs: x [None, 3] -> loss; `build(model, x, stage)` gives the loss."""

    def __init__(self, stage, build, optimizer=None):
        self.x = tf.placeholder(tf.float32, [None, 3], "x")
        self.extra = {}
        self.loss = build(self, self.x, stage)
        self.optimizer = optimizer or tf.train.GradientDescentOptimizer(0.1)
        if not hasattr(self, "train_op"):
            self.train_op = self.optimizer.minimize(self.loss)

    def feed(self, count, seed):
        values = {self.x: rows(count, 3, seed)}
        values.update({key: make(count, seed) for key, make in self.extra.items()})
        return values


def check(init, build, micro_batches=2, devices=2, count=8, **config):
    begin(init, micro_batches, devices, **config)
    equals_plain(lambda stage: Model(stage, build), count=count)


def test_ops_before_between_and_after_the_scopes(init):
    def build(model, x, stage):
        x = tf.tanh(x) * 2.0
        with stage():
            hidden = dense(x, 3, 0)
        hidden = hidden + 1.0
        with stage():
            out = dense(hidden, 3, 1)
        return tf.reduce_mean(tf.square(out - 0.5))

    check(init, build)


@pytest.mark.parametrize("devices", [3, 6])
def test_connections_that_skip_stages(init, devices):
    def build(model, x, stage):
        with stage():
            first = dense(x, 3, 0)
        with stage():
            second = dense(first, 3, 1)
        with stage():
            return tf.reduce_mean(tf.square(dense(second + first, 3, 2) + first - x))

    check(init, build, 4, devices, 24)


@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_that_two_stages_use(init, resource):
    def build(model, x, stage):
        with stage():
            with tf.variable_scope("", use_resource=resource):
                w = tf.get_variable("w", [3, 3], initializer=tf.random_normal_initializer(seed=1, stddev=0.5))
            hidden = tf.tanh(tf.matmul(x, w))
        with stage():
            return tf.reduce_mean(tf.square(tf.matmul(dense(hidden, 3, 1), w, transpose_b=True) - 1.0))

    check(init, build, 4)


@pytest.mark.parametrize("resource", [False, True])
def test_an_embedding_that_is_looked_up_in_two_stages(init, resource):
    def build(model, x, stage):
        ids = tf.cast(tf.abs(x * 2), tf.int32) % 5
        with stage():
            with tf.variable_scope("", use_resource=resource):
                table = tf.get_variable("t", [5, 3], initializer=tf.random_normal_initializer(seed=1))
            hidden = dense(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1), 3, 0)
        with stage():
            again = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)
            return tf.reduce_mean(tf.square(dense(hidden, 3, 1) - again))

    check(init, build, 4)


def test_regularisation_that_no_data_reaches(init):
    def build(model, x, stage):
        with stage():
            hidden = dense(x, 3, 0)
        with stage():
            loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1)))
        return loss + 0.1 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])

    check(init, build, 4)


def test_a_cond_on_data_takes_other_branches_in_other_micro_batches(init):
    def build(model, x, stage):
        with stage():
            hidden = dense(x, 3, 0)
        with stage():
            hidden = tf.cond(tf.reduce_sum(x) > 0, lambda: dense(hidden, 3, 1), lambda: dense(hidden, 3, 2) * 2.0)
        with stage():
            return tf.reduce_mean(tf.square(hidden))

    begin(init, 2, 3)
    values = np.concatenate([np.ones([2, 3]), -np.ones([2, 3])]).astype("f")
    model = Model(stage, build)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        loss = sess.run([model.loss, model.train_op], {model.x: values})[0]
        after = {v.name: sess.run(v) for v in tf.trainable_variables()}
    with plain_graph():
        plain = Model(no_stage, build)
        variables = tf.trainable_variables()
        gradients = tf.gradients(plain.loss, variables)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            start = sess.run(variables)
            halves = [sess.run([plain.loss, gradients], {plain.x: values[i : i + 2]}) for i in (0, 2)]
    np.testing.assert_allclose(loss, np.mean([half[0] for half in halves]), rtol=1e-5)
    for k, variable in enumerate(variables):
        mean = np.mean([half[1][k] for half in halves], 0)
        np.testing.assert_allclose(after[variable.name], start[k] - 0.1 * mean, rtol=1e-4, atol=1e-6)


def test_a_cond_on_a_scalar_placeholder(init):
    def build(model, x, stage):
        training = tf.placeholder(tf.bool, [], "training")
        model.extra[training] = lambda count, seed: seed % 2 == 0
        with stage():
            hidden = dense(x, 3, 0)
        with stage():
            hidden = tf.cond(training, lambda: tf.tanh(hidden) * 2.0, lambda: hidden)
            return tf.reduce_mean(tf.square(dense(hidden, 3, 1) - 1.0))

    check(init, build, 4)


@pytest.mark.parametrize("nested", [False, True])
def test_loops_in_both_stages(init, nested):
    def body(w):
        if not nested:
            return lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w)))

        def inner(h):
            return tf.while_loop(lambda j, h: j < 2, lambda j, h: (j + 1, tf.tanh(tf.matmul(h, w))), [0, h])[1]

        return lambda i, h: (i + 1, tf.cond(i > 0, lambda: inner(h), lambda: h * 1.5))

    def loop(x, name):
        w = tf.get_variable(name, [3, 3], initializer=tf.random_normal_initializer(seed=3, stddev=0.5))
        return tf.while_loop(lambda i, h: i < 3, body(w), [0, x])[1]

    def build(model, x, stage):
        with stage():
            hidden = loop(dense(x, 3, 0), "a")
        with stage():
            return tf.reduce_mean(tf.square(loop(hidden, "b") - 1.0))

    check(init, build, 4)


def test_a_recurrent_layer_directly_on_what_another_stage_made(init):
    def build(model, x, stage):
        with stage():
            hidden = tf.reshape(dense(x, 12, 0), [-1, 4, 3])
        with stage():
            cell = tf.nn.rnn_cell.LSTMCell(3, initializer=tf.random_normal_initializer(seed=2, stddev=0.5))
            outputs, _ = tf.nn.dynamic_rnn(cell, hidden, dtype=tf.float32)
            return tf.reduce_mean(tf.square(outputs - 1.0))

    check(init, build, 4)


def test_map_fn_in_a_stage(init):
    def build(model, x, stage):
        with stage():
            hidden = dense(x, 3, 0)
        with stage():
            mapped = tf.map_fn(lambda row: tf.tanh(row) * 2.0, hidden)
            return tf.reduce_mean(tf.square(dense(mapped, 1, 1)))

    check(init, build, 2)


@pytest.mark.parametrize("devices", [2, 4])
def test_clipping_by_the_global_norm_is_done_once_on_the_mean(init, devices):
    def build(model, x, stage):
        with stage():
            hidden = dense(x, 3, 0)
        with stage():
            loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1) - 3.0))
        optimizer = tf.train.AdamOptimizer(0.05)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        model.train_op = optimizer.apply_gradients(zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables))
        return loss

    check(init, build, 4, devices, 16, communication__clip_after_allreduce=True)


def test_gradients_in_the_loss_within_a_stage(init):
    def build(model, x, stage):
        with stage():
            hidden = dense(x, 3, 0)
        with stage():
            out = dense(hidden, 1, 1, tf.tanh)
            penalty = tf.reduce_mean(tf.square(tf.gradients(out, [hidden])[0]))
            return tf.reduce_mean(tf.square(out - 1.0)) + 0.5 * penalty

    check(init, build, 4)


def test_gradients_in_the_loss_that_go_back_over_stages_are_refused(init):
    def build(model, x, stage):
        with stage():
            hidden = dense(x, 3, 0)
        with stage():
            out = dense(hidden, 1, 1)
        return tf.reduce_mean(tf.square(out - 1.0)) + tf.reduce_mean(tf.square(tf.gradients(out, [x])[0]))

    with pytest.raises(PlanError, match="pass of a pipeline goes from .* computed from gradients.* as one stage"):
        check(init, build)


@pytest.mark.parametrize("auto", [False, True])
def test_many_updates_before_a_minimize_in_the_first_stage(init, auto):
    begin(init, 2, 2, auto__auto_parallel=auto, pipeline__num_stages=2 if auto else -1)
    first = no_stage() if auto else stage()
    x = tf.placeholder(tf.float32, [None, 3])

    def layers(hidden, start):
        for index in range(start, start + 3):
            hidden = tf.layers.batch_normalization(dense(hidden, 3, index), training=True)
        return hidden

    with first:
        hidden = layers(x, 0)
    with no_stage() if auto else stage():
        loss = tf.reduce_mean(tf.square(layers(hidden, 3)))
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with no_stage() if auto else first, tf.control_dependencies(updates):
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run([loss, train_op], {x: rows(8, 3, seed)})[0] for seed in range(3)]
        assert len(updates) == 12 and np.isfinite(losses).all()


def test_gradients_of_a_tape_are_refused(init):
    begin(init, 2, 2)
    with tf.GradientTape() as tape:
        model = Chain(2, resource=True)
    variables = tf.trainable_variables()
    model.optimizer.apply_gradients(zip(tape.gradient(model.loss, variables), variables))
    with pytest.raises(PlanError, match="gradients of d0/kernel, d0/bias, .* come from a tf.GradientTape"):
        rewritten()


def test_ids_made_in_a_later_stage_for_an_embedding_of_an_earlier_one_are_refused(init):
    def build(model, x, stage):
        with stage():
            table = tf.get_variable("t", [5, 3])
            hidden = dense(x, 3, 0) + tf.nn.embedding_lookup(table, tf.zeros([tf.shape(x)[0]], tf.int32))
        with stage():
            ids = tf.argmax(dense(hidden, 5, 1), 1)
            return tf.reduce_mean(tf.square(hidden - tf.nn.embedding_lookup(table, ids)))

    with pytest.raises(PlanError, match="'embedding_lookup_1' of stage 0 takes 'ArgMax' of stage 1"):
        check(init, build)


def test_stop_gradient_and_a_stage_without_variables(init):
    def build(model, x, stage):
        with stage():
            hidden = tf.tanh(x)
        with stage():
            hidden = tf.stop_gradient(dense(hidden, 3, 0)) + dense(x, 3, 1)
        with stage():
            return tf.reduce_mean(tf.square(hidden - 1.0))

    check(init, build, 2, 3)


def test_custom_gradients_and_dropout_with_a_placeholder_of_the_rate(init):
    def build(model, x, stage):
        @tf.custom_gradient
        def scaled(y):
            return y * 2.0, lambda dy: dy * 3.0

        rate = tf.placeholder(tf.float32, [], "rate")
        model.extra[rate] = lambda count, seed: 0.0
        with stage():
            hidden = tf.nn.dropout(scaled(dense(x, 3, 0)), rate=rate)
        with stage():
            return tf.reduce_mean(tf.square(dense(hidden, 1, 1)))

    check(init, build, 4)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        lambda: tf.train.RMSPropOptimizer(0.05, centered=True),
        lambda: tf.train.FtrlOptimizer(0.1),
    ],
)
def test_optimizers(init, optimizer):
    begin(init, 4, 2)

    def build(stage):
        model = Chain(2, stage, optimizer())
        model.minimize()
        return model

    equals_plain(build)


def test_an_optimizer_of_keras(init):
    begin(init, 4, 2)

    def build(stage):
        model = Chain(2, stage, resource=True)
        variables = tf.trainable_variables()
        optimizer = tf.keras.optimizers.Adam(0.05)
        model.train_op = optimizer.apply_gradients(zip(tf.gradients(model.loss, variables), variables))
        return model

    equals_plain(build)


def test_a_decayed_learning_rate_counts_steps_not_micro_batches(init):
    begin(init, 4, 2)

    def build(stage):
        step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.1, step, 1, 0.5)
        model = Chain(2, stage, tf.train.GradientDescentOptimizer(rate))
        model.minimize(global_step=step)
        return model

    equals_plain(build)


class Gan:
    """Two trainings that share a generator; each has a placeholder of its own."""

    def __init__(self, stage):
        self.noise = tf.placeholder(tf.float32, [None, 3], "noise")
        self.real = tf.placeholder(tf.float32, [None, 3], "real")
        with stage():
            fake = dense(self.noise, 3, 0)
        with stage():
            judge = tf.layers.Dense(1, name="d1", kernel_initializer=tf.random_normal_initializer(seed=9))
            on_fake, on_real = judge(fake), judge(self.real)
            self.generator_loss = tf.reduce_mean(tf.square(on_fake - 1.0))
            self.judge_loss = tf.reduce_mean(tf.square(on_real - 1.0)) + tf.reduce_mean(tf.square(on_fake))
        generated = [v for v in tf.trainable_variables() if v.name.startswith("d0")]
        judging = [v for v in tf.trainable_variables() if v.name.startswith("d1")]
        self.train_generator = tf.train.GradientDescentOptimizer(0.1).minimize(self.generator_loss, var_list=generated)
        self.train_judge = tf.train.AdamOptimizer(0.05).minimize(self.judge_loss, var_list=judging)


def train_alternately(stage):
    model = Gan(stage)
    values = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for seed in range(3):
            noise = {model.noise: rows(8, 3, seed)}
            both = {model.noise: rows(8, 3, seed), model.real: rows(8, 3, seed + 50)}
            values.append(sess.run([model.judge_loss, model.train_judge], both)[0])
            values.append(sess.run([model.generator_loss, model.train_generator], noise)[0])
        return values + sess.run(tf.trainable_variables())


@pytest.mark.parametrize("devices", [2, 4])
def test_two_trainings_that_alternate_need_their_own_placeholders_alone(init, devices):
    begin(init, 2, devices)
    planned = train_alternately(stage)
    with plain_graph():
        plain = train_alternately(no_stage)
    for mine, other in zip(planned, plain):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_two_trainings_in_one_run(init):
    begin(init, 2, 2)
    model = Gan(stage)
    noise, real = rows(8, 3, 0), rows(8, 3, 1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = {model.noise: noise, model.real: real}
        expected = [sess.run(loss, feed) for loss in (model.generator_loss, model.judge_loss)]
        values = sess.run([model.generator_loss, model.judge_loss, model.train_generator, model.train_judge], feed)[:2]
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_gradients_applied_where_the_loss_is_finite_are_refused(init):
    begin(init, 2, 2)
    model = Chain(2)
    pairs = model.optimizer.compute_gradients(model.loss)
    train = tf.cond(tf.is_finite(model.loss), lambda: model.optimizer.apply_gradients(pairs), tf.no_op)
    with tf.Session() as sess, pytest.raises(PlanError, match="applied inside tf.cond"):
        sess.run(tf.global_variables_initializer())
        sess.run(train, model.feed())


def test_data_that_goes_back_to_an_earlier_stage_is_refused_by_name(init):
    begin(init, 2, 2)
    first, second = epl.replicate(1), epl.replicate(1)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with first:
        hidden = dense(x, 3, 0)
    with second:
        hidden = dense(hidden, 3, 1)
    with first:
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, 2)))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess, pytest.raises(PlanError, match="'d2/MatMul' of stage 0 takes 'd1/Tanh' of stage 1"):
        sess.run(tf.global_variables_initializer())
        sess.run(train, {x: rows(4)})


@pytest.mark.long
@pytest.mark.parametrize("stages,devices,micro_batches", [(6, 2, 1), (8, 2, 3), (6, 3, 6), (9, 3, 4)])
@pytest.mark.parametrize("strategy", ["PreferBackward", "PreferForward", "PreferBackwardOptimizer"])
def test_three_and_more_stages_on_a_device(init, stages, devices, micro_batches, strategy):
    begin(init, micro_batches, devices, pipeline__strategy=strategy)
    names = epl.Env.get().cluster.available_devices
    epl.Cluster(layout={"specific": [[[names[index % devices]]] for index in range(stages)]}).__enter__()

    def build(stage):
        model = Chain(stages, stage)
        model.minimize()
        return model

    equals_plain(build, count=12)
