"""What users compute from gradients of shards: with parts it gives what it gives with whole gradients."""

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.parallel.sharding.placements import REPLICATED, offsets, shard
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.updates import complete_updates, trace_updates
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_NUMBERS = itertools.count()
RANDOM = np.random.RandomState(0)
COLUMNS, ROWS = RANDOM.randn(5, 8).astype("f"), RANDOM.randn(7, 3).astype("f")
BIAS = RANDOM.randn(3).astype("f")
GRADIENTS = [COLUMNS, ROWS, BIAS]
EVEN = [shard(1, [4, 4]), shard(0, [4, 3]), REPLICATED]
UNEVEN = [shard(1, [5, 2, 1]), shard(0, [4, 2, 1]), REPLICATED]


@pytest.fixture(scope="module", autouse=True)
def job():
    """The job of this process."""
    with Job.start(["localhost:0"], 0, stall_warning=5, timeout=60) as job:
        yield job


def shard_of(value, placement, rank):
    """A rank's part of an array."""
    if not placement.is_shard:
        return value
    begin = offsets(placement.sizes)[rank]
    return np.take(value, range(begin, begin + placement.sizes[rank]), placement.dim)


def whole_of(parts, placement):
    """The array of which these are the parts of all ranks."""
    return np.concatenate(parts, placement.dim) if placement.is_shard else parts[0]


def check(build, placements, results, gradients=GRADIENTS, sums=None, collectives=None):
    """Compares `build(gradients)`, a list of tensors, on parts and on whole gradients; `results`: their placements."""
    ranks = len(placements[0].sizes)
    communicator = Communicator(f"updates{next(_NUMBERS)}", [0] * ranks)
    with tf.Graph().as_default() as graph:
        expected = build([tf.placeholder_with_default(value, value.shape) for value in gradients])
        fetches = []
        for rank in range(ranks):
            resharder = Resharder(communicator, rank, "test")
            with tf.device("/device:CPU:{}".format(rank)), tf.name_scope(f"rank{rank}"):
                own = [shard_of(value, placement, rank) for value, placement in zip(gradients, placements)]
                tensors = [tf.placeholder_with_default(value, value.shape) for value in own]
                parts = {tensor: placement for tensor, placement in zip(tensors, placements) if placement != REPLICATED}
                after = tf_compat.last_op_id(graph)
                made = [tf.identity(result) for result in build(tensors)]
                updates = trace_updates(graph, parts, {}, ranks, after)
                complete_updates(updates, resharder)
            fetches.append(made)
            assert [updates.placements.get(tensor, REPLICATED) for tensor in made] == list(results)
            assert sums is None or [len(one.partial_sums) for one in updates.rounds] == sums
            assert collectives is None or len(resharder.collectives) == collectives
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": ranks})) as sess:
            wanted, found = sess.run([expected, fetches])
    for index, placement in enumerate(results):
        got = [parts[index] for parts in found]
        if isinstance(got[0], bytes):
            assert all(one == wanted[index] for one in got)
        elif placement.is_shard:
            np.testing.assert_allclose(whole_of(got, placement), wanted[index], rtol=1e-5, atol=1e-6)
        else:
            for one in got:
                np.testing.assert_allclose(one, wanted[index], rtol=1e-5, atol=1e-6)


PLACEMENTS = pytest.mark.parametrize("placements", [EVEN, UNEVEN], ids=["even", "uneven"])


@PLACEMENTS
def test_the_global_norm_is_that_of_one_device_in_one_collective(placements):
    check(lambda gradients: [tf.global_norm(gradients)], placements, [REPLICATED], sums=[2], collectives=1)


@PLACEMENTS
def test_gradients_are_clipped_by_the_norm_of_one_device(placements):
    def build(gradients):
        clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
        return clipped + [norm]

    check(build, placements, placements + [REPLICATED], collectives=1)


@PLACEMENTS
def test_each_gradient_is_clipped_by_its_own_norm(placements):
    check(lambda gradients: [tf.clip_by_norm(gradient, 0.5) for gradient in gradients], placements, placements)


@PLACEMENTS
def test_norms_of_what_norms_were_used_for_take_two_rounds(placements):
    def build(gradients):
        each = [gradient / tf.norm(gradient) for gradient in gradients]
        return [tf.global_norm([gradient * (index + 1.0) for index, gradient in enumerate(each)])]

    check(build, placements, [REPLICATED], sums=[2, 2], collectives=2)


