"""What a step writes without data: all updates see the value of before, and nothing is written at the end of data."""

import contextlib
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from tests.parallel.in_process import Linear, replicas_equal, rewritten
from tests.parallel.pipelines import dense

STEPS = 5
BATCH = 8

PLANS = {
    "one device": {"devices": 1},
    "groups": {"devices": 1, "optimizer__num_apply_group": 2},
    "data parallel": {"devices": 2},
    "data parallel groups": {"devices": 2, "optimizer__num_apply_group": 2},
    "zero": {"devices": 2, "zero__level": "v1"},
    "stages": {"devices": 2, "stages": True},
    "stages 4": {"devices": 2, "stages": True, "pipeline__num_micro_batch": 4},
    "stages 2 replicas": {"devices": 4, "stages": True, "pipeline__num_micro_batch": 2},
    "automatic": {"devices": 2, "auto__auto_parallel": True, "pipeline__num_stages": 2},
    "automatic 4": {
        "devices": 4,
        "auto__auto_parallel": True,
        "pipeline__num_stages": 2,
        "pipeline__num_micro_batch": 4,
    },
}
ACCUMULATED = {
    "accumulation": {"devices": 1, "pipeline__num_micro_batch": 2},
    "accumulation 2": {"devices": 2, "pipeline__num_micro_batch": 2},
}


def begin(init, devices, stages=False, **config):
    """A fresh graph; what opens the scope of the next stage."""
    automatic = "auto__auto_parallel" in config
    init(devices, annotate=not stages and not automatic, **config)
    return (lambda: epl.replicate(1)) if stages else contextlib.suppress


# ---- A learning rate by a global step that the script writes itself


class WeightDecay(tf.train.Optimizer):
    """Adam with weight decay as in the original BERT code: it assigns by itself, and leaves the global step alone."""

    def __init__(self, rate):
        super().__init__(False, "WeightDecay")
        self.rate = rate

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []
        for gradient, variable in grads_and_vars:
            slots = [
                tf.get_variable(
                    variable.op.name + suffix,
                    variable.shape.as_list(),
                    tf.float64,
                    tf.zeros_initializer(),
                    trainable=False,
                )
                for suffix in ("/adam_m", "/adam_v")
            ]
            m = 0.9 * slots[0] + 0.1 * gradient
            v = 0.99 * slots[1] + 0.01 * tf.square(gradient)
            update = m / (tf.sqrt(v) + 1e-3) + 0.01 * variable
            updates += [variable.assign(variable - self.rate * update), slots[0].assign(m), slots[1].assign(v)]
        return tf.group(*updates, name=name)


def rate_of(step):
    """The learning rate of a step: another one in each."""
    return 0.01 * (1 + step) * (1 + step % 2)


def rate_by(step):
    """The same of a global step, whose reference is looked at late: what is added to it takes its time, and is 0."""
    table = tf.get_variable("table", [200, 200], tf.float64, tf.random_normal_initializer(seed=1), trainable=False)
    step += tf.cast(tf.reduce_sum(tf.linalg.svd(table, compute_uv=False)) < 0.0, tf.int64)
    return 0.01 * (1 + tf.cast(step, tf.float64)) * (1 + tf.cast(step % 2, tf.float64))


class Model:
    """Four dense layers in two stages, least squares, in float64; without `rate` the script counts its steps itself."""

    def __init__(self, stage, rate=None):
        self.x = tf.placeholder(tf.float64, [None, 3], "x")
        with stage():
            hidden = dense(dense(self.x, 8, 0), 8, 1)
        with stage():
            self.loss = tf.reduce_mean(tf.square(dense(dense(hidden, 8, 2), 1, 3, None) - 1.0))
        step = tf.train.get_or_create_global_step()
        optimizer = WeightDecay(rate_by(step) if rate is None else rate)
        variables = tf.trainable_variables()
        gradients = tf.gradients(self.loss, variables, gate_gradients=True)
        self.train_op = optimizer.apply_gradients(zip(gradients, variables), step)
        if rate is None:
            self.train_op = tf.group(self.train_op, [step.assign(step + 1)])


def batch(step):
    return np.random.RandomState(step).randn(BATCH, 3)


