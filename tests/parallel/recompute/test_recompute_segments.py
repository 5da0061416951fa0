"""What is recomputed, what it waits for, and what it saves: the graph after the pass, and traced steps."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel import transformation
from epl.parallel.pipeline.micro_batches import find_actions
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import RecomputeSection
from epl.parallel.recompute import recompute_segments
from epl.profiler import memory, step_stats
from epl.utils import tf_compat
from tests.parallel.in_process import error_text, rewritten

SCOPE = "EPL_RECOMPUTE/"
COPY = SCOPE + "stage0_segment0/"
COPY_1 = SCOPE + "stage0_segment1/"
GRADIENT = "gradients/l0/MatMul_grad/tuple/control_dependency_1"  # of the first kernel


def dense(x, name, units=4, activation=tf.tanh):
    """A layer with initial values of its own."""
    seed = sum(map(ord, name))
    kernel = tf.random_normal_initializer(stddev=0.4, seed=seed)
    return tf.layers.dense(x, units, activation, name=name, kernel_initializer=kernel)


class Layers:
    """Layers l0, l1, ... on x [rows, 4]; those in `kept` are checkpoints; `between` changes what a layer gives."""

    def __init__(self, count=6, kept=(1, 3), between=None, width=4, resource=False, rows=None):
        self.x = hidden = tf.placeholder(tf.float32, [rows, width], "x")
        with tf.variable_scope("", use_resource=resource):
            for index in range(count):
                hidden = dense(hidden, f"l{index}", width)
                hidden = between(hidden, index) if between else hidden
                if index in kept:
                    tf.add_to_collection("checkpoints", hidden)
        self.loss = tf.reduce_mean(tf.square(hidden - 1.0), name="loss")
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self.train_op = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)

    def feed(self, rows=8, seed=0):
        return {self.x: np.random.RandomState(seed).randn(rows, int(self.x.shape[1])).astype("f")}


def copies():
    """What was cloned, without what it waits after: name of the original -> op type."""
    nodes = tf_compat.full_graph_def(tf.get_default_graph()).node
    return {node.name.split("/", 2)[2]: node.op for node in nodes if node.name.startswith(SCOPE) and node.op != "NoOp"}


def names():
    """The names of the originals."""
    return set(copies())


def inputs(name):
    return [tensor.op.name for tensor in tf.get_default_graph().get_operation_by_name(name).inputs]


def controls(name):
    return [op.name for op in tf.get_default_graph().get_operation_by_name(name).control_inputs]


@pytest.fixture
def collect(init):
    """`collect(devices)`: a fresh graph with checkpoints from the collection."""
    return lambda devices=1, **config: init(devices, gradient_checkpoint__type="collection", **config)


@pytest.mark.parametrize("devices", [1, 2])
def test_between_checkpoints_it_is_recomputed_and_the_backward_pass_takes_that(collect, devices):
    collect(devices)
    Layers()
    rewritten()
    assert {"l0/Tanh", "l0/MatMul", "l2/Tanh"} <= names()
    assert not names() & {"l1/Tanh", "l3/Tanh", "l4/Tanh", "l5/Tanh", "l0/kernel/read"}
    assert inputs("gradients/l0/Tanh_grad/TanhGrad")[0] == COPY + "l0/Tanh"
    assert inputs("gradients/l1/Tanh_grad/TanhGrad")[0] == "l1/Tanh"
    assert inputs(COPY_1 + "l2/MatMul") == ["l1/Tanh", "l2/kernel/read"]


def test_it_waits_for_the_gradient_and_for_the_segment_behind(collect):
    collect()
    Layers()
    rewritten()
    (wait,) = controls(COPY + "l0/MatMul")
    assert "gradients/l2/Tanh_grad/TanhGrad" in controls(wait)
    assert not controls(COPY + "l0/Tanh")


def test_an_optimizer_waits_for_those_that_read_its_variable_again(collect):
    collect()
    Layers()
    rewritten()
    assert COPY + "l0/MatMul" in controls(GRADIENT)


VIEWS = {
    "all": lambda variable: tf.identity_n([variable])[0],
    "in another shape": lambda variable: tf.reshape(tf.reshape(variable, [16]), [4, 4]),
    "a part": lambda variable: variable[:4],
    "as in a branch": lambda variable: tf.cond(tf.constant(True), lambda: variable, lambda: tf.zeros([4, 4])),
}


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_an_optimizer_waits_for_those_that_read_its_variable_through_others(collect, view):
    collect()
    kernel = VIEWS[view](tf.get_variable("kernel", [4, 4], use_resource=False))
    hidden = tf.matmul(tf.placeholder(tf.float32, [None, 4]), kernel, name="product")
    hidden = dense(tf.tanh(hidden), "l1")
    tf.add_to_collection("checkpoints", hidden)
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(dense(hidden, "l2")))
    rewritten()
    waiting = [op.name for op in tf.get_default_graph().get_operations() if COPY + "product" in controls(op.name)]
    assert waiting and all(name.startswith("gradients/") for name in waiting)


def test_what_is_read_of_a_resource_variable_needs_no_wait(collect):
    collect()
    Layers(resource=True)
    rewritten()
    assert "l0/MatMul" in names()
    assert COPY + "l0/MatMul" not in controls(GRADIENT)


def test_random_numbers_are_drawn_once_and_the_mask_is_kept_in_its_smallest_form(collect):
    collect()
    Layers(between=lambda hidden, index: tf.nn.dropout(hidden, rate=0.5))
    rewritten()
    assert {"dropout/Cast", "dropout/SelectV2"} & names()  # what TensorFlow 1.15 and 2 make of the mask
    assert not {"dropout/GreaterEqual", "dropout/random_uniform/RandomUniform", "dropout/random_uniform/mul"} & names()


def test_of_gathered_columns_the_full_tensor_is_kept(init):
    init(2, annotate=False, gradient_checkpoint__type="auto", cluster__colocate_split_and_replicate=True)
    with epl.split(2, choices={"l*/MatMul": "full, shard(1) -> shard(1)"}):
        Layers(6, kept=(), width=64)
    rewritten()
    recomputed = copies().values()
    assert "MatMul" in recomputed and "EplAllGather" not in recomputed
    found = {op for op in tf.get_default_graph().get_operations() if op.type == "EplAllGather"}
    found = {op for op in found if "gradients" not in op.name}
    for op_type in ("Split", "ConcatV2"):
        found = {one for op in found for out in op.outputs for one in out.consumers() if one.type == op_type}
    assert found and not any(op.name.startswith(SCOPE) for op in found)


@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
def test_weights_in_parts_and_mixed_precision_change_nothing_of_it(init, level):
    """With both, the ops of the forward pass come after those that gather its weights, which are made later."""
    recomputed = []
    for config in ({}, {"zero__level": level}):
        init(2, gradient_checkpoint__type="auto", amp__level="O1", **config)
        Layers(kept=(), width=8)
        rewritten()
        recomputed.append({name for name in names() if not name.startswith("EPL")})
    assert any("MatMul" in name for name in recomputed[0])
    assert recomputed[1] >= {name for name in recomputed[0] if "Cast" not in name}


def test_what_reads_a_kept_output_of_identity_n_waits_by_itself():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [4, 8])
        kept, again = tf.tanh(x), tf.exp(x)
        one, other = tf.identity_n([kept, again])
        after_kept, after_again = tf.tanh(one), tf.tanh(other)
    view = GraphView(graph)
    again, both, after_kept, after_again = (view.index[one.op.name] for one in (again, one, after_kept, after_again))
    assert recompute_segments._first_nodes(view, [again, both, after_kept, after_again]) == [again, after_kept]


def test_statistics_of_batch_norm_are_updated_once(collect):
    collect()
    Layers(between=lambda hidden, index: tf.layers.batch_normalization(hidden, training=True, name="n%d" % index))
    rewritten()
    assert any("moments" in name for name in names())
    assert not any(op_type.startswith("Assign") for op_type in copies().values())


def test_a_loop_is_kept_as_a_whole(collect):
    def between(hidden, index):
        return tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, tf.tanh(h)), (0, hidden))[1]

    collect()
    Layers(between=between)
    rewritten()
    assert "l1/Tanh" in names()
    assert not any("while" in name for name in names())


def test_a_branch_is_kept_as_a_whole(collect):
    def between(hidden, index):
        return tf.cond(tf.reduce_sum(hidden) > 0, lambda: tf.tanh(tf.square(hidden)), lambda: tf.exp(hidden))

    collect()
    model = Layers(between=between)
    rewritten()
    assert "l1/Tanh" in names()
    assert not {"cond/Tanh", "cond/Square", "cond/Exp", "cond/Merge", "cond/Square/Switch"} & names()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed())


def test_a_value_from_which_a_variable_is_written_before_is_kept(collect):
    def between(hidden, index):
        state = tf.get_variable("state%d" % index, [4], initializer=tf.zeros_initializer(), trainable=False)
        shifted = tf.add(hidden, state, name="shifted%d" % index)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, state.assign_add(tf.ones([4])).op)
        return tf.tanh(shifted, name="after%d" % index)

    collect()
    Layers(between=between)
    rewritten()
    assert "after0" in names() and "shifted0" not in names()


def test_shapes_are_not_recomputed(collect):
    collect()
    Layers(between=lambda hidden, index: tf.tanh(tf.reshape(tf.square(hidden), tf.shape(hidden))))
    rewritten()
    assert "Reshape" in copies().values() and "Shape" not in copies().values()


def test_without_a_checkpoint_nothing_is_changed_and_a_warning_says_so(collect, caplog):
    collect()
    Layers(kept=())
    before = tf_compat.num_nodes(tf.get_default_graph())
    with caplog.at_level(logging.WARNING, "epl"):
        rewritten()
    assert "nothing can be recomputed for loss:0" in caplog.text
    assert tf_compat.num_nodes(tf.get_default_graph()) == before


def test_a_checkpoint_beside_the_gradients_is_named(collect, caplog):
    collect()
    tf.add_to_collection("checkpoints", tf.constant(1.0, name="beside"))
    Layers()
    with caplog.at_level(logging.WARNING, "epl"):
        rewritten()
    assert "'beside' has no effect: no gradient is computed through it" in caplog.text
    assert names()


def test_the_graph_that_is_exported_is_the_users(collect):
    collect()
    Layers()
    before = list(tf.get_default_graph().as_graph_def().node)
    rewritten()
    assert names() and list(tf.get_default_graph().as_graph_def().node) == before


def test_copies_are_part_of_the_backward_action_of_their_stage(collect):
    collect(2, annotate=False, pipeline__num_micro_batch=2)
    x = hidden = tf.placeholder(tf.float32, [None, 4])
    for stage in range(2):
        with epl.replicate(1):
            for index in range(3):
                hidden = dense(hidden, f"s{stage}l{index}")
    loss = tf.reduce_mean(hidden)
    tf.add_to_collection("checkpoints", hidden)
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    seen = []

    def look(view, *others):
        seen.append((view, find_actions(view, *others)))
        return seen[-1][1]

    from epl.parallel.pipeline import micro_batches

    original, micro_batches.find_actions = micro_batches.find_actions, look
    try:
        rewritten()
    finally:
        micro_batches.find_actions = original
    ((view, (actions,)),) = seen
    assert view.index[COPY + "s0l0/Tanh"] in actions[0, "B"]
    assert "EPL_MICRO_BATCH_1/" + COPY + "s0l0/Tanh" in tf_compat.op_names(tf.get_default_graph())
    assert x is not None


@pytest.mark.parametrize("end", [-1, 0])
def test_stages_up_to_end_taskgraph_are_recomputed(init, end):
    init(2, annotate=False, gradient_checkpoint__type="auto", gradient_checkpoint__end_taskgraph=end)
    hidden = tf.placeholder(tf.float32, [None, 4])
    for stage in range(2):
        with epl.replicate(1):
            for index in range(9):
                hidden = dense(hidden, f"s{stage}l{index}")
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(hidden))
    rewritten()
    assert any(name.startswith("s0") for name in names())
    assert any(name.startswith("s1") for name in names()) == (end == -1)


def test_gradients_that_are_only_looked_at_are_computed_as_before(collect):
    collect()
    model = Layers()
    tf.gradients(model.loss, tf.trainable_variables())
    rewritten()
    assert inputs("gradients/l0/Tanh_grad/TanhGrad")[0] == COPY + "l0/Tanh"
    assert inputs("gradients_1/l0/Tanh_grad/TanhGrad")[0] == "l0/Tanh"


@pytest.mark.parametrize("resource", [False, True])
def test_two_optimizers_of_one_loss_get_a_warning(collect, caplog, resource):
    collect()
    model = Layers(resource=resource)
    tf.train.AdamOptimizer().minimize(model.loss)
    with caplog.at_level(logging.WARNING, "epl"):
        rewritten()
    assert ("loss:0 is differentiated by two calls of tf.gradients" in caplog.text) == (not resource)
    assert inputs("gradients_1/l0/Tanh_grad/TanhGrad")[0] == "EPL_RECOMPUTE_1/stage0_segment0/l0/Tanh"


@pytest.mark.parametrize("kind", ["collection", "auto"])
def test_dropout_and_statistics_give_the_same_bits(init, kind):
    def between(hidden, index):
        hidden = tf.layers.batch_normalization(hidden, training=True, name="n%d" % index)
        return tf.nn.dropout(hidden, rate=0.5, seed=index)

    config = tf.ConfigProto()  # TensorFlow fuses other ops where some are kept, and fused ones have other last bits
    config.graph_options.rewrite_options.remapping = config.graph_options.rewrite_options.OFF
    values = []
    for case in ("", kind):
        init(1, gradient_checkpoint__type=case)
        model = Layers(8, kept=(1, 3, 5), between=between)
        with tf.Session(config=config) as sess:
            sess.run(tf.global_variables_initializer())
            losses = [sess.run([model.loss, model.train_op], model.feed(seed=step))[0] for step in range(4)]
            values.append(losses + sess.run(tf.global_variables()))
    assert names()
    for one, other in zip(*values):
        np.testing.assert_array_equal(one, other)


def test_what_is_recomputed_cannot_be_fed_in_a_training_step(collect):
    collect()
    model = Layers()
    hidden = {"l0/Tanh:0": np.ones([8, 4], "f"), "l1/Tanh:0": np.ones([8, 4], "f")}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert sess.run(model.loss, dict(hidden)) > 0
        sess.run(model.train_op, {model.x: model.feed()[model.x], "l1/Tanh:0": hidden["l1/Tanh:0"]})  # a checkpoint
        text = error_text(sess.run, model.train_op, {model.x: model.feed()[model.x], "l0/Tanh:0": hidden["l0/Tanh:0"]})
    assert text.startswith("FeedError: 'l0/Tanh:0' was fed in a step that computes it again")


# ---- traced steps


ROWS, WIDTH = 4096, 64
ACTIVATION = ROWS * WIDTH * 4


def traced_step(model):
    """The record of the second step."""
    # With threads of its own: those that sessions share are as many as the first session of the process had.
    config = tf.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Session(config=config) as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(model.train_op, model.feed(ROWS))
        return step_stats.run(sess, model.train_op, model.feed(ROWS))[1]


def peak_of_step(metadata):
    """The most that is alive at once, in activations: those, gradients, and what ops need for themselves."""
    (timeline,) = memory.timelines(metadata)
    return (timeline.peak - timeline.persistent) / ACTIVATION


def peak_of_activations(metadata):
    """The same of what the forward pass gives, the first time or again, that the backward pass takes.

    Memory is counted for the op that took it, also where a gradient is written into it later. The squares of the loss
    are not among it: only their mean is taken.
    """
    live = peak = 0
    for allocation in step_stats.allocations(metadata):
        if not allocation.op.startswith("gradients/") and allocation.op != "Square":
            live += allocation.bytes
            peak = max(peak, live)
    return peak / ACTIVATION


def recomputed_ops(metadata):
    """The ops that ran again."""
    ran = [execution.op for execution in step_stats.executions(metadata)]
    return [op.split("/", 2)[2] for op in ran if op.startswith(SCOPE)]


@pytest.mark.parametrize("kind", ["collection", "auto"])
def test_a_chain_of_layers_takes_two_roots_of_activations_and_one_forward_pass(init, kind):
    layers = 16
    limit = 1.1 * 2 * layers**0.5
    init(1)
    assert peak_of_step(traced_step(Layers(layers, (), width=WIDTH))) > layers
    init(1, gradient_checkpoint__type=kind)
    metadata = traced_step(Layers(layers, kept=(3, 7, 11), width=WIDTH))
    again = recomputed_ops(metadata)
    assert again and len(set(again)) == len(again)
    assert peak_of_activations(metadata) <= limit
    if kind == "auto":  # gradients and all; a collection of every fourth layer leaves no room for the squares
        assert peak_of_step(metadata) <= limit


def test_a_larger_budget_recomputes_less_and_is_kept(init):
    layers = []
    for budget in (6, 11, 17):
        init(1, gradient_checkpoint__type="auto", gradient_checkpoint__memory_budget=budget * ACTIVATION)
        metadata = traced_step(Layers(16, (), width=WIDTH, rows=ROWS))
        layers.append(sum(op.endswith("Tanh") for op in recomputed_ops(metadata)))
        assert peak_of_activations(metadata) <= budget * 1.001  # and the loss
    assert layers == [11, 6, 0]


def test_a_budget_that_cannot_be_kept_is_refused_with_the_least_that_can(init):
    def choose(budget):
        init(1, gradient_checkpoint__type="auto", gradient_checkpoint__memory_budget=budget)
        Layers(16, (), rows=8)
        return rewritten()

    text = error_text(choose, 100)
    assert text.startswith("PlanError: gradient_checkpoint.memory_budget is 100 bytes") and "stage 0" in text
    least = int(text.split("at least ")[1].split()[0])
    assert section(choose(least).plan, RecomputeSection).segments
    assert "PlanError" in error_text(choose, least - 1)


def test_a_budget_without_automatic_choice_is_refused(collect):
    collect(gradient_checkpoint__memory_budget=1000)
    Layers()
    assert "gradient_checkpoint.memory_budget is 1000 and gradient_checkpoint.type is 'collection'" in error_text(
        rewritten
    )


@pytest.mark.parametrize("rows", [None, 8])
def test_a_budget_for_a_batch_of_unknown_size_gets_a_warning(init, caplog, rows):
    init(1, gradient_checkpoint__type="auto", gradient_checkpoint__memory_budget=10**6)
    Layers(rows=rows)
    with caplog.at_level(logging.WARNING, "epl"):
        rewritten()
    assert ("gradient_checkpoint.memory_budget may be missed" in caplog.text) == (rows is None)
    assert "nothing can be recomputed" not in caplog.text and not names()


# ---- check_gradients


def test_right_gradients_pass_the_check_in_the_first_step_alone(collect):
    collect(gradient_checkpoint__check_gradients=True)
    model = Layers()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        assert not getattr(sess, "_epl_checked", None)
        assert isinstance(sess.run([model.loss, model.train_op], model.feed()), list)
        checked = sess._epl_checked
        assert len(checked) == len(Graph.get().rewritten.gradient_checks) == 7
        sess.run(model.train_op, model.feed())


@pytest.mark.parametrize("devices, later", [(1, None), (2, None), (1, np.nan), (1, np.inf)])
def test_a_gradient_that_differs_is_named(collect, devices, later):
    calls = []

    def unsteady(value):
        calls.append(1)
        return value * np.float32(len(calls) if later is None or len(calls) == 1 else later)

    def between(hidden, index):
        if index:
            return hidden
        result = tf.py_func(unsteady, [hidden], tf.float32, stateful=False)
        result.set_shape(hidden.shape)
        return tf.tanh(hidden + tf.stop_gradient(result))

    collect(devices, gradient_checkpoint__check_gradients=True)
    model = Layers(between=between)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        text = error_text(sess.run, model.train_op, model.feed())
    assert text.startswith("PlanError: The gradient of l") and "differs from the plain one by" in text


def test_callables_are_checked_and_refuse_what_is_recomputed(init):
    init(1, gradient_checkpoint__type="auto", gradient_checkpoint__check_gradients=True)
    model = Layers()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feed = model.feed()
        train = sess.make_callable([model.loss, model.train_op], list(feed))
        loss, _ = train(*feed.values())
        assert loss.shape == () and sess._epl_checked
        graph = tf.get_default_graph()
        copied = sorted(op.name for op in graph.get_operations() if op.name.startswith(COPY) and op.type == "Tanh")
        hidden = graph.get_tensor_by_name(copied[0][len(COPY) :] + ":0")
        other = np.zeros([len(next(iter(feed.values()))), hidden.shape[1]], np.float32)
        text = error_text(sess.make_callable(model.train_op, [*feed, hidden]), *feed.values(), other)
        assert "was fed in a step that computes it again" in text


def test_what_comes_through_a_loop_is_not_compared_and_named(collect, caplog):
    def between(hidden, index):
        if index != 1:
            return hidden
        return tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, tf.tanh(h)), (0, hidden))[1]

    collect(gradient_checkpoint__check_gradients=True)
    model = Layers(between=between, kept=(4,))
    with caplog.at_level(logging.WARNING, "epl"):
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            sess.run(model.train_op, model.feed())
    assert "does not compare" in caplog.text and "l0/kernel" in caplog.text
    assert transformation.transform() is None


def test_a_training_step_that_is_added_after_the_first_run_is_refused(init):
    init(1, gradient_checkpoint__type="auto")
    model = Layers()
    rewritten()
    text = error_text(tf.train.AdamOptimizer().minimize, model.loss)
    assert text.startswith("PlanError") and "without recomputation" in text


def test_the_plan_says_what_is_recomputed(init):
    init(1, gradient_checkpoint__type="collection")
    Layers()
    segments = section(rewritten().plan, RecomputeSection).segments
    (segment,) = [one for one in segments if one.segment == 0]
    assert (segment.objective, segment.stage, segment.first.split("/")[0]) == ("loss:0", 0, "l0")
    assert segment.ops == len([op for op in tf_compat.op_names(tf.get_default_graph()) if op.startswith(COPY)]) - 1
