"""Which ops run on the host, which copies of weights there are, and what these wait for: graphs and traced steps."""

import logging
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.plan.communicators import PROCESSES, transport_of
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import OffloadSection
from epl.parallel.weights.prefetch import WeightUse, cut_blocks
from epl.profiler import step_stats
from epl.utils import tf_compat
from tests.parallel.in_process import error_text, rewritten
from tests.parallel.pipelines import Chain, begin

HOST = "/device:CPU:0"
SCOPE = "EPL_OFFLOAD/"
REPLICA = "EPL_REPLICA_1/"


class Layers:
    """Dense layers l0, l1, ... of width 4 on x [None, 4], trained with momentum."""

    def __init__(self, count=5, resource=False, extra=None):
        self.x = hidden = tf.placeholder(tf.float32, [None, 4], "x")
        with tf.variable_scope("", use_resource=resource):
            for index in range(count):
                hidden = tf.layers.dense(hidden, 4, tf.tanh, name=f"l{index}")
        self.loss = tf.reduce_mean(tf.square(hidden - 1.0)) + (extra() if extra else 0.0)
        self.train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(self.loss)

    def feed(self, rows=8):
        return {self.x: np.random.RandomState(0).randn(rows, 4).astype("f")}


@pytest.fixture
def offload(init):
    """`offload(devices)`: a fresh graph with weights on the host."""
    return lambda devices=2, **config: init(devices, offload__level="v0", **config)


def op(name):
    return tf.get_default_graph().get_operation_by_name(name)


def copy_for(consumer, position=1):
    """The copy of a weight that an op takes."""
    copy = op(consumer).inputs[position].op
    assert copy.name.startswith(SCOPE), copy.name
    return copy


def waits(copy):
    return [other.name for other in copy.control_inputs]


def nodes(*types):
    """The nodes of these types, or all; TensorFlow's Python does not know all copies."""
    return [node for node in tf_compat.full_graph_def(tf.get_default_graph()).node if not types or node.op in types]


def train(model, steps=2):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(steps):
            sess.run(model.train_op, model.feed())


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("resource", [False, True])
def test_variables_slots_and_updates_are_on_the_host(offload, devices, resource):
    offload(devices)
    model = Layers(resource=resource)
    rewritten()
    bound = nodes("VariableV2", "VarHandleOp", "ApplyMomentum", "ResourceApplyMomentum", "ReadVariableOp")
    assert len(bound) >= 15 * devices
    assert {one.device for one in bound} == {HOST}
    assert {one.device for one in nodes("MatMul", "Tanh")} <= {"", "/device:CPU:1"}
    train(model)


def test_what_computes_is_on_the_devices_of_its_replica(offload):
    offload()
    Layers()
    rewritten()
    assert (
        op(REPLICA + "l0/kernel").device
        == op(REPLICA + SCOPE + copy_for("l0/MatMul").name[len(SCOPE) :]).device
        == HOST
    )
    assert op(REPLICA + "l0/MatMul").device == op(REPLICA + "gradients/l0/MatMul_grad/MatMul").device == "/device:CPU:1"
    assert op("l0/MatMul").device == ""


def test_the_partitions_of_a_step_have_no_variable_but_on_the_host(offload):
    offload()
    model = Layers()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        options = tf.RunOptions(output_partition_graphs=True)
        metadata = tf.RunMetadata()
        sess.run(model.train_op, model.feed(), options=options, run_metadata=metadata)
    types = {}
    for graph in metadata.partition_graphs:
        (device,) = {node.device[-5:] for node in graph.node if node.device}
        types.setdefault(device, set()).update(node.op for node in graph.node)
        sent = {node.attr["tensor_name"].s.decode() for node in graph.node if node.op == "_Recv"}
        if device == "CPU:1":
            received = {name.split("/read")[0].split("copy")[-1] for name in sent if "EPL_OFFLOAD" in name}
            assert {name.split("/", 1)[1] for name in received} >= {f"l{layer}/kernel" for layer in range(5)}
    assert {"VariableV2", "ApplyMomentum"} <= types["CPU:0"]
    assert not {"VariableV2", "ApplyMomentum", "Assign"} & types["CPU:1"]
    assert {"TanhGrad", "_Recv", "_Send"} <= types["CPU:1"]


