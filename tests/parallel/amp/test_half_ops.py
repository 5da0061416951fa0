"""Mixed precision: which ops compute in half precision, and what the script sees of it."""

from typing import Any, Set

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ir.taskgraph import WEIGHT_ATTR
from epl.ir.view import GraphView
from epl.parallel.amp import op_lists, op_selection
from tests.parallel.in_process import error_text
from tests.parallel.mixed import batch, run, weights


def converted() -> Set[str]:
    """Names of the user's ops that have a half copy."""
    return {copy.original.op.name for copy in Graph.get().replacements.values()}


def halves(ys: tf.Tensor, dtype: tf.DType = tf.float16, **arguments: Any) -> Set[str]:
    """Names of the ops that would compute in half precision."""
    tf_graph = tf.get_default_graph()
    view = GraphView(tf_graph)
    root = view.index[ys.op.name]
    choice = op_selection.choose(tf_graph, view, [root], [root], dtype, "CPU", **arguments)
    return {view.nodes[node].name for node in choice.half}


# ---- Which ops


def test_ops_between_two_of_half_precision_follow_them(init: Any) -> None:
    init(1)
    hidden = tf.nn.relu(tf.nn.bias_add(tf.matmul(batch(4), weights("w", 4, 4)), weights("b", 4)))
    loss = tf.reduce_mean(tf.matmul(hidden, weights("v", 4, 2)))
    assert halves(loss) == {"MatMul", "BiasAdd", "Relu", "MatMul_1"}


def test_what_is_denied_makes_what_is_inferred_behind_it_float(init: Any) -> None:
    init(1)
    product = tf.matmul(batch(4), weights("w", 4, 4))
    scores = tf.reshape(tf.nn.softmax(product), [-1, 4], name="way")
    loss = tf.reduce_mean(tf.matmul(product + scores, weights("v", 4, 2), name="last"))
    assert halves(loss) == {"MatMul", "last"}


def test_a_clear_op_beside_one_of_half_precision_follows_it(init: Any) -> None:
    init(1)
    product = tf.reshape(tf.matmul(batch(4), weights("w", 4, 4)), [-1, 2, 2], name="way")
    assert halves(tf.reduce_mean(product)) == {"MatMul", "way"}


def test_preserved_types_keep_their_type(init: Any) -> None:
    init(1)
    x = batch(4)
    first, second = tf.matmul(x, weights("w", 4, 4)), tf.matmul(x, weights("v", 4, 4))
    joined = tf.concat([first, second], 1)
    loss = tf.reduce_mean(tf.matmul(joined, weights("u", 8, 2), name="last"))
    assert "ConcatV2" in op_lists.PRESERVE and "ConcatV2" in op_lists.CLEAR
    assert halves(loss) == {"MatMul", "MatMul_1", "last"}


def test_the_lists_are_what_counts(init: Any, monkeypatch: Any) -> None:
    init(1)
    loss = tf.reduce_mean(tf.matmul(batch(4), weights("w", 4, 4)))
    monkeypatch.setattr(op_lists, "PRESERVE", op_lists.PRESERVE | {"MatMul"})
    assert halves(loss) == set()


def test_what_is_computed_from_weights_alone_stays_float(init: Any) -> None:
    init(1)
    table = weights("table", 9, 4)
    ids = tf.placeholder(tf.int32, [None])
    rows = tf.nn.embedding_lookup(table, ids)
    kernel = tf.reshape(tf.transpose(weights("w", 2, 8)), [4, 4])
    assert halves(tf.reduce_mean(tf.matmul(rows, kernel))) == {"MatMul", "embedding_lookup/Identity"}


@pytest.mark.parametrize("number, kept", [(1e-9, True), (-1e9, True), (1e-3, False), (1e4, False)])
@pytest.mark.parametrize(
    "guard",
    [
        lambda product, number: tf.maximum(product, number),
        lambda product, number: tf.where(product > 0, product, number * tf.ones_like(product)),
        lambda product, number: tf.where(product > 0, product, tf.fill(tf.shape(product), number)),
        lambda product, number: tf.pad(product, [[0, 0], [0, 1]], constant_values=number),
    ],
)
def test_a_number_that_half_precision_cannot_hold_keeps_its_op_float(init: Any, guard: Any, number: float, kept: bool):
    init(1)
    guarded = guard(tf.matmul(batch(4), weights("w", 4, 4)), number)
    found = halves(tf.reduce_mean(guarded))
    assert (guarded.op.name not in found) == kept and "MatMul" in found
    if number < 0:  # bfloat16 has the range of float32
        assert guarded.op.name in halves(tf.reduce_mean(guarded), tf.bfloat16, has_kernel=lambda *_: True)