@PLACEMENTS
def test_reductions_over_parts_are_those_over_the_whole(placements):
    def build(gradients):
        return [function(gradient) for gradient in gradients for function in (tf.reduce_mean, tf.reduce_max)]

    check(build, placements, [REPLICATED] * 6)


def test_what_is_clipped_element_by_element_needs_no_collective():
    def build(gradients):
        return [tf.clip_by_value(gradient, -0.5, 0.5) + 0.1 * tf.sign(gradient) for gradient in gradients]

    check(build, EVEN, EVEN, collectives=0)


def test_an_op_without_a_rule_is_computed_on_the_whole():
    check(
        lambda gradients: [tf.raw_ops.HistogramSummary(tag="g", values=gradients[0])],
        EVEN[:1],
        [REPLICATED],
        GRADIENTS[:1],
        collectives=1,
    )


def test_parts_that_are_cut_differently_meet_whole():
    check(
        lambda gradients: [tf.strings.format("{} {}", gradients, summarize=-1)],
        UNEVEN[:2],
        [REPLICATED],
        GRADIENTS[:2],
        collectives=2,
    )
    squares = [RANDOM.randn(2, 2).astype("f") for _ in range(2)]
    cut = [shard(0, [1, 1]), shard(1, [1, 1])]  # of one shape; as they stand they would be broadcast
    check(lambda gradients: [tf.multiply(*gradients)], cut, [REPLICATED], squares, collectives=2)


@pytest.mark.parametrize("placement, from_left", [(shard(1, [4, 4]), True), (shard(0, [4, 4]), False)])
def test_a_matrix_as_large_as_a_part_is_whole(placement, from_left):
    """That of a preconditioner."""
    matrix, gradient = [RANDOM.randn(*shape).astype("f") for shape in ((4, 4), (4, 8) if from_left else (8, 4))]

    def build(gradients):
        return [tf.matmul(matrix, gradients[0]) if from_left else tf.matmul(gradients[0], matrix)]

    check(build, [placement], [placement], [gradient], collectives=0)


def test_a_product_whose_shape_is_that_of_parts_is_refused():
    with pytest.raises(PlanError, match=r"cut so \(shard\(1: 4\+4\), shard\(1: 2\+1\)\)"):
        check(
            lambda gradients: [tf.reduce_sum(tf.matmul(gradients[0], gradients[1], transpose_a=True))],
            [shard(1, [4, 4]), shard(1, [2, 1])],
            [REPLICATED],
            [RANDOM.randn(7, 8).astype("f"), ROWS],
        )


def test_rows_of_a_sparse_gradient_count_once():
    """Each rank has the rows that it looked up, and zeros for the others'."""
    own = [ROWS * (np.arange(7) % 2 == rank)[:, None] for rank in range(2)]
    communicator = Communicator(f"updates{next(_NUMBERS)}", [0, 0])
    with tf.Graph().as_default() as graph:
        fetches = []
        for rank in range(2):
            with tf.device(f"/device:CPU:{rank}"):
                values = tf.placeholder_with_default(own[rank].astype("f"), [None, 3])
                after = tf_compat.last_op_id(graph)
                fetches.append(tf.identity(tf.global_norm([tf.IndexedSlices(values, tf.range(7))])))
                updates = trace_updates(graph, {values: shard(0, None)}, {}, 2, after)
                complete_updates(updates, Resharder(communicator, rank, "test"))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as sess:
            np.testing.assert_allclose(sess.run(fetches), [np.sqrt(np.square(ROWS).sum())] * 2, rtol=1e-6)


def traced(build, variables=None):
    """The Updates of `build(part)` on rank 0, with a part [5, 4] of [5, 8]."""
    part = tf.placeholder_with_default(COLUMNS[:, :4], [5, 4])
    after = tf_compat.last_op_id(part.graph)
    build(part)
    return trace_updates(part.graph, {part: EVEN[0]}, variables or {}, 2, after)


