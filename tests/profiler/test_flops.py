"""FLOPs of a traced step: against formulas, plain against planned, and what the hook logs."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.profiler import profiler, step_flops, step_stats
from epl.profiler.flops import FlopsProfilerHook, profile_flops, profile_step
from epl.profiler.fused_ops import main_type
from epl.profiler.roles import RoleKind
from epl.profiler.step_flops import of_model, total
from tests.parallel.in_process import Linear, error_text
from tests.parallel.pipelines import begin, dense, no_stage, stage

ROWS = 16


def counted(fetches, feed=None):
    """The FLOPs of a step."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return step_flops.count(step_stats.run(sess, fetches, feed, partition_graphs=True)[1], sess.graph)


def by_type(flops):
    """Op type -> FLOPs."""
    found = {}
    for one in flops.ops:
        found[one.op_type] = found.get(one.op_type, 0) + one.flops
    return found


def layers(stage):
    """A training step of four dense layers in two stages: the op and what it is fed."""
    x = tf.placeholder(tf.float32, [None, 32])
    with stage():
        hidden = x
        for index in range(3):
            hidden = dense(hidden, 64, index)
    with stage():
        loss = tf.reduce_mean(tf.square(dense(hidden, 8, 3)))
    return tf.train.AdamOptimizer().minimize(loss), lambda rows: {x: np.ones([rows, 32])}


def expected_layers():
    """FLOPs of the matmuls of `layers`, forward and backward: the first one has no gradient of its input."""
    sizes = [(32, 64), (64, 64), (64, 64), (64, 8)]
    forward = sum(2 * ROWS * rows * columns for rows, columns in sizes)
    return forward, 2 * forward - 2 * ROWS * 32 * 64


def dense_flops(ops):
    """FLOPs of matmuls, biases and tanhs: which of them are fused depends on TensorFlow."""
    return total(one for one in ops if one.op_type in ("MatMul", "_FusedMatMul", "BiasAdd", "Tanh"))


def test_a_plain_graph_is_counted_with_what_tensorflow_fused(init):
    init(1, annotate=False)
    train_op, feed = layers(no_stage)
    flops = counted(train_op, feed(ROWS))
    elements = ROWS * (64 + 64 + 64 + 8)
    assert "_FusedMatMul" in by_type(flops) and "BiasAdd" not in by_type(flops)
    assert dense_flops(flops.ops) == sum(expected_layers()) + 2 * elements
    assert by_type(flops)["ApplyAdam"] == 12 * (32 * 64 + 2 * 64 * 64 + 64 * 8 + 64 + 64 + 64 + 8)


def test_under_a_plan_the_model_counts_once_and_the_step_all_copies(init):
    begin(init, 3, 4, gradient_checkpoint__type="auto")
    train_op, feed = layers(stage)
    flops = counted(train_op, feed(6 * ROWS))  # two replicas, three micro batches
    forward, backward = expected_layers()
    elements = ROWS * (64 + 64 + 64 + 8)
    assert dense_flops(of_model(flops, [RoleKind.FORWARD])) == forward + 2 * elements
    assert dense_flops(of_model(flops, [RoleKind.BACKWARD])) == backward
    recomputed = [one for one in flops.ops if one.role.kind == RoleKind.RECOMPUTE]
    assert total(recomputed) > 0 and not set(recomputed) & set(of_model(flops))
    assert 6 * backward < dense_flops(one for one in flops.ops if one.role.kind == RoleKind.BACKWARD) * 1.0001
    passes = [one for one in flops.ops if one.role.kind in (RoleKind.FORWARD, RoleKind.BACKWARD)]
    assert total(passes) == pytest.approx(6 * total(of_model(flops, [RoleKind.FORWARD, RoleKind.BACKWARD])), rel=0.01)
    updates = [one for one in flops.ops if one.role.kind == RoleKind.UPDATE]
    assert total(updates) == pytest.approx(2 * total(of_model(flops, [RoleKind.UPDATE])), rel=0.01)
    assert flops.scale == 1.0


def test_loops_count_as_often_as_they_run_and_branches_when_they_are_taken():
    tf.reset_default_graph()
    x = tf.placeholder(tf.float32, [4, 8])
    out = tf.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, tf.matmul(h, tf.ones([8, 8]))), [0, x])[1]
    out = tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.matmul(out, tf.ones([8, 8])), lambda: tf.matmul(out, tf.ones([8, 2]))
    )
    flops = counted(out, {x: np.ones([4, 8])})
    assert by_type(flops)["MatMul"] == 6 * 2 * 4 * 8 * 8