def with_rates(rates):
    """Losses of plain TensorFlow, which is given the learning rate of each step; to be called before `init`."""
    with tf.Graph().as_default(), tf.Session() as sess:
        rate = tf.placeholder(tf.float64, [])
        model = Model(contextlib.suppress, rate)
        sess.run(tf.global_variables_initializer())
        return [
            sess.run([model.loss, model.train_op], {model.x: batch(step), rate: value})[0]
            for step, value in enumerate(rates)
        ]


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan != "zero"])
def test_a_step_has_one_learning_rate(init, plan):
    expected = with_rates([rate_of(step) for step in range(STEPS)])
    model = Model(begin(init, **PLANS[plan]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run([model.loss, model.train_op], {model.x: batch(step)})[0] for step in range(STEPS)]
        assert sess.run(tf.train.get_global_step()) == STEPS
    np.testing.assert_allclose(losses, expected, rtol=1e-9)


@pytest.mark.parametrize("plan", ACCUMULATED)
def test_an_accumulated_step_has_the_learning_rate_of_its_last_run(init, plan):
    expected = with_rates([rate_of(2 * step + 1) for step in range(STEPS)])
    model = Model(begin(init, **ACCUMULATED[plan]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        losses = [sess.run([model.loss, model.train_op], {model.x: batch(run // 2)})[0] for run in range(2 * STEPS)]
        assert sess.run(tf.train.get_global_step()) == 2 * STEPS
    np.testing.assert_allclose(losses[::2], expected, rtol=1e-9)


# ---- The end of data


def next_of(kinds, shapes, batches):
    """What an iterator over the batches gives; their end comes late, so that whatever does not wait for it has run."""

    def late():
        yield from batches
        time.sleep(0.3)

    return tf.data.Dataset.from_generator(late, kinds, shapes).make_one_shot_iterator().get_next()


class Reading:
    """An embedding and dense layers that train on so many batches."""

    def __init__(self, stage, optimizer, batches, resource=False):
        rows = [(np.arange(number, number + BATCH) % 5, np.ones([BATCH, 3])) for number in range(batches)]
        shapes = (tf.TensorShape([BATCH]), tf.TensorShape([BATCH, 3]))
        ids, x = next_of((tf.int32, tf.float32), shapes, rows)
        with tf.variable_scope("", use_resource=resource):
            with stage():
                table = tf.get_variable("table", [5, 3], initializer=tf.random_normal_initializer(seed=1))
                hidden = dense(tf.nn.embedding_lookup(table, ids) + x, 3, 0)
            with stage():
                self.loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1, None) - 1.0))
            step = tf.train.get_or_create_global_step()
            runs = tf.get_variable("runs", [], tf.int64, tf.zeros_initializer(), trainable=False)
            self.train_op = tf.group(optimizer.minimize(self.loss, step), runs.assign_add(1))


def variables_of(sess, has_trained):
    """All global variables; those of replica 1 of stage 0 as well, which the first training step initializes."""
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    for name in list(variables) if has_trained else []:
        try:
            copy = sess.graph.get_operation_by_name("EPL_REPLICA_1/" + name)
        except KeyError:
            continue
        if copy.type == "VariableV2":
            variables[copy.name] = copy.outputs[0]
    return sess.run(variables)


def changed(before, after):
    return sorted(name for name in before if not np.array_equal(before[name], after[name]))


def train_to_the_end(model):
    """The variables that the run without data changes; the steps before it."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        steps = 0
        while True:
            before = variables_of(sess, steps > 0)
            try:
                sess.run(model.train_op)
                steps += 1
            except tf.errors.OutOfRangeError:
                return changed(before, variables_of(sess, steps > 0)), steps


@pytest.mark.parametrize("plan", {**PLANS, **ACCUMULATED})
def test_a_step_without_data_changes_no_variable(init, plan):
    """One batch more than whole steps need, where a step reads several."""
    model = Reading(begin(init, **{**PLANS, **ACCUMULATED}[plan]), tf.train.AdamOptimizer(0.01), 9)
    changes, steps = train_to_the_end(model)
    assert not changes and steps >= 1


@pytest.mark.grid
@pytest.mark.parametrize("resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("optimizer", ["adam", "momentum", "rmsprop"])
def test_no_optimizer_changes_a_variable_without_data(init, optimizer, resource):
    made = {
        "adam": tf.train.AdamOptimizer,
        "momentum": lambda rate: tf.train.MomentumOptimizer(rate, 0.9),
        "rmsprop": tf.train.RMSPropOptimizer,
    }[optimizer](0.01)
    assert train_to_the_end(Reading(begin(init, 2), made, 5, resource)) == ([], 2)


def test_on_one_device_writes_from_one_source_wait_for_the_others(init):
    init(1)
    model = Linear()
    many, few = [next_of(tf.float32, [2, 3], [np.ones([2, 3])] * count) for count in (9, 1)]
    seen = tf.get_variable("seen", [], initializer=tf.zeros_initializer(), trainable=False)
    loss = tf.reduce_mean(tf.matmul(many + few, model.w))
    train_op = tf.group(model.optimizer.minimize(loss), seen.assign_add(tf.reduce_sum(many)))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(train_op)
        assert sess.run(seen) == 6


def test_an_optimizer_trains_on_though_the_data_of_another_has_ended(init):
    stage = begin(init, 2)
    with tf.variable_scope("first"):
        first = Reading(stage, tf.train.AdamOptimizer(0.01, name="first"), 2)
    with tf.variable_scope("second"):
        second = Reading(stage, tf.train.AdamOptimizer(0.01, name="second"), 6)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(first.train_op)
        before = variables_of(sess, True)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(first.train_op)
        assert changed(before, variables_of(sess, True)) == []
        sess.run(second.train_op)
        changes = changed(before, variables_of(sess, True))
        assert [name for name in changes if "second" in name]
        assert not [name for name in changes if "second" not in name and not name.endswith("global_step")]


def ancestors_of(op):
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        before = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        waiting += [each for each in before if each not in found]
        found.update(before)
    return found


@pytest.mark.parametrize("config", [{}, {"zero__level": "v0"}, {"zero__level": "v1"}], ids=["copies", "v0", "v1"])
def test_a_fed_step_writes_nothing_before_its_gate(init, config):
    """The decay of slots waits for all replicas: another one may still save the slots of the step before."""
    init(2, **config)
    rows = tf.placeholder(tf.int32, [None], "rows")
    table = tf.get_variable("table", [6, 2], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, rows)))
    tf.train.AdamOptimizer(0.1).minimize(loss)
    gates = {gate.op.name for gate in rewritten().gates}
    decays = [op for op in tf.get_default_graph().get_operations() if op.type == "Assign" and "/update" in op.name]
    assert len(decays) >= 2 and gates  # of two slots
    for decay in decays:
        before = {op.name.split("EPL_REPLICA_1/")[-1] for op in ancestors_of(decay)}
        assert before & gates, decay.name


@pytest.mark.parametrize("config", [{}, {"zero__level": "v1"}], ids=["copies", "v1"])
def test_what_a_step_writes_from_fed_values_waits_for_its_gate(init, config):
    init(2, **config)
    rows = tf.placeholder(tf.int32, [None], "rows")
    table = tf.get_variable("table", [6, 2], initializer=tf.ones_initializer())
    visits = tf.get_variable("visits", [6], initializer=tf.zeros_initializer(), trainable=False)
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, rows)))
    visit = tf.scatter_add(visits, rows, tf.ones_like(rows, tf.float32)).op
    train_op = tf.group(tf.train.GradientDescentOptimizer(0.1).minimize(loss), visit)
    gates = {gate.op.name for gate in rewritten().gates}
    assert gates & {op.name for op in ancestors_of(visit)}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {rows: [0, 1, 2, 2]})
        sess.run(visit, {rows: [5, 5]})  # no step


# ---- Runs that are no training steps


def test_a_step_write_by_itself_needs_no_data(init):
    model = Reading(begin(init, 2), tf.train.AdamOptimizer(0.01), 2)
    reset = tf.train.get_global_step().assign(7)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(reset)
        assert replicas_equal(sess, "global_step")
        sess.run(model.train_op)  # both batches are left
        assert sess.run(tf.train.get_global_step()) == 8


def test_a_usual_training_step_on_one_device_is_left_as_it_is(init):
    init(1)
    model = Linear(optimizer=tf.train.AdamOptimizer(0.01))
    model.optimizer.minimize(model.loss, tf.train.get_or_create_global_step())
    before = len(tf.get_default_graph().get_operations())
    assert rewritten().runs_as_it_is
    assert len(tf.get_default_graph().get_operations()) == before


def test_a_write_that_updates_need_comes_before_them(init):
    init(2)
    model = Linear()
    count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False)
    with tf.control_dependencies([count.assign_add(1.0)]):
        train_op = model.optimizer.minimize(count.read_value() * model.loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        start = sess.run(model.w)
        sess.run(train_op, model.feed())
        assert sess.run(count) == 1 and not np.array_equal(start, sess.run(model.w))
    assert Graph.get().rewritten is not None
