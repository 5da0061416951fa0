"""Whole small models on parts compute what they compute unsplit: loss, outputs and the gradient of every variable."""

import pytest
import tensorflow.compat.v1 as tf

from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.sharding.placements import REPLICATED, shard
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.split.lowering import Lowering
from epl.utils.errors import PlanError
from tests.parallel.split.harness import (
    FEW_COLLECTIVES,
    Model,
    Plain,
    Split,
    check,
    close,
    communicator,
    few_choices,
    rows,
    run_split,
)
from tests.parallel.split.models import FLOAT, classifier, cross_entropy, mixture, transformer, weights

EVEN, UNEVEN = (4, 4), (3, 5, 2)


@pytest.mark.parametrize("counts", [EVEN, UNEVEN, (1, 4, 2, 3)])
def test_classifier(counts):
    splits = check(classifier, rows(counts, x=(12,), y=10))
    assert splits[0].placements["m/w1"].is_shard and splits[0].placements["m/kernel2"].is_shard


def test_transformer_with_a_tied_vocabulary():
    splits = check(transformer, rows(UNEVEN, tokens=([5], 11)))
    assert all(
        placement.is_shard for name, placement in splits[0].placements.items() if not name.endswith(("norm", "shift_2"))
    )


def test_transformer_with_few_collectives():
    splits = check(transformer, rows((2, 3), tokens=([5], 11)), costs=FEW_COLLECTIVES)
    assert str(splits[0].placements["attention/q"]) == "shard(1: 12+12)"
    assert str(splits[0].placements["attention/output"]) == "shard(0: 12+12)"
    forward, backward = splits[0].kinds()
    assert len(forward) + len(backward) <= 8