def test_a_copy_begins_when_the_layer_before_begins(offload):
    offload()
    Layers()
    rewritten()
    assert waits(copy_for("l0/MatMul")) == waits(copy_for("l1/MatMul")) == waits(copy_for("l1/BiasAdd")) == ["x"]
    assert waits(copy_for("l2/MatMul")) == ["l0/Tanh"]
    assert waits(copy_for("l4/MatMul")) == ["l2/Tanh"]


def test_the_backward_pass_has_copies_of_its_own(offload):
    offload()
    Layers()
    rewritten()
    first, again = copy_for("l1/MatMul"), copy_for("gradients/l1/MatMul_grad/MatMul")
    assert first.inputs[0] is again.inputs[0]
    assert waits(again) == ["gradients/l2/BiasAdd_grad/tuple/control_dependency"]


def test_copies_run_in_turn(offload):
    """In replica 1: where host and device are one, TensorFlow takes the copies out."""
    offload()
    model = Layers(8)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())
        ran = {one.op: one for one in step_stats.trace(sess, model.train_op, model.feed())}
    for layer in range(2, 8):
        begin_of_layer_before = ran[REPLICA + f"l{layer - 2}/Tanh"].end_ns
        copy = copy_for(f"l{layer}/MatMul").name
        assert ran[REPLICA + copy].start_ns >= begin_of_layer_before


def test_stages_and_micro_batches_have_copies_of_their_own(init):
    begin(init, 2, 4, offload__level="v0")
    model = Chain(2)
    model.minimize()
    rewritten()
    for prefix in ("", "EPL_MICRO_BATCH_1/", REPLICA, REPLICA + "EPL_MICRO_BATCH_1/"):
        for stage in range(2):
            consumer = op(prefix + f"d{stage}/MatMul")
            copy = consumer.inputs[1].op
            assert SCOPE in copy.name and copy.name.startswith(prefix)
            assert copy.device == HOST
            assert consumer.device == f"/device:CPU:{stage + 2 * prefix.startswith(REPLICA)}"
    assert {one.device for one in nodes("VariableV2", "ApplyGradientDescent")} == {HOST}


def test_a_copy_belongs_to_the_action_that_takes_it(init):
    """It waits for what comes into its own op, which the barrier before the action holds back."""
    begin(init, 2, 2, offload__level="v0")
    Chain(2).minimize()
    rewritten()
    own = waits(copy_for("d1/MatMul"))
    assert "d0/Tanh" in own
    assert any("passed" in name for name in waits(op("EPL_MICRO_BATCH_1/" + copy_for("d0/MatMul").name)))


def test_a_run_of_one_tower_needs_no_data_of_the_other(offload):
    offload(1)
    left, right = [tf.placeholder(tf.float32, [None, 4], name) for name in ("left", "right")]
    outs = [tf.layers.dense(tf.layers.dense(x, 4), 4) for x in (left, right, left, right)]
    loss = tf.add_n([tf.reduce_mean(tf.square(out)) for out in outs])
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rows = np.ones([2, 4], "f")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {left: rows, right: rows})
        for out, x in zip(outs, (left, right, left, right)):
            assert np.all(np.isfinite(sess.run(out, {x: rows})))


def test_what_is_fed_in_place_of_data_takes_no_data(offload, caplog):
    offload(1)
    value = np.ones([2, 4], "f")
    x = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(value)).get_next()
    hidden = tf.layers.dense(tf.layers.dense(x, 4, tf.tanh), 4)
    loss = tf.reduce_mean(tf.square(hidden - 1.0))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with caplog.at_level(logging.WARNING, "epl"), tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        assert np.isfinite(sess.run(loss, {x: value}))  # there is no data left
    assert "at the start of a step" not in caplog.text


def test_what_weights_alone_give_is_computed_on_the_host_and_needs_no_data(offload):
    def penalty():
        kernels = [v for v in tf.trainable_variables() if "kernel" in v.name]
        return 0.01 * tf.add_n([tf.nn.l2_loss(v, "squares") for v in kernels], "penalty")

    offload()
    model = Layers(3, extra=penalty)
    train(model)
    assert op("squares").device == op("penalty").device == op(REPLICA + "penalty").device == HOST
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert sess.run("penalty:0") > 0


def test_gradients_wait_for_what_takes_their_variable_late(offload):
    """Without the gates of `minimize`, nothing else keeps the update from being earlier."""
    offload(1)
    model = Layers(3)
    gradients = tf.gradients(model.loss, tf.trainable_variables())
    tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, tf.trainable_variables()))
    rewritten()
    assert "gradients_1/l2/MatMul_grad/MatMul" in waits(op("gradients_1/l2/MatMul_grad/MatMul_1"))
    train(model)


