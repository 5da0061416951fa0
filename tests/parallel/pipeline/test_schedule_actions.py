"""The schedule is what the devices do: read back from a traced step, and from the depth of control flow."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.control_flow import depths_of
from epl.ir.view import GraphView
from epl.parallel.plan.schedule import from_text
from epl.profiler import actions, step_stats
from tests.parallel.pipelines import Chain, begin, dense, rewritten, rows, stage

STRATEGIES = ["PreferForward", "PreferBackward", "PreferBackwardOptimizer"]


def check_order(rewrite, fetches, feed, steps=2):
    """Asserts that each device of each replica did the actions of the schedule one after the other, in order."""
    action_of = actions.of_ops(rewrite)
    schedule = from_text(rewrite.plan.schedule)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(steps):
            found = actions.spans(step_stats.trace(sess, fetches, feed), action_of)
            for replica in range(rewrite.local_replicas):
                for device, expected in enumerate(schedule.actions):
                    name = rewrite.device(schedule.device_of_stage.index(device), replica)
                    (spans,) = [spans for full, spans in found.items() if full.endswith(name)]
                    assert [str(span.action) for span in spans] == [str(action) for action in expected]
                    assert overlaps(spans) == []
    return found


def overlaps(spans):
    """The neighbours of which the second began before the first was done, in words."""
    return [
        f"{one.action} ends at {one.end_us:.1f} us, {other.action} begins at {other.start_us:.1f} us"
        for one, other in zip(spans, spans[1:])
        if other.start_us < one.end_us
    ]


@pytest.mark.grid
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stages, micro_batches", [(2, 1), (2, 4), (3, 4), (4, 3)])
def test_a_step_runs_in_the_order_of_the_schedule(init, strategy, stages, micro_batches):
    begin(init, micro_batches, stages, pipeline__strategy=strategy)
    model = Chain(stages)
    train_op = model.minimize()
    check_order(rewritten(), train_op, model.feed(24))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_replica_runs_in_the_order_of_the_schedule(init, strategy):
    begin(init, 3, 4, pipeline__strategy=strategy)
    model = Chain(2)
    train_op = model.minimize()
    check_order(rewritten(), [train_op, model.loss], model.feed(24))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stages_that_share_a_device_are_interleaved(init, strategy):
    init(2, annotate=False, pipeline__num_micro_batch=4, pipeline__strategy=strategy)
    devices = [f"/job:worker/replica:0/task:0/device:CPU:{i}" for i in (0, 1)]
    with epl.Cluster(layout={"specific": [[[devices[index % 2]]] for index in range(4)]}):
        model = Chain(4)
        train_op = model.minimize()
        rewrite = rewritten()
        assert from_text(rewrite.plan.schedule).device_of_stage == (0, 1, 0, 1)
        check_order(rewrite, train_op, model.feed(16))


def loop(x, name):
    """x times a weight, three times, in a while_loop."""
    weight = tf.get_variable(name, [3, 3], initializer=tf.random_normal_initializer(stddev=0.3, seed=5))
    return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, weight))), [0, x])[1]


def branch(x):
    """A cond on the data: one branch is dead in each micro batch."""
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, tf.eye(3)), lambda: tf.tanh(x) * 2.0)


@pytest.mark.parametrize(
    "strategy, flow",
    [
        ("PreferForward", lambda x: loop(x, "r")),
        ("PreferBackward", branch),
        ("PreferBackward", lambda x: branch(loop(x, "r"))),
        ("PreferBackwardOptimizer", lambda x: branch(loop(x, "r"))),
    ],
)
def test_control_flow_within_a_stage_runs_within_its_action(init, strategy, flow):
    begin(init, 4, 2, pipeline__strategy=strategy)
    x = tf.placeholder(tf.float32, [None, 3])
    with stage():
        hidden = flow(dense(x, 3, 0))
    with stage():
        loss = tf.reduce_mean(tf.square(flow_again(hidden)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    check_order(rewritten(), train_op, {x: rows(16)})


def flow_again(x):
    return tf.reduce_sum(loop(branch(dense(x, 3, 1)), "s"), 1)


def test_several_inputs_of_several_stages(init):
    begin(init, 3, 3)
    x, z, y = [tf.placeholder(tf.float32, [None, 3], name) for name in "xzy"]
    rate = tf.placeholder(tf.float32, [])
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        hidden = dense(hidden, 3, 1) + dense(z, 3, 5)
    with stage():
        loss = tf.reduce_mean(tf.square(dense(hidden, 3, 2) - y - x))
    train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss)
    check_order(rewritten(), train_op, {x: rows(6), z: rows(6, seed=1), y: rows(6, seed=2), rate: 0.1})


def test_data_is_read_ahead_of_the_first_action_in_order(init):
    begin(init, 4, 2)
    data = tf.data.Dataset.from_tensor_slices((rows(64), rows(64, 1))).batch(4).make_one_shot_iterator()
    x, y = data.get_next()
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        loss = tf.reduce_mean(tf.square(dense(hidden, 1, 1) - y))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    reads = [rewrite.micro_prefix(copy) + x.op.name for copy in range(4)]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        trace = step_stats.trace(sess, train_op)
    order = [execution for execution in trace if execution.op in reads]
    assert [execution.op for execution in order] == reads
    assert all(one.end_ns <= other.start_ns for one, other in zip(order, order[1:]))
    first = [span for spans in actions.spans(trace, actions.of_ops(rewrite)).values() for span in spans]
    assert len(first) == 16


def test_the_forward_pass_of_micro_batches_overlaps_over_the_stages(init):
    begin(init, 4, 2, pipeline__strategy="PreferForward")
    x = tf.placeholder(tf.float32, [None, 300])
    with stage():
        hidden = dense(dense(x, 900, 0), 900, 1)
    with stage():
        loss = tf.reduce_mean(tf.square(dense(dense(hidden, 900, 2), 1, 3)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    found = check_order(rewritten(), train_op, {x: rows(2048, 300)})
    spans = {str(span.action): span for device in found.values() for span in device}
    assert spans["0F1"].start_us < spans["1F0"].end_us  # stage 0 goes on while stage 1 has micro batch 0


def depths(*ops):
    graph = tf.get_default_graph()
    view = GraphView(graph)
    found = depths_of(view)
    return [found[view.index[op.name]] for op in ops]


def test_the_depth_of_loops_and_branches():
    tf.reset_default_graph()
    inside = []

    def body(i, x):
        inner = tf.cond(i > 1, lambda: note(tf.sin(x)), lambda: tf.cos(x))
        return i + 1, inner

    def note(tensor):
        inside.append(tensor.op)
        return tensor

    x = tf.ones([2])
    _, out = tf.while_loop(lambda i, x: i < 3, body, [0, x])
    after = tf.sin(out)
    choice = tf.cond(tf.reduce_sum(after) > 0, lambda: note(tf.sin(after)), lambda: tf.cos(after))
    last = tf.sin(choice)
    assert depths(x.op, after.op, last.op) == [(0, 0)] * 3
    in_loop, in_branch = depths(*inside)
    assert in_loop[0] == 1 and in_loop[1] >= 1
    assert in_branch == (0, 1)


def test_barriers_are_fed_in_runs_of_no_training(init):
    begin(init, 2, 2)
    model = Chain(2)
    model.minimize()
    rewrite = rewritten()
    assert len(rewrite.barriers) == 1 and len(rewrite.barriers[0]) == 6  # two devices, four actions each
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        trace = step_stats.trace(sess, model.loss, model.feed(5))
        ran = {execution.op for execution in trace}
        assert not ran & {name.partition(":")[0] for name in rewrite.barriers[0]}
        assert not [op for op in ran if op.startswith("EPL_MICRO_BATCH")]
        assert np.isfinite(sess.run(model.loss, model.feed(5)))