@pytest.mark.parametrize("ratios", [(1, 0), pytest.param((0, 1), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize(
    "build, fed",
    [
        (classifier, {"x": (12,), "y": 10}),
        (transformer, {"tokens": ([5], 11)}),
        (lambda: mixture(experts=5, top=1, inner=True), {"x": (8, 6)}),
    ],
    ids=["classifier", "transformer", "mixture"],
)
def test_all_on_one_of_two_ranks(build, fed, ratios):
    splits = check(build, rows((3, 2), **fed), ratios=ratios)
    for placement in splits[0].placements.values():
        assert placement.is_shard and placement.sizes == tuple(placement.size * ratio for ratio in ratios)


def test_mixture_of_experts():
    splits = check(lambda: mixture(experts=5, top=1, inner=True), rows(UNEVEN, x=(8, 6)))
    assert splits[0].placements["expert_in"].dim == 0


def test_convolutions():
    def build():
        x = tf.placeholder(FLOAT, [None, 6, 6, 3], "x")
        y = tf.placeholder(tf.int32, [None], "y")
        h = tf.nn.relu(tf.nn.conv2d(x, weights("filter", 3, 3, 3, 7), 1, "SAME"))
        h = tf.nn.max_pool2d(tf.nn.conv2d(h, weights("filter_2", 3, 3, 7, 6), 1, "SAME"), 2, 2, "SAME")
        logits = tf.matmul(tf.reshape(h, [-1, 54]), weights("head", 54, 5))
        return Model(cross_entropy(logits, y), [logits])

    splits = check(build, rows(UNEVEN, x=(6, 6, 3), y=5))
    assert splits[0].placements["filter"] == shard(3, (3, 2, 2))


@pytest.mark.parametrize("resource", [False, True])
def test_layers_of_tensorflow(resource):
    def build():
        x = tf.placeholder(tf.float32, [None, 9], "x")
        with tf.variable_scope("net", use_resource=resource):
            h = tf.layers.dense(x, 11, tf.nn.elu)
            h = tf.layers.dense(tf.concat([h, x], 1), 8, tf.nn.softplus)
            y = tf.layers.dense(h, 3, use_bias=False)
        return Model(tf.losses.mean_squared_error(tf.zeros_like(y), y) + tf.nn.l2_loss(h) * 0.01, [y])

    splits = check(build, rows(UNEVEN, x=(9,)), tolerance=1e-5)
    assert splits[0].placements["net/dense/kernel"].is_shard


def test_features_of_replicate_code_get_their_gradient():
    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        with tf.variable_scope("replicated"):
            features = tf.matmul(x, weights("shared", 6, 8))
            scale = tf.identity(weights("scalar", 1))
        before = tf.get_default_graph().get_operations()
        y = tf.matmul(tf.tanh(features * scale), weights("head", 8, 5))
        return Model(tf.reduce_mean(tf.square(y)), [y], before)

    feeds = rows(UNEVEN, x=(6,))
    plain = Plain(build, feeds)
    results, _ = run_split(build, feeds, plain)
    gradients = [gradients for _, _, gradients in results]
    close(sum(found["replicated/shared"] for found in gradients), plain.gradients["replicated/shared"], 1e-9)
    for found in gradients:  # what is the same everywhere has the same gradient everywhere
        close(found["replicated/scalar"], plain.gradients["replicated/scalar"], 1e-9)


def test_complex_numbers_have_gradients():
    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        h = tf.matmul(x, weights("kernel", 6, 8))
        h = tf.complex(tf.matmul(h, weights("real", 8, 5)), tf.matmul(h, weights("imaginary", 8, 5)))
        h = h * tf.complex(weights("scale", 5), weights("turn", 5))
        return Model(tf.reduce_mean(tf.square(tf.real(h)) + tf.sin(tf.imag(h))), [])

    for seed in range(3):
        check(build, rows(UNEVEN, x=(6,)), prepare=few_choices(seed))


def test_a_loop_and_a_branch_take_whole_tensors():
    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        h = tf.matmul(x, weights("kernel", 6, 8))
        _, h = tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.tanh(h) - tf.reduce_mean(h)), [0, h])
        h = tf.cond(tf.reduce_sum(h) > 0, lambda: h * 2, lambda: tf.square(h))
        return Model(tf.reduce_mean(tf.square(tf.matmul(h, weights("head", 8, 5)))), [h])

    splits = check(build, rows(UNEVEN, x=(6,)))
    assert splits[0].placements["kernel"].is_shard


def test_variables_of_a_loop_stay_whole():
    def build():
        x = tf.placeholder(FLOAT, [None, 4, 6], "x")
        states, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(5), x, dtype=FLOAT)
        h = tf.matmul(states[:, -1], weights("kernel", 5, 9))
        return Model(tf.reduce_mean(tf.square(h)), [h])

    splits = check(build, rows(UNEVEN, x=(4, 6)))
    whole = [name for name, placement in splits[0].placements.items() if placement == REPLICATED]
    assert sorted(splits[0].placements) == sorted(whole + ["kernel"])


def test_batch_norm_metrics_summaries_and_assertions():
    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        y = tf.placeholder(tf.int32, [None], "y")
        h = tf.layers.batch_normalization(tf.matmul(x, weights("kernel", 6, 9)), training=True)
        tf.summary.histogram("hidden", h)
        with tf.control_dependencies([tf.debugging.assert_greater(tf.reduce_sum(tf.abs(h)), tf.zeros([], FLOAT))]):
            logits = tf.layers.dense(h, 5, kernel_regularizer=tf.keras.regularizers.l2(0.1))
        tf.metrics.accuracy(y, tf.argmax(logits, 1))
        best = tf.nn.in_top_k(tf.cast(logits, tf.float32), y, 2)
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits) + tf.losses.get_regularization_loss()
        return Model(loss, [logits, best])

    splits = check(build, rows(UNEVEN, x=(6,), y=5), tolerance=1e-5)  # tf.losses computes in float32
    channels = [placement for name, placement in splits[0].placements.items() if name.startswith("batch_normalization")]
    assert channels == [shard(0, (3, 3, 3))] * 4


