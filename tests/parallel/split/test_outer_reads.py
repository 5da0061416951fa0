"""Readers of a split variable outside of its split get the whole value, and give gradients back."""

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.parallel.sharded_variables.variables import shard_variable
from epl.parallel.sharding.placements import shard
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.split.outer_reads import gather_outer_reads
from epl.parallel.split.readers import with_readers
from epl.utils import tf_compat
from tests.parallel.sharded_variables.shard_copies import PREFIX, copy_ranks

KINDS = pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
PLACEMENTS = pytest.mark.parametrize("placement", [shard(1, [4, 4]), shard(0, [3, 2, 1])], ids=str)
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def graph():
    """A fresh graph."""
    with tf.Graph().as_default() as graph:
        yield graph


@PLACEMENTS
@KINDS
def test_readers_take_the_whole_value_and_give_the_mean_of_their_gradients(graph, placement, resource):
    ranks = len(placement.sizes)
    value = np.arange(48, dtype="f").reshape(6, 8)
    variable = tf.get_variable("v", initializer=value, use_resource=resource)
    read = variable.value()
    after = tf_compat.last_op_id(graph)
    factor = tf.identity(tf.placeholder_with_default(2.0, []), name="factor")  # of a rank's own batch
    loss = tf.reduce_sum(factor * tf.square(read))
    with Job.start(["localhost:0"], 0) as job:
        resharder = Resharder(Communicator(f"reads{next(_NUMBERS)}", [0] * ranks, job=job), 0, "test")
        found = shard_variable(variable, placement, resharder)
        assert list(gather_outer_reads(found, resharder, ())) == [read]
        (gradient,) = tf.gradients(loss, [found.variable.handle if resource else found.variable.op.outputs[0]])
        initialize = tf.global_variables_initializer()
        names = [loss.op.name + ":0", tf.identity(gradient).name, "factor:0"]
        copy_ranks(after, resharder, found.shapes, found.seeds, range(1, ranks))
        prefixes = [""] + [PREFIX.format(rank) for rank in range(1, ranks)]
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": ranks})) as sess:
            sess.run([graph.get_operation_by_name(prefix + initialize.name) for prefix in prefixes])
            feeds = {prefix + "factor:0": rank + 1.0 for rank, prefix in enumerate(prefixes)}
            losses, parts = sess.run([[prefix + name for prefix in prefixes] for name in names[:2]], feeds)
    np.testing.assert_allclose(losses, [np.square(value).sum() * (rank + 1) for rank in range(ranks)], rtol=1e-6)
    np.testing.assert_allclose(
        np.concatenate(parts, placement.dim), 2 * value * np.mean(range(1, ranks + 1)), rtol=1e-6
    )


def test_what_takes_variables_of_the_split_alone_belongs_to_it(graph):
    with tf.name_scope("split"):
        one, two = tf.get_variable("one", [4]), tf.get_variable("two", [4], use_resource=True)
    marked = graph.get_operations()
    other, batch = tf.get_variable("other", [4]), tf.placeholder(tf.float32, [4])
    decay = tf.nn.l2_loss(one) * 0.1 + tf.nn.l2_loss(two)
    mixed = [tf.nn.l2_loss(other), one * batch, two + other, decay + tf.nn.l2_loss(other), one.assign(one * 2.0)]
    found = set(with_readers(marked)) - set(marked)
    assert {"L2Loss", "Mul", "AddV2"} >= {op.type for op in found} and decay.op in found
    assert not {tensor.op for tensor in mixed} & found