def test_what_comes_from_another_device_has_the_shape_that_it_had_there():
    tf.reset_default_graph()
    rows = tf.placeholder(tf.int32, [])
    with tf.device("/cpu:0"):
        x = tf.random_normal([rows, 20])
    with tf.device("/cpu:1"):
        out = tf.reduce_sum(x)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as sess:
        metadata = step_stats.run(sess, out, {rows: 50}, partition_graphs=True)[1]
        assert by_type(step_flops.count(metadata, sess.graph))["Sum"] == 50 * 20


@pytest.mark.parametrize(
    "pool, expected",
    [(tf.nn.max_pool, 9 * 2 * 4 * 4 * 3), (tf.nn.avg_pool, 9 * 2 * 4 * 4 * 3)],
)
def test_the_gradient_of_a_pool_counts_its_windows(pool, expected):
    tf.reset_default_graph()
    x = tf.placeholder(tf.float32, [2, 8, 8, 3])
    flops = counted(tf.gradients(tf.sin(pool(x, 3, 2, "SAME")), x), {x: np.ones([2, 8, 8, 3])})
    (found,) = [count for op_type, count in by_type(flops).items() if op_type.endswith("PoolGrad")]
    assert found == expected


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("optimizer, each", [(tf.train.GradientDescentOptimizer, 2), (tf.train.AdagradOptimizer, 6)])
def test_updates_count_by_element(optimizer, each, resource):
    tf.reset_default_graph()
    with tf.variable_scope("", use_resource=resource):
        table = tf.get_variable("table", [30, 10])
    flops = counted(optimizer(0.1).minimize(tf.reduce_sum(tf.sin(table))))
    (found,) = [count for op_type, count in by_type(flops).items() if "Apply" in op_type]
    assert found == each * 300


def test_types_without_a_cost_are_named():
    tf.reset_default_graph()
    flops = counted(tf.matrix_determinant(tf.placeholder(tf.float32, [2, 2], "x")), {"x:0": np.eye(2)})
    assert "MatrixDeterminant" in " ".join(flops.notes)


def test_the_hook_logs_the_first_run_by_all_that_is_asked_for(init, caplog):
    init(2)
    model = Linear()
    train_op = model.minimize()
    with tf.train.MonitoredTrainingSession(hooks=[FlopsProfilerHook("scope, op,graph")]) as sess:
        with caplog.at_level(logging.INFO, "epl"):
            for _ in range(2):
                sess.run(train_op, model.feed(8))
    assert caplog.text.count("FLOPs of the model: ") == 1
    for cmd in ("scope", "op", "graph"):
        assert caplog.text.count(f"FLOPs of the model by {cmd}:") == 1
    assert "gradients: 0." in caplog.text and "MatMul: 0." in caplog.text and "out: 0." in caplog.text


@pytest.mark.parametrize("cmds", ["", "name", ["op", "code"], []])
def test_unknown_tables_are_refused(cmds):
    text = error_text(FlopsProfilerHook, cmds)
    assert text.startswith("ValueError") and "scope, op, graph" in text


def test_a_run_without_its_graphs_is_refused():
    tf.reset_default_graph()
    out = tf.sin(tf.placeholder(tf.float32, [2], "x"))
    with tf.Session() as sess:
        metadata = step_stats.run(sess, out, {"x:0": [1, 2]})[1]
        text = error_text(profile_flops, sess, metadata)
    assert text.startswith("ValueError") and "no partition_graphs" in text


def test_the_static_tables_count_the_user_s_model_alone(init):
    init(2)
    model = Linear()
    train_op = model.minimize()
    before = profiler.profile_flops(), profiler.profile_memory()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, model.feed())
    assert (profiler.profile_flops(), profiler.profile_memory()) == before
    assert before[0]["out"] == 2 * 32 * 3 and before[1]["w:0"] == 12


def _batches(size):
    return tf.data.Dataset.from_tensor_slices(np.zeros([99, 3], "f")).repeat().batch(size)