def test_an_op_without_kernel_stays_float(init: Any) -> None:
    init(1)
    images = tf.placeholder(tf.float32, [None, 4, 4, 1])
    hidden = tf.nn.conv2d(images, weights("k", 2, 2, 1, 3), 1, "SAME")
    loss = tf.reduce_mean(tf.matmul(tf.reshape(hidden, [-1, 48]), weights("w", 48, 2)))
    assert halves(loss) == {"Conv2D", "Reshape", "MatMul"}
    assert halves(loss, tf.bfloat16, has_kernel=lambda op_type, *_: op_type != "Conv2D") == {"Reshape", "MatMul"}


def test_an_op_whose_gradient_has_no_kernel_stays_float(init: Any) -> None:
    init(1)
    loss = tf.reduce_mean(tf.matmul(tf.nn.relu(tf.matmul(batch(4), weights("w", 4, 4))), weights("v", 4, 4)))
    missing = "ReluGrad"
    assert halves(loss, has_kernel=lambda name, *_: name != missing) == {"MatMul", "MatMul_1"}


def test_numbers_become_half_where_all_that_takes_them_is(init: Any) -> None:
    init(1)
    ids = tf.placeholder(tf.int32, [None, 4])
    loss = tf.reduce_mean(tf.matmul(tf.cast(ids, tf.float32, name="numbers"), weights("w", 4, 4)))
    assert halves(loss) == {"numbers", "MatMul"}


def test_an_op_with_a_gradient_of_its_own_stays_float(init: Any) -> None:
    @tf.custom_gradient
    def doubled(x: tf.Tensor) -> Any:
        return x * 2.0, lambda grad: grad * 2.0

    init(1)
    loss = tf.reduce_mean(tf.matmul(doubled(tf.matmul(batch(4), weights("w", 4, 4))), weights("v", 4, 2)))
    assert not any("IdentityN" in name for name in halves(loss))


# ---- The graph


def test_gradients_of_weights_are_float_and_activations_are_not(mixed: Any) -> None:
    mixed()
    loss = tf.reduce_mean(tf.matmul(tf.nn.relu(tf.matmul(batch(4), weights("w", 4, 4))), weights("v", 4, 2)))
    gradients = tf.gradients(loss, tf.trainable_variables())
    assert [gradient.dtype for gradient in gradients] == [tf.float32, tf.float32]
    types = [op.outputs[0].dtype for op in tf.get_default_graph().get_operations() if op.type == "MatMul"]
    assert types.count(tf.float16) == 2 + 4 and types.count(tf.float32) == 2  # what the half copies replace


def test_no_copy_of_a_weight_is_kept_for_the_backward_pass(mixed: Any) -> None:
    mixed()
    hidden = batch(4)
    for layer in range(3):
        hidden = tf.nn.relu(tf.matmul(hidden, weights("w%d" % layer, 4, 4)))
    tf.gradients(tf.reduce_mean(hidden), tf.trainable_variables())
    copies = [op for op in tf.get_default_graph().get_operations() if WEIGHT_ATTR in op.node_def.attr]
    assert len(copies) == 3 + 3
    for copy in copies:
        assert len(copy.outputs[0].consumers()) == 1 and len(copy.control_inputs) == 1
    assert sum("backward" in str(op.node_def.attr["_epl_phase"].s) for op in copies) == 3