def test_statistics_that_the_forward_pass_writes_are_not_read_late(offload):
    offload()
    x = tf.placeholder(tf.float32, [None, 4], "x")
    out = tf.layers.batch_normalization(tf.layers.dense(x, 4), training=False, name="norm")
    mean = op("norm/moving_mean").outputs[0]
    write = tf.assign_add(mean, tf.reduce_mean(x, 0))
    with tf.control_dependencies([write]):
        loss = tf.reduce_mean(tf.square(out))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewritten()
    sources = {one.input[0] for one in nodes() if one.name.startswith(SCOPE)}
    assert not any("moving_mean" in source for source in sources) and "dense/kernel/read" in sources


def test_initial_values_are_made_on_the_host(offload):
    offload()
    x = tf.placeholder(tf.float32, [None, 4], "x")
    weight = tf.Variable(tf.random_normal([4, 4], name="first"))
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(tf.matmul(x, weight))))
    rewritten()
    assert op("first").device == op("first/RandomStandardNormal").device == HOST


def test_saving_and_summaries_take_weights_without_a_copy(offload, caplog):
    offload()
    Layers()
    saver = tf.train.Saver(name="save")
    tf.summary.histogram("kernel", tf.trainable_variables()[0], collections=[])
    with caplog.at_level(logging.WARNING, "epl"):
        rewritten()
    takers = {node.name for node in nodes() if any(name.startswith(SCOPE) for name in node.input)}
    assert "l1/MatMul" in takers and saver.saver_def.save_tensor_name == "save/control_dependency:0"
    assert not takers & {"save/SaveV2", "kernel"}
    assert waits(copy_for("l2/MatMul")) == ["l0/Tanh"]
    assert "at the start of a step" not in caplog.text


def test_what_half_copies_replace_has_no_copies(offload):
    offload(1, amp__level="O1", amp__dtype="bfloat16", amp__loss_scale=1.0)
    model = Layers()
    rewritten()
    takers = {node.name for node in nodes() if any(name.startswith(SCOPE) for name in node.input)}
    assert any("EPL_AMP" in name for name in takers) and "l1/MatMul" not in takers
    train(model)


def test_an_embedding_is_looked_up_on_the_host(offload):
    offload()
    ids = tf.placeholder(tf.int32, [None], "ids")
    table = tf.get_variable("table", [10, 4])
    hidden = tf.nn.embedding_lookup(table, ids, name="lookup")
    tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1))))
    rewritten()
    assert op("lookup").device == op(REPLICA + "lookup").device == HOST


def test_a_gradient_that_leaves_a_loop_waits_behind_it(offload):
    """What is read again takes the memory of the variable late; an Exit cannot wait for it, as it is in the loop."""
    offload(1)
    x = tf.placeholder(tf.float32, [None, 3, 4], "x")
    cell = tf.nn.rnn_cell.BasicRNNCell(4)
    state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)[0][:, -1]
    kernel = cell.trainable_variables[0]
    joined = tf.concat([x[:, 0], state], 1)
    again = tf.reduce_mean(tf.matmul(joined, kernel, name="again"))
    loss = tf.reduce_mean(tf.square(tf.layers.dense(joined, 4))) + tf.stop_gradient(again)
    (gradient,) = tf.gradients(loss, [kernel])
    assert gradient.op.inputs[0].op.type == "Exit"
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, kernel)])
    rewritten()
    late = gradient.op.inputs[0].op
    assert late.name.startswith(SCOPE) and late.inputs[0].op.type == "Exit" and "again" in waits(late)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([2, 3, 4], "f")})


def test_who_reads_a_resource_late_does_not_hold_its_update_back(offload):
    """A training step does not run the step of a recurrent layer that Keras computes before its loop."""
    offload(1)
    x = tf.placeholder(tf.float32, [None, 3, 4], "x")
    state = tf.keras.layers.GRU(4, name="gru")(x)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(state)))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([2, 3, 4], "f")})
    assert not any(node.name.startswith(SCOPE + "late") for node in nodes())


def test_a_weight_of_a_loop_is_there_from_the_start_and_that_is_said(offload, caplog):
    offload(1)
    x = tf.placeholder(tf.float32, [None, 4, 4], "x")
    steps = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(4), x, dtype=tf.float32)[0]
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(steps)))
    with caplog.at_level(logging.WARNING, "epl"):
        rewritten()
    assert "lstm_cell/kernel/read" in caplog.text and "at the start of a step" in caplog.text