@pytest.fixture
def graph():
    """A fresh graph."""
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize(
    "optimizer",
    [tf.train.AdamOptimizer, tf.train.AdagradOptimizer, tf.train.FtrlOptimizer, tf.train.RMSPropOptimizer],
    ids=lambda optimizer: optimizer.__name__,
)
def test_slots_are_found_by_what_is_written(graph, optimizer, resource):
    variable = tf.get_variable("v", [5, 4], use_resource=resource)
    tf.get_variable("other", [5, 4], use_resource=resource)
    own = optimizer(0.1)
    updates = traced(lambda part: own.apply_gradients([(part, variable)]), {"v": EVEN[0]})
    slots = [own.get_slot(variable, name).op.name for name in own.get_slot_names()]
    assert slots and updates.variables == dict.fromkeys(["v"] + slots, EVEN[0])


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize(
    "optimizer",
    [
        tf.train.AdamOptimizer,
        tf.train.AdagradOptimizer,
        lambda rate: tf.train.MomentumOptimizer(rate, 0.9),
        tf.train.RMSPropOptimizer,
        tf.train.GradientDescentOptimizer,
    ],
    ids=["adam", "adagrad", "momentum", "rms_prop", "gradient_descent"],
)
def test_a_sparse_update_stays_with_its_rank_and_its_slots_are_found(graph, optimizer, resource):
    variable = tf.get_variable("v", [5, 4], use_resource=resource)
    tf.get_variable("other", [5, 4], use_resource=resource)
    values, indices = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [None])
    own = optimizer(0.1)
    after = tf_compat.last_op_id(graph)
    (gradient,), norm = tf.clip_by_global_norm([tf.IndexedSlices(values, indices, tf.constant([5, 4]))], 1.0)
    own.apply_gradients([(gradient, variable)])
    rows = shard(0, None)
    updates = trace_updates(graph, {values: rows, indices: rows}, {"v": EVEN[0]}, 2, after)
    slots = [own.get_slot(variable, name).op.name for name in own.get_slot_names()]
    assert updates.variables == dict.fromkeys(["v"] + slots, EVEN[0])
    assert [(one.ops, len(one.partial_sums)) for one in updates.rounds] == [([], 1)] and norm.shape.ndims == 0


def test_slots_of_an_update_written_by_hand_are_found(graph):
    variable, mean = tf.get_variable("v", [5, 4]), tf.get_variable("v/mean", [5, 4], trainable=False)
    count = tf.get_variable("count", [], trainable=False)

    def build(part):
        moved = tf.multiply(0.9, mean) + tf.multiply(0.1, part)
        return tf.group(mean.assign(moved), variable.assign_sub(moved * 0.1 + 0.01 * variable), count.assign_add(1.0))

    assert traced(build, {"v": EVEN[0]}).variables == {"v": EVEN[0], "v/mean": EVEN[0]}


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_the_norm_of_a_variable_is_that_of_all_parts(graph, resource):
    variable = tf.get_variable("v", [5, 4], use_resource=resource)
    value = variable.value()
    updates = traced(lambda part: part * tf.norm(value) / tf.norm(part), {"v": EVEN[0]})
    assert [len(one.partial_sums) for one in updates.rounds] == [2]


def test_an_update_in_a_branch_is_followed(graph):
    variable, slot = tf.get_variable("v", [5, 4]), tf.get_variable("slot", [5, 4])

    def build(part):
        finite = tf.placeholder(tf.bool, [])
        return tf.cond(finite, lambda: tf.assign_add(slot, part * 2.0), lambda: tf.identity(slot))

    assert traced(build, {variable.op.name: EVEN[0]}).variables == {"v": EVEN[0], "slot": EVEN[0]}


def test_a_norm_in_a_branch_is_refused(graph):
    with pytest.raises(PlanError, match="is in a loop or branch, and combines parts"):
        traced(lambda part: tf.cond(tf.placeholder(tf.bool, []), lambda: tf.nn.l2_loss(part), lambda: 0.0))


def test_an_op_without_a_rule_that_keeps_the_shape_of_a_part_is_refused(graph):
    def build(part):
        return tf.linalg.svd(part, compute_uv=True)[1] + 1.0

    updates = traced(build)
    resharder = Resharder(Communicator(f"updates{next(_NUMBERS)}", [0, 0]), 0, "test")
    with pytest.raises(PlanError, match=r"EPL has no rule for ops of its type on what is cut so \(shard\(1: 4\+4\)\)"):
        complete_updates(updates, resharder)


@pytest.mark.tensorflow("2", reason="Savers of TensorFlow 1.15 add no such op")
def test_what_says_how_a_variable_is_kept_takes_none_of_it(graph):
    variable = tf.get_variable("v", [5, 4], use_resource=True)
    updates = traced(lambda part: tf.raw_ops.DisableCopyOnRead(resource=variable.handle), {"v": EVEN[0]})
    assert updates.variables == {"v": EVEN[0]}