def test_random_numbers_in_a_loop_need_a_seed():
    def build(seed=None):
        if seed is None:
            tf.get_default_graph().seed = None
        h = tf.matmul(tf.placeholder(FLOAT, [None, 6], "x"), weights("kernel", 6, 8))
        h = tf.while_loop(lambda _: True, lambda h: h + tf.random.uniform([], dtype=FLOAT), [h], maximum_iterations=2)
        return Model(tf.reduce_mean(h), [])

    with pytest.raises(PlanError, match=r"RandomUniform .*test_lowering.py:\d+\) draws random numbers in a loop"):
        Split(build, 2, 0, communicator(2))
    Split(lambda: build(seed=3), 2, 0, communicator(2))


def test_what_leaves_the_split_must_have_a_known_batch():
    def build(known):
        x = tf.placeholder(FLOAT, [None, None, 6], "x")
        h = tf.tensordot(x, weights("kernel", 6, 8), 1)
        h = tf.while_loop(lambda _: True, tf.square, [h], maximum_iterations=2)
        h = tf.reduce_mean(h, 1) if known else h
        inside = set(tf.get_default_graph().get_operations())
        loss = tf.reduce_mean(h)
        return Model(loss, [], [op for op in tf.get_default_graph().get_operations() if op not in inside])

    with pytest.raises(PlanError, match="cannot tell which dimension of while.* holds the batch"):
        Split(lambda: build(known=False), 2, 0, communicator(2))


def test_a_function_that_reads_a_variable_gets_all_of_it():
    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        with tf.variable_scope("r", use_resource=True):
            shift = weights("shift", 8)
            kernel = weights("kernel", 6, 8)
        read = tf.function(lambda h: h + shift, autograph=False)
        return Model(tf.reduce_mean(tf.square(read(tf.matmul(x, kernel)))), [])

    split = Split(build, 2, 0, communicator(2))
    assert split.placements["r/kernel"].is_shard and split.placements["r/shift"] == REPLICATED


def test_what_is_drawn_is_the_same_on_every_rank():
    def build():
        x = tf.placeholder(FLOAT, [None, 6], "x")
        y = tf.matmul(x, weights("kernel", 6, 8))
        return Model(tf.reduce_mean(y), [tf.random.uniform([8], dtype=FLOAT) + tf.reduce_sum(y)])

    feeds = rows(EVEN, x=(6,))
    (first, second), _ = run_split(build, feeds, Plain(build, feeds))
    assert (first[1][0] == second[1][0]).all()


def test_the_size_of_one_ranks_batch_may_be_written_into_the_model():
    def build(count):
        x = tf.placeholder(FLOAT, [count, 5, 6], "x")
        positions = tf.tile(tf.reshape(tf.range(5.0), [1, 5, 1]), [count, 1, 1])
        h = tf.nn.relu(x + tf.cast(positions, FLOAT) * tf.zeros([count, 5, 6], FLOAT) + tf.ones([count, 1, 6], FLOAT))
        h = tf.reshape(tf.matmul(tf.reshape(h, [count * 5, 6]), weights("kernel", 6, 8)), [count, 5, 8])
        h *= tf.floor(1 + 0.5 * tf.random.uniform([count, 5, 8], dtype=FLOAT))  # all ones, as a dropout with rate 0
        head = tf.matmul(tf.reshape(h, [count, 40]), weights("head", 40, 3))
        return Model(tf.reduce_mean(tf.square(tf.nn.softmax(head))), [h, head])

    feeds = rows((4, 4), x=(5, 6))
    plain = Plain(lambda: build(8), feeds)
    results, splits = run_split(lambda: build(4), feeds, plain)
    assert splits[0].placements["kernel"].is_shard
    for loss, outputs, _ in results:
        close(loss, plain.loss, 1e-9)
        for output, wanted in zip(outputs, plain.outputs):
            close(output, wanted, 1e-9)


