"""`optimizer.num_apply_group`: updates run in groups, read back from traced steps, and runs mean what they meant."""

import importlib.util
import logging
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.profiler import step_stats
from tests.parallel.in_process import error_text, replicas_equal
from tests.parallel.in_process import rewritten as rewrite_graph
from tests.parallel.pipelines import begin, dense, rows, stage

LAYERS = 4
WIDTH = 200
# Reads and constants do not wait.
FREE = ("Identity", "ReadVariableOp", "Const", "VariableV2", "VarHandleOp", "Switch", "Merge", "RefSwitch")


def bert_optimizer():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    spec = importlib.util.spec_from_file_location("bert_optimizer", os.path.join(root, "examples/bert/optimizer.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.AdamWeightDecayOptimizer(0.01)


OPTIMIZERS = {
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "bert": bert_optimizer,
}


class Tables:
    """The sum of rows of tables t0 ... t3 of equal size, by dense or sparse gradients."""

    def __init__(self, optimizer, sparse=False, resource=False, clip=None):
        self.ids = tf.placeholder(tf.int32, [None], "ids")
        initializer = tf.random_normal_initializer(seed=1)
        with tf.variable_scope("", use_resource=resource):
            self.tables = [tf.get_variable(f"t{i}", [WIDTH, WIDTH], initializer=initializer) for i in range(LAYERS)]
        found = [tf.gather(t, self.ids) if sparse else tf.one_hot(self.ids, WIDTH) @ t for t in self.tables]
        self.loss = tf.reduce_mean(tf.square(tf.add_n(found)))
        self.optimizer = OPTIMIZERS[optimizer]()
        gradients = tf.gradients(self.loss, self.tables, gate_gradients=True)
        if clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
        self.step = tf.train.get_or_create_global_step()
        self.train_op = self.optimizer.apply_gradients(list(zip(gradients, self.tables)), self.step)

    def feed(self, count=16, seed=0):
        return {self.ids: np.random.RandomState(seed).permutation(WIDTH)[:count]}


def update_ops(prefix=""):
    """Per variable of Tables, the names of the ops of its update: they stand in its name scope."""
    found = []
    for i in range(LAYERS):
        scope = f"update_t{i}/"
        found.append(
            {
                prefix + op.name
                for op in tf.get_default_graph().get_operations()
                if scope in op.name and op.type not in FREE and not op.name.startswith("EPL_")
            }
        )
    return found


def order(trace, ops):
    """(start, end) of the executions of some ops."""
    found = [execution for execution in trace if execution.op in ops]
    return min(e.start_ns for e in found), max(e.end_ns for e in found)


def in_order(trace, groups, prefix=""):
    """Whether the updates of each group of tables begin when those before are done."""
    ops = update_ops(prefix)
    spans = [order(trace, set().union(*[ops[i] for i in group])) for group in groups]
    return all(second[0] >= first[1] for first, second in zip(spans, spans[1:]))


def traced(model, runs=1):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return [step_stats.trace(sess, model.train_op, model.feed(seed=run)) for run in range(runs)]


@pytest.mark.grid
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("optimizer, sparse", [("adam", True), ("adagrad", True), ("momentum", False), ("bert", False)])
@pytest.mark.parametrize("resource", [False, True])
def test_groups_run_one_after_the_other_last_to_first(init, devices, optimizer, sparse, resource):
    init(devices, optimizer__num_apply_group=2)
    model = Tables(optimizer, sparse, resource)
    for trace in traced(model, 3):
        assert in_order(trace, [[2, 3], [0, 1]])
        if devices == 2:
            assert in_order(trace, [[2, 3], [0, 1]], "EPL_REPLICA_1/")


def test_without_groups_updates_overlap(init):
    """The measure itself: it can tell one from the other."""
    init(1)
    assert not all(in_order(trace, [[2, 3], [0, 1]]) for trace in traced(Tables("bert"), 5))


@pytest.mark.parametrize("groups", [4, 9])
def test_there_are_at_most_as_many_groups_as_variables(init, groups):
    init(1, optimizer__num_apply_group=groups)
    (trace,) = traced(Tables("bert"))
    assert in_order(trace, [[3], [2], [1], [0]])


@pytest.mark.parametrize("after", [False, True])
def test_updates_behind_a_common_norm_run_in_groups(init, after):
    init(2, optimizer__num_apply_group=2, communication__clip_after_allreduce=after)
    for trace in traced(Tables("bert", clip=0.1), 2):
        assert in_order(trace, [[2, 3], [0, 1]])


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("after", [False, True])
def test_with_accumulation_the_last_micro_step_runs_in_groups(init, clip, after):
    init(
        2,
        optimizer__num_apply_group=2,
        pipeline__num_micro_batch=2,
        communication__clip_after_allreduce=after,
    )
    first, last = traced(Tables("bert", clip=clip), 2)
    writes = Graph.get().rewritten.orders[0].writes
    assert not {execution.op for execution in first} & writes
    assert writes <= {execution.op for execution in last}
    assert in_order(last, [[2, 3], [0, 1]])


def test_each_stage_has_groups_of_its_own(init):
    begin(init, 2, 2, optimizer__num_apply_group=2)
    x = tf.placeholder(tf.float32, [None, 8])
    hidden = x
    for number in range(2):
        with stage():
            hidden = dense(dense(hidden, 8, 2 * number), 8, 2 * number + 1)
            loss = tf.reduce_mean(tf.square(hidden))
    train_op = tf.train.AdamOptimizer().minimize(loss)
    orders = rewrite_graph().orders
    assert [len(one.barriers) for one in orders] == [1, 1]
    layers = [{name.split("update_")[1][:2] for name in one.writes} for one in orders]
    assert sorted(map(sorted, layers)) == [["d0", "d1"], ["d2", "d3"]]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        trace = step_stats.trace(sess, train_op, {x: rows(8, 8)})
    for late, early in (("d0", "d1"), ("d2", "d3")):
        spans = [order(trace, {e.op for e in trace if "update_" + name in e.op}) for name in (early, late)]
        assert spans[0][1] <= spans[1][0]


def test_two_optimizers_have_groups_of_their_own(init):
    init(1, optimizer__num_apply_group=2)
    tables = [tf.get_variable(f"t{i}", [3], initializer=tf.ones_initializer()) for i in range(4)]
    loss = tf.add_n([tf.reduce_sum(tf.square(table)) for table in tables])
    both = [OPTIMIZERS[name]().minimize(loss, var_list=part) for name, part in
            (("adam", tables[:2]), ("bert", tables[2:]))]  # fmt: skip
    orders = rewrite_graph().orders
    assert [len(one.barriers) for one in orders] == [1, 1]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(both[0])
        assert [bool(np.all(value == 1)) for value in sess.run(tables)] == [False, False, True, True]


def test_branches_and_loops_of_an_update_rule_are_computed_as_ever(init):
    init(2, optimizer__num_apply_group=2)

    class Halving(tf.train.Optimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            return tf.group(*[tf.assign_sub(v, self.half(g)) for g, v in grads_and_vars])

        @staticmethod
        def half(gradient):
            step = tf.cond(tf.reduce_sum(gradient) > 2, lambda: gradient, lambda: 2 * gradient)
            return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x / 2), [0, step])[1]

    values = [tf.get_variable(name, [3], initializer=tf.ones_initializer()) for name in ("a", "b")]
    train_op = Halving(False, "Halving").minimize(tf.reduce_sum(values[0]) + 0.5 * tf.reduce_sum(values[1]))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        assert [list(value) for value in sess.run(values)] == [[0.75] * 3, [0.75] * 3]
    assert [len(one.barriers) for one in Graph.get().rewritten.orders] == [1]


def test_gradients_that_were_float16_are_restored_group_by_group(init):
    init(2, optimizer__num_apply_group=2, communication__fp16=True)
    Tables("momentum")
    rewrite = rewrite_graph()
    graph = tf.get_default_graph()
    built = [op for op in graph.get_operations() if op.name in rewrite.built]  # for the first replica
    casts = [op for op in built if op.type == "Cast" and op.inputs[0].op.type == "EplAllReduce"]
    waiting = [op for op in casts if op.control_inputs]
    assert len(casts) == LAYERS and len(waiting) == LAYERS / 2


# ---- What does not change


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_that_takes_a_part_of_an_update_writes_nothing(init, devices):
    init(devices, optimizer__num_apply_group=2)
    model = Tables("bert")
    first = next(name for name in sorted(update_ops()[0]) if "truediv" in name)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = sess.run(tf.global_variables())
        assert np.all(np.isfinite(sess.run(first + ":0", model.feed())))
        after = sess.run(tf.global_variables())
    assert all(np.array_equal(mine, other) for mine, other in zip(before, after))


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_of_one_write_makes_no_other(init, devices):
    init(devices, optimizer__num_apply_group=2)
    model = Tables("momentum")
    (write,) = [name for name in update_ops()[0] if "ApplyMomentum" in name]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        before = sess.run(model.tables)
        sess.run(tf.get_default_graph().get_operation_by_name(write), model.feed())
        changed = [not np.array_equal(a, b) for a, b in zip(before, sess.run(model.tables))]
    assert changed == [True, False, False, False]


def test_some_updates_of_two_groups_are_made_by_all_replicas(init):
    """What orders the groups of a whole step does not hide one update, and its collective, after the other."""
    init(2, optimizer__num_apply_group=2, communication__max_splits=LAYERS, communication__timeout=5)
    model = Tables("momentum")
    updates = [f"Momentum/update_t{table}/ApplyMomentum" for table in (0, LAYERS - 1)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run([tf.get_default_graph().get_operation_by_name(name) for name in updates], model.feed())
        assert replicas_equal(session, "t0", "t1", f"t{LAYERS - 1}")


def test_the_exported_graph_is_that_of_the_user(init):
    init(1, optimizer__num_apply_group=2)
    Tables("adam")
    before = tf.get_default_graph().as_graph_def()
    rewrite_graph()
    assert list(tf.get_default_graph().as_graph_def().node) == list(before.node)


def test_replicas_stay_equal(init):
    init(2, optimizer__num_apply_group=3)
    model = Tables("adam", sparse=True)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for seed in range(3):
            sess.run(model.train_op, model.feed(seed=seed))
        assert replicas_equal(sess, "t0", "t3", "t0/Adam", "t3/Adam_1")
        assert sess.run(model.step) == 3


def test_one_group_leaves_the_graph_of_one_device_alone(init):
    init(1)
    Tables("adam")
    names = [op.name for op in tf.get_default_graph().get_operations()]
    assert rewrite_graph().runs_as_it_is
    assert [op.name for op in tf.get_default_graph().get_operations()] == names


# ---- What is said


def test_apply_gradients_after_the_first_run_is_refused(init):
    init(1, optimizer__num_apply_group=2)
    model = Tables("adam")
    rewrite_graph()
    gradients = tf.gradients(model.loss, model.tables)
    text = error_text(tf.train.GradientDescentOptimizer(0.1).apply_gradients, list(zip(gradients, model.tables)))
    assert text.startswith("PlanError") and "without groups of updates" in text


def test_a_variable_in_no_group_is_named(init, caplog):
    init(1, optimizer__num_apply_group=2)
    values = [tf.get_variable(name, [3]) for name in ("a", "b", "forgotten")]

    class Forgets(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            return super().apply_gradients(list(grads_and_vars)[:2], global_step, name)

    Forgets(0.1).minimize(tf.add_n([tf.reduce_sum(value) for value in values]))
    with caplog.at_level(logging.WARNING, "epl"):
        rewrite_graph()
    assert "1 variable(s) are in no group" in caplog.text and "forgotten" in caplog.text


def test_variables_that_are_updated_in_branches_of_their_own_are_named(init, caplog):
    init(1, optimizer__num_apply_group=2)

    class Careful(tf.train.Optimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            def update(gradient, variable):
                return lambda: tf.assign_sub(variable, gradient)

            return tf.group(
                *[tf.cond(tf.reduce_all(tf.is_finite(g)), update(g, v), lambda v=v: v + 0) for g, v in grads_and_vars]
            )

    values = [tf.get_variable(name, [3], initializer=tf.ones_initializer()) for name in ("a", "b")]
    train_op = Careful(False, "Careful").minimize(tf.add_n([tf.reduce_sum(value) for value in values]))
    with caplog.at_level(logging.WARNING, "epl"):
        rewrite_graph()
    assert "2 variable(s) are in no group" in caplog.text and "alone in its stage or branch: b, a" in caplog.text
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        assert [list(value) for value in sess.run(values)] == [[0] * 3] * 2


def test_gradients_without_an_optimizer_have_no_groups_and_a_warning_says_so(init, caplog):
    init(1, optimizer__num_apply_group=2)
    value = tf.get_variable("value", [3])
    tf.gradients(tf.reduce_sum(value), [value])
    with caplog.at_level(logging.WARNING, "epl"):
        rewrite_graph()
    assert "num_apply_group is 2, and no optimizer applies gradients" in caplog.text