@pytest.mark.parametrize(
    "get_next,batch",
    [
        (lambda: _batches(20).prefetch(1).make_one_shot_iterator().get_next(), 20),
        (lambda: _batches(20).make_initializable_iterator().get_next(), 20),
        (lambda: _batches(tf.placeholder(tf.int64, [])).make_initializable_iterator().get_next(), 32),
        (lambda: tf.placeholder(tf.float32, [None, 3]), 32),
    ],
    ids=["one_shot", "initializable", "fed_size", "placeholder"],
)
def test_an_open_batch_is_that_of_the_dataset(get_next, batch):
    with tf.Graph().as_default():
        tf.matmul(get_next(), tf.ones([3, 5]), name="out")
        flops, memory = profiler.profile_flops(), profiler.profile_memory(True)
    assert flops["out"] == 2 * batch * 3 * 5 and isinstance(flops["out"], int)
    assert memory["out:0"] == 4 * batch * 5


def test_the_flops_of_a_run_are_a_number(init):
    init(1, annotate=False)
    out = tf.matmul(tf.placeholder(tf.float32, [2, 3], "x"), tf.ones([3, 4]), name="out")
    with tf.Session() as sess:
        metadata = step_stats.run(sess, out, {"x:0": np.ones([2, 3])}, partition_graphs=True)[1]
        assert profile_flops(sess, metadata, ["op"]) == 48 == total(of_model(profile_step(sess, metadata)))


def test_the_static_tables_count_half_copies_for_nobody(init):
    init(1, amp__level="O1")
    model = Linear()
    forward = profiler.profile_flops()
    model.minimize()
    assert Graph.get().replacements
    found = profiler.profile_flops()
    assert {name for name in found if "EPL_AMP" in name.rpartition("/")[2]} == set()
    assert {name: found.get(name) for name in forward} == forward


def _convolved(x, kernel, bias, padding="SAME"):
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=1, padding=padding), bias)


def _attention_scores(x, kernel, bias):
    rows = tf.reshape(x, [2, 1, 8, 24])
    return tf.matmul(rows, rows, transpose_b=True) * tf.reduce_sum(bias) + tf.reshape(kernel, [1, 1, 1, 108])[..., :8]


POSITIONS = 2 * 8 * 8 * 4  # of the output of the convolution
WINDOW = 2 * 3 * 3 * 3


@pytest.mark.parametrize(
    "build, types, expected",
    [
        (_convolved, {"Conv2D", "BiasAdd"}, POSITIONS * (WINDOW + 1)),
        (
            lambda x, kernel, bias: _convolved(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), kernel, bias, "VALID"),
            {"Conv2D", "BiasAdd"},
            POSITIONS * (WINDOW + 1),
        ),
        (
            lambda x, kernel, bias: tf.gradients(tf.sin(_convolved(x, kernel, bias)), [kernel, bias]),
            {"Conv2DBackpropFilter", "BiasAddGrad", "Conv2D", "BiasAdd"},
            2 * POSITIONS * (WINDOW + 1),
        ),
        (_attention_scores, {"BatchMatMulV2", "Mul", "AddV2"}, 2 * 8 * 8 * (2 * 24 + 2)),
        (
            lambda x, kernel, bias: tf.nn.relu(tf.nn.fused_batch_norm(x, bias[:3], bias[:3])[0]),
            {"FusedBatchNormV3", "Relu"},
            2 * 8 * 8 * 3 * (8 + 1),
        ),
    ],
    ids=["convolution", "padded_convolution", "kernel_and_bias_gradient", "attention_scores", "batch_norm"],
)
def test_fused_ops_count_as_the_single_ones(build, types, expected):
    """On CPUs, TensorFlow 2 computes them by oneDNN, and fuses more of them."""
    tf.reset_default_graph()
    x = tf.placeholder(tf.float32, [2, 8, 8, 3])
    kernel, bias = tf.get_variable("kernel", [3, 3, 3, 4]), tf.get_variable("bias", [4])
    flops = by_type(counted(build(x, kernel, bias), {x: np.ones([2, 8, 8, 3])}))
    fused = {main_type(op_type) for op_type in flops if main_type(op_type) != op_type}
    assert not any("Mkl" in op_type for op_type in flops)
    assert sum(flops[op_type] for op_type in flops if main_type(op_type) in types | fused) == expected, flops