@pytest.mark.parametrize("how", ["collection", "auto"])
def test_recomputed_segments_convert_weights_anew(mixed: Any, how: str) -> None:
    mixed(gradient_checkpoint__type=how)
    hidden = batch(4)
    for layer in range(6):
        hidden = tf.nn.relu(tf.matmul(hidden, weights("w%d" % layer, 4, 4)))
        tf.add_to_collection("checkpoints", hidden)
        hidden = tf.nn.tanh(tf.matmul(hidden, weights("v%d" % layer, 4, 4)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(hidden))
    run(train_op, {"x:0": np.ones([2, 4], "f")})
    recomputed = [name for name in Graph.get().rewritten.recomputed if name.startswith("MatMul")]
    assert len(recomputed) >= 4
    graph = tf.get_default_graph()
    for name in recomputed:
        (copy,) = Graph.get().rewritten.recomputed[name]
        own, again = graph.get_operation_by_name(name).inputs[1].op, graph.get_operation_by_name(copy).inputs[1].op
        assert again is not own and len(own.outputs[0].consumers()) == 1 and WEIGHT_ATTR in again.node_def.attr


@pytest.mark.parametrize("devices", [1, 2])
def test_what_the_script_holds_has_the_value_of_the_half_copy(mixed: Any, devices: int) -> None:
    mixed(devices)
    product = tf.matmul(batch(4), weights("w", 4, 4))
    loss = tf.reduce_mean(product)
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(loss)
    later = tf.identity(product)
    x = np.random.RandomState(0).randn(3 * devices, 4).astype("f")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        kernel = sess.run(tf.trainable_variables()[0])
        seen, copy, _ = sess.run([product, later, train_op], {"x:0": x})
    expected = np.matmul(x[:3].astype(np.float16), kernel.astype(np.float16))
    assert seen.dtype == np.float32
    np.testing.assert_array_equal(seen, seen.astype(np.float16))
    np.testing.assert_allclose(seen, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(seen, copy)


def test_a_collected_output_is_merged(mixed: Any) -> None:
    mixed(2)
    product = tf.matmul(batch(4), weights("w", 4, 4))
    epl.add_to_collection(product, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(product))
    rows = np.random.RandomState(0).randn(6, 4).astype("f")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        kernel = sess.run(tf.trainable_variables()[0])
        seen, _ = sess.run([product, train_op], {"x:0": rows})
    assert seen.dtype == np.float32
    np.testing.assert_allclose(seen, np.matmul(rows, kernel), rtol=1e-2, atol=5e-3)


def test_statistics_of_batch_norm_are_those_of_the_half_copy(mixed: Any) -> None:
    mixed()
    images = tf.placeholder(tf.float32, [None, 4, 4, 2], "x")
    hidden = tf.nn.conv2d(images, weights("k", 1, 1, 2, 2), 1, "SAME")
    hidden = tf.layers.batch_normalization(hidden, training=True, momentum=0.0, name="norm")
    last = tf.nn.conv2d(tf.nn.relu(hidden), weights("l", 1, 1, 2, 2), 1, "SAME")
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(last))
    assert any("FusedBatchNorm" in name for name in converted())
    rows = np.random.RandomState(0).randn(3, 4, 4, 2).astype("f")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        kernel = sess.run(tf.trainable_variables()[0])
        sess.run(train_op, {images: rows})
        seen = sess.run(sess.graph.get_tensor_by_name("norm/moving_mean/read:0"))
    expected = np.matmul(rows.reshape(-1, 2), kernel[0, 0]).astype(np.float16)
    np.testing.assert_allclose(seen, expected.mean(0, dtype=np.float32), rtol=1e-2, atol=1e-3)


def test_what_has_a_twin_cannot_be_fed(mixed: Any) -> None:
    mixed()
    product = tf.matmul(batch(4), weights("w", 4, 4))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(product))
    text = error_text(run, train_op, {"x:0": np.ones([1, 4]), product: np.ones([1, 4])})
    assert text.startswith("FeedError") and "'MatMul:0'" in text and "amp.level" in text


def test_a_second_loss_takes_the_twins_of_the_first(mixed: Any) -> None:
    mixed(amp__loss_scale=8.0)
    hidden = tf.matmul(batch(4), weights("w", 4, 4), name="shared")
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    first = optimizer.minimize(tf.reduce_mean(hidden))
    second = optimizer.minimize(tf.reduce_mean(tf.matmul(hidden, weights("v", 4, 2), name="own")))
    assert converted() == {"shared", "own"}
    (copy,) = [
        op for op in tf.get_default_graph().get_operations() if op.name.startswith("own_EPL") and op.type == "MatMul"
    ]
    assert copy.inputs[0] is Graph.get().replacements["shared:0"].computed
    run(tf.group(first, second), {"x:0": np.ones([2, 4], "f")})


def test_gradients_by_an_activation(mixed: Any) -> None:
    mixed(amp__loss_scale=1024.0)
    hidden = tf.matmul(batch(4), weights("w", 4, 4))
    loss = tf.reduce_sum(tf.matmul(hidden, weights("v", 4, 2)))
    (own,) = tf.gradients(loss, [tf.trainable_variables()[1]])
    (late,) = tf.gradients(loss, [hidden])
    assert late.dtype == tf.float32
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        seen, kernel, _ = sess.run([late, tf.trainable_variables()[1], own], {"x:0": np.ones([2, 4], "f")})
    np.testing.assert_allclose(seen, np.tile(kernel.sum(1), [2, 1]), rtol=2e-3)