def test_who_asks_for_the_shape_of_a_weight_does_not_move_it(offload, caplog):
    offload(1)
    x = tf.placeholder(tf.float32, [None, 4], "x")
    gain = tf.get_variable("gain", [4])
    sizes = tf.raw_ops.Shape(input=gain)  # gradients by TensorFlow 1.15 ask for it, too
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 4) * gain) / tf.cast(sizes, tf.float32))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with caplog.at_level(logging.WARNING, "epl"):
        rewritten()
    assert {node.device for node in nodes("Shape") if "gain/read" in node.input} == {HOST}
    assert "at the start of a step" not in caplog.text


def test_a_function_that_takes_a_variable_is_refused(offload):
    offload(1)
    weight = tf.get_variable("w", [4, 4], use_resource=True)
    x = tf.placeholder(tf.float32, [None, 4], "x")
    multiply = tf.function(lambda value: tf.matmul(value, weight))
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(multiply(x))))
    text = error_text(rewritten)
    assert "PlanError" in text and "takes the variable 'w'" in text


def test_the_plan_says_what_devices_need_not_hold(offload, caplog):
    offload()
    Layers(2)
    with caplog.at_level(logging.INFO, "epl"):
        plan = rewritten().plan
    assert section(plan, OffloadSection).stages == ((0, 8, 2 * 2 * 20 * 4),)
    assert "in host memory: 8 variables of stage 0" in caplog.text


def test_what_is_told_of_copies_is_what_a_step_runs(offload, caplog):
    """The gradient of the fed rows takes the first kernel once more, and nothing takes that gradient."""
    offload()
    model = Layers(4)
    with caplog.at_level(logging.INFO, "epl"):
        rewritten()
    (told,) = re.findall(r"stage 0 copies .* MB of weights to its device in (\d+) copies", caplog.text)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        fetches = [model.loss, model.train_op]
        sess.run(fetches, model.feed())
        ran = {one.op for one in step_stats.trace(sess, fetches, model.feed())}
    copies = {node.name for node in nodes("Identity") if node.name.startswith(REPLICA + SCOPE + "copy")}
    assert int(told) == len(copies & ran) == len(copies) - 1


def test_processes_exchange_variables_on_the_host(offload):
    offload()
    Layers(2)
    plan = rewritten().plan._replace(device_type="GPU")
    of_processes = plan.name + PROCESSES
    assert transport_of(plan, of_processes) == "auto" and transport_of(plan, plan.name + "/apply0/0") == "nccl"
    assert transport_of(plan._replace(features=()), of_processes) == "nccl"


def test_what_is_exported_is_the_graph_of_the_user(offload):
    offload()
    Layers(2)
    before = {node.name: node for node in tf.get_default_graph().as_graph_def().node}
    saver = tf.train.Saver()
    rewritten()
    exported = {node.name: node for node in saver.export_meta_graph().graph_def.node}
    assert not any(SCOPE in name for name in exported)
    for name, node in before.items():
        mine = exported[name]
        assert (mine.device, sorted(mine.input)) == (node.device, sorted(node.input))
        assert "_epl_host" not in mine.attr


def test_a_graph_on_one_device_is_as_it_was_without_the_key(init):
    init(1)
    Layers(2)
    rewritten()
    assert not any(one.name.startswith(SCOPE) for one in nodes())


def _use(source, size):
    return WeightUse(source, 0, source + 100, 1, size, ())


def test_blocks_are_little_larger_than_what_fills_one():
    uses = [_use(number, size) for number, size in enumerate([100, 10, 100, 10, 40, 40, 40, 100])]
    assert [[use.source for use in block] for block in cut_blocks(uses, 100)] == [[0, 1], [2, 3], [4, 5, 6], [7]]


def test_what_a_block_takes_twice_counts_once():
    assert len(cut_blocks([_use(0, 100), _use(0, 100), _use(1, 20)], 100)) == 1
    assert len(cut_blocks([_use(0, 100), _use(0, 100), _use(1, 20)], 10)) == 2


def test_a_block_is_as_large_as_its_largest_weight():
    uses = [_use(number, size) for number, size in enumerate([1, 100, 20, 30, 10, 5, 1000, 1000])]
    assert [[use.source for use in block] for block in cut_blocks(uses, 10)] == [[0, 1], [2], [3], [4], [5], [6], [7]]
