"""Reading tf.RunMetadata: executions, allocations, and what of it is not counted."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gen_state_ops

from epl.profiler import memory, step_stats
from epl.profiler.step_stats import Execution

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def record(device, **values):
    """A tf.RunMetadata with one execution on a device."""
    metadata = tf.RunMetadata()
    metadata.step_stats.dev_stats.add(device=device).node_stats.add(**values)
    return metadata


def test_each_op_is_there_once_with_its_type_in_order():
    out = tf.matmul(tf.placeholder(tf.float32, [None, 4], "x"), tf.ones([4, 3]), name="product")
    out = tf.sin(out, name="after")
    with tf.Session() as sess:
        ran = step_stats.trace(sess, out, {"x:0": np.ones([2, 4])})
    types = {execution.op: execution.op_type for execution in ran}
    assert types["product"] == "MatMul" and types["after"] == "Sin"
    assert [execution.op for execution in ran].count("product") == 1
    assert [execution.start_ns for execution in ran] == sorted(execution.start_ns for execution in ran)
    assert all(execution.end_ns >= execution.start_ns and "CPU:0" in execution.device for execution in ran)


def test_an_op_of_a_loop_is_there_for_each_iteration():
    out = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.sin(x, name="body")), [0, tf.ones([2])])[1]
    with tf.Session() as sess:
        ran = step_stats.trace(sess, out)
    assert [execution.op for execution in ran].count("while/body") == 3


def test_what_was_fetched_comes_back():
    with tf.Session() as sess:
        values, metadata = step_stats.run(sess, {"two": tf.constant(1) + 1})
    assert values == {"two": 2} and not metadata.partition_graphs


def test_the_type_stands_behind_the_bytes_of_an_op_that_allocates_much():
    label = "[cpu 1.0MB 2.0MB] [x 1.0MB 1.0MB] d0/BiasAdd = _FusedMatMul(x, w)"
    (execution,) = step_stats.executions(record("/cpu", node_name="d0/BiasAdd", timeline_label=label))
    assert execution.op_type == "_FusedMatMul"


def test_kernels_belong_to_the_gpu_that_ran_them():
    metadata = record(GPU, node_name="a", timeline_label="a = MatMul(x)", all_start_nanos=1000, all_end_rel_nanos=10)
    kernels = metadata.step_stats.dev_stats.add(device="/device:GPU:0/stream:7")
    kernels.node_stats.add(node_name="a:MatMul", all_start_micros=2, all_end_rel_micros=3)
    assert step_stats.executions(metadata) == [
        Execution("a", GPU, 1000, 1010, "MatMul", ""),
        Execution("a", GPU, 2000, 5000, "MatMul", "stream:7"),
    ]


def test_an_op_ends_with_its_kernel():
    """TensorFlow closes the record after what waits for the op may have begun."""
    metadata = record(GPU, node_name="a", all_start_nanos=1000, op_end_rel_nanos=7, all_end_rel_nanos=400)
    metadata.step_stats.dev_stats[0].node_stats.add(
        node_name="b", all_start_micros=2, op_end_rel_micros=3, all_end_rel_micros=9
    )
    assert [execution.end_ns for execution in step_stats.executions(metadata)] == [1007, 5000]


def allocated(device, allocator, in_use, *changes):
    """A record of one op's allocations: (microsecond, bytes)."""
    metadata = record(device, node_name="op")
    taken = (
        metadata.step_stats.dev_stats[0]
        .node_stats[0]
        .memory.add(allocator_name=allocator, allocator_bytes_in_use=in_use)
    )
    for time_us, size in changes:
        taken.allocation_records.add(alloc_micros=time_us, alloc_bytes=size)
    return metadata


def test_what_is_given_back_in_the_same_microsecond_comes_first():
    (timeline,) = memory.timelines(allocated("/device:CPU:0", "cpu", 0, (5, 100), (7, 60), (7, -100)))
    assert [change.live for change in timeline.changes] == [100, 0, 60]
    assert (timeline.persistent, timeline.peak) == (0, 100)


def test_the_allocator_of_a_gpu_counts_what_was_there_before():
    (timeline,) = memory.timelines(allocated(GPU, "GPU_0_bfc", 1000, (5, 100)))
    assert timeline.peak == 1000


def test_memory_of_the_host_is_no_memory_of_the_gpu():
    (timeline,) = memory.timelines(allocated(GPU, "gpu_host_bfc", 0, (5, 100)))
    assert timeline.device == GPU + "/host"


@pytest.mark.parametrize("resource", [False, True])
def test_variables_are_there_the_whole_time(resource):
    with tf.variable_scope("", use_resource=resource):
        table = tf.get_variable("table", [100, 50], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.random_normal([100, 1000]) * 0.1) * tf.reduce_sum(table)
    train_op = tf.train.AdamOptimizer().minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        (timeline,) = memory.timelines(step_stats.run(sess, train_op)[1], sess.graph)
    variables = 3 * 100 * 50 * 4  # the table and its two slots
    assert variables <= timeline.persistent < variables + 1000  # constants
    assert 100 * 1000 * 4 <= timeline.peak - timeline.persistent < 2.2 * 100 * 1000 * 4


def temporary_variable(value):
    variable = gen_state_ops.temporary_variable(value.shape, tf.float32, var_name="sum")
    return gen_state_ops.destroy_temporary_variable(tf.assign(variable, value * 2.0), "sum")


@pytest.mark.parametrize(
    "keep", [temporary_variable, lambda value: tf.TensorArray(tf.float32, 100).unstack(value).flow]
)
def test_what_lives_within_a_step_counts_once(keep):
    x = tf.placeholder(tf.float32, [100, 256])
    kept = keep(x)
    with tf.Session() as sess:
        metadata = step_stats.run(sess, kept.op, {x: np.ones([100, 256], "f")})[1]
        (timeline,) = memory.timelines(metadata, sess.graph)
    assert timeline.persistent < 1000  # constants
    assert 100 * 256 * 4 <= timeline.peak < 2.2 * 100 * 256 * 4