@pytest.mark.parametrize("first", ["penalty", "training"])
def test_gradients_of_gradients(mixed: Any, first: str) -> None:
    mixed()
    rows = np.random.RandomState(0).randn(4, 3).astype("f")
    kernels = [
        np.random.RandomState(seed).randn(*shape).astype("f") * 0.5 for seed, shape in ((1, (3, 3)), (2, (3, 1)))
    ]

    def gradients(x: tf.Tensor, variables: Any) -> Any:
        score = tf.matmul(tf.tanh(tf.matmul(x, variables[0])), variables[1])
        before = tf.gradients(tf.reduce_mean(score), variables) if first == "training" else []
        (slope,) = tf.gradients(score, [x])
        return tf.gradients(tf.reduce_mean(tf.square(slope)), variables) + before

    with tf.Graph().as_default(), tf.Session() as sess:
        expected = sess.run(gradients(tf.constant(rows), [tf.constant(kernel) for kernel in kernels]))
    variables = [tf.get_variable("w%d" % i, initializer=kernel) for i, kernel in enumerate(kernels)]
    fetches = gradients(batch(3), variables)
    assert converted()
    for seen, right in zip(run(fetches, {"x:0": rows})[0], expected):
        np.testing.assert_allclose(seen, right, rtol=1e-2, atol=2e-3)


def test_copies_of_weights_are_made_when_they_are_needed(mixed: Any) -> None:
    mixed(amp__loss_scale=8.0)
    hidden = batch(16)
    for layer in range(8):
        hidden = tf.nn.relu(tf.matmul(hidden, weights("w%d" % layer, 16, 16)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(hidden))
    metadata = tf.RunMetadata()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        sess.run(train_op, {"x:0": np.ones([2, 16])}, options=options, run_metadata=metadata)
    starts = {n.node_name: n.all_start_micros for device in metadata.step_stats.dev_stats for n in device.node_stats}
    for layer in range(2, 8):  # of the forward pass: each copy after the product before
        copies = [name for name in starts if name.startswith("w%d/" % layer) and name.endswith("cast_float16")]
        assert len(copies) == 1
        assert starts[copies[0]] >= starts["MatMul_%d_EPL_AMP_float16" % (layer - 1)]


def test_a_loop_is_converted_and_keeps_no_copies_of_weights(mixed: Any) -> None:
    mixed()
    kernel = weights("w", 4, 4)
    x = batch(4)

    def body(i: tf.Tensor, hidden: tf.Tensor) -> Any:
        return i + 1, tf.tanh(tf.matmul(hidden, kernel))

    _, hidden = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), x])
    loss = tf.reduce_mean(hidden)
    (gradient,) = tf.gradients(loss, [kernel])
    assert {name for name in converted() if "MatMul" in name} == {"while/MatMul"}
    pushed = [op.inputs[1] for op in tf.get_default_graph().get_operations() if op.type == "StackPushV2"]
    assert pushed and not any(WEIGHT_ATTR in tensor.op.node_def.attr for tensor in pushed)
    rows = np.random.RandomState(0).randn(3, 4).astype("f")
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        start, seen = sess.run([kernel, gradient], {x: rows})
    with tf.Graph().as_default(), tf.Session() as sess:
        expected_kernel = tf.constant(start)
        hidden = tf.constant(rows)
        for _ in range(3):
            hidden = tf.tanh(tf.matmul(hidden, expected_kernel))
        expected = sess.run(tf.gradients(tf.reduce_mean(hidden), [expected_kernel])[0])
    np.testing.assert_allclose(seen, expected, rtol=2e-2, atol=1e-3)


def test_a_branch_is_converted(mixed: Any) -> None:
    mixed()
    x, kernel = batch(4), weights("w", 4, 4)
    hidden = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, kernel), lambda: x * 2.0)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(hidden)))
    assert converted() == {"cond/MatMul"}
    run(train_op, {"x:0": np.ones([2, 4], "f")})


@pytest.mark.parametrize("how", ["nothing", "tape"])
def test_what_has_no_effect_is_said(mixed: Any, caplog: Any, how: str) -> None:
    mixed()
    kernel = tf.get_variable("w", [2], initializer=tf.ones_initializer(), use_resource=True)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    if how == "nothing":
        train_op = optimizer.minimize(tf.reduce_sum(kernel))
    else:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(batch(2), kernel[:, None]))
        train_op = optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
    run(train_op, {"x:0": [[1.0, 2.0]]} if how == "tape" else {})
    assert "amp.level is 'o1' and has no effect" in caplog.text


def test_bfloat16(mixed: Any) -> None:
    mixed(amp__dtype="bfloat16")
    x, kernel = batch(4), weights("w", 4, 4)
    loss = tf.reduce_mean(tf.matmul(tf.nn.relu(tf.matmul(x, kernel)), weights("v", 4, 2)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert {copy.computed.dtype for copy in Graph.get().replacements.values()} == {tf.bfloat16}
    losses = run([loss, train_op], {"x:0": np.ones([2, 4], "f")}, steps=4)
    assert losses[-1][0] < losses[0][0]