@pytest.mark.parametrize("prepare", [None, *map(few_choices, range(3))], ids=["any", "0", "1", "2"])
@pytest.mark.parametrize("dim, shape", [(0, (2, 4, 6)), (1, (1, 2, 4, 6)), (0, (4, 2, 6)), (0, (8, 3, 2))], ids=str)
def test_positions_that_enter_as_rows_are_rows_of_the_batch_after_a_reshape(dim, shape, prepare):
    """A batch of 2 rows with 4 positions comes into the split as 8 rows, and these sizes are written into the model."""

    def build(times):
        x = tf.placeholder(FLOAT, [2 * times, 4, 6], "x")
        entering = tf.reshape(x, [8 * times, 6])
        before = tf.get_default_graph().get_operations()
        sizes = [size * (times if at == dim else 1) for at, size in enumerate(shape)]
        h = tf.reshape(tf.matmul(entering, weights("kernel", 6, 6)), sizes)
        h = tf.nn.softmax(h, -2) * tf.reduce_sum(tf.tanh(h), -1, keepdims=True)
        y = tf.matmul(tf.reshape(h, [8 * times, 6]), weights("kernel2", 6, 5))
        return Model(tf.reduce_mean(tf.square(y)), [y], before)

    check(lambda: build(1), rows((2, 2), x=(4, 6)), prepare=prepare, of_all=lambda: build(2))


@pytest.mark.parametrize("shape", [[4, -1, 6], [4, 2, 6]], ids=str)
def test_groups_of_a_batch_whose_size_is_in_the_model_are_refused(shape):
    """4 groups of 2 rows on each device are not 4 groups of the rows of both."""

    def build():
        x = tf.placeholder(FLOAT, [8, 6], "x")
        groups = tf.reshape(tf.matmul(x, weights("kernel", 6, 6)), shape)
        return Model(tf.reduce_mean(tf.square(tf.reduce_sum(groups, 1))), [])

    with pytest.raises(PlanError, match="Reshape.*cannot be built on 2 devices"):
        Split(build, 2, 0, communicator(2))


def test_a_batch_that_does_not_fit_is_refused():
    def build():
        x = tf.placeholder(FLOAT, [4, 6], "x")
        y = tf.matrix_inverse(tf.matmul(x, x, transpose_b=True)) @ tf.ones([4, 6], FLOAT)
        return Model(tf.reduce_mean(y), [])

    with pytest.raises(PlanError, match=r"built on 2 devices.*the size of one device's batch.*epl.keep_whole"):
        Split(build, 2, 0, communicator(2))


def test_programs_of_ranks_differ_in_what_is_recorded_alone():
    wire = communicator(3)
    first, last = (Split(classifier, 3, rank, wire) for rank in (0, 2))
    different = set()
    for one, other in zip(first.graph.get_operations(), last.graph.get_operations()):
        assert one.name == other.name
        one_def, other_def = one.node_def, other.node_def
        if one.type in COLLECTIVE_OP_TYPES:
            assert (one_def.attr.pop("rank").i, other_def.attr.pop("rank").i) == (0, 2)
        if str(one_def) != str(other_def) and not one.name.startswith("PART/"):  # parts of variables
            different.add(one.name)
    assert different and different <= set(first.resharder.owned)


def test_collectives_run_in_one_order():
    split = Split(transformer, 2, 0, communicator(2))
    for before, after in zip(split.resharder.collectives, split.resharder.collectives[1:]):
        assert before in after.control_inputs or any(source.op is before for source in after.inputs)


def test_ops_get_the_device_and_the_scopes_of_the_users_ops():
    split = Split(classifier, 2, 0, communicator(2))
    with split.graph.as_default():
        resharder = Resharder(communicator(2), 0, "again")
        Lowering(split.program, split.decision, resharder, split._variable, "AGAIN/", "/device:CPU:1")
    built = [op for op in split.graph.get_operations() if op.name.startswith("AGAIN/")]
    assert {op.device for op in built} == {"/device:CPU:1"}
    assert {op.name for op in built} > {"AGAIN/m/MatMul", "AGAIN/m/Relu", "AGAIN/Mean"}
