"""Large variables that would stay whole on each device are refused by minimize, with the line of the script."""

import re

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.utils.errors import PlanError

AT_LIMIT = 2048  # squared it is 16 MiB of float32
COLOCATED = {"cluster__colocate_split_and_replicate": True}


def minimize(init, layer, size=AT_LIMIT, **kwargs):
    """Trains a layer that takes rows and a square kernel, split over two devices."""
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, size])
    with epl.split(2):
        kernel = tf.get_variable("kernel", [size, size], **kwargs)
        loss = tf.reduce_mean(tf.square(layer(x, kernel)))
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def inverse(x, kernel):
    return tf.matmul(x, tf.linalg.inv(kernel, name="inverse"))


def own_gradient(x, kernel):
    with tf.get_default_graph().gradient_override_map({"Neg": "OfWholeKernels"}):
        return tf.matmul(x, tf.negative(kernel, name="negative"))


@tf.RegisterGradient("OfWholeKernels")
def _clipped(op, gradient):
    return tf.clip_by_norm(gradient, 1.0)


def loop(x, kernel):
    def body(step, h):
        return step + 1, tf.matmul(h, kernel)

    return tf.while_loop(lambda step, _: step < 2, body, [0, x])[1]


def branch(x, kernel):
    def taken():
        return tf.matmul(x, kernel)

    return tf.cond(tf.reduce_mean(x) > 0, taken, lambda: x)


# Layer, resource variable, the op that takes the kernel, why not on parts, what its line says.
NO_PARTS, INSIDE = "cannot be computed on parts", "is in a loop or a branch"
REFUSED = [
    (inverse, False, 'MatrixInverse "inverse"', NO_PARTS, "tf.linalg.inv(kernel"),
    (own_gradient, True, 'Neg "negative"', NO_PARTS, "tf.negative(kernel"),
    (loop, True, 'Enter "while/MatMul/ReadVariableOp/Enter"', INSIDE, "tf.matmul(h, kernel)"),
    (branch, False, 'Switch "cond/MatMul/Switch_1"', INSIDE, "return tf.matmul(x, kernel)"),
]
MORE = [
    (inverse, True, 'MatrixInverse "inverse"', NO_PARTS, "tf.linalg.inv(kernel"),
    (loop, False, 'Enter "while/MatMul/Enter"', INSIDE, "tf.matmul(h, kernel)"),
    (branch, True, 'Switch "cond/MatMul/ReadVariableOp/Switch"', INSIDE, "return tf.matmul(x, kernel)"),
]


@pytest.mark.parametrize(
    "layer,use_resource,op,reason,line", REFUSED + [pytest.param(*case, marks=pytest.mark.long) for case in MORE]
)
def test_of_16_mebibytes(init, layer, use_resource, op, reason, line):
    with pytest.raises(PlanError) as refused:
        minimize(init, layer, use_resource=use_resource)
    found = re.match(
        r'split: the variable "kernel" of 16,777,216 bytes would stay whole on each of the 2 devices: (.*) '
        r"\((.*):(\d+)\), which takes it, (.*)\. Build this layer outside of epl\.split, or of other ops\.$",
        str(refused.value),
    )
    assert found, refused.value
    told, file, number, why = found.groups()
    assert (told, file, why) == (op, __file__, reason)
    with open(file) as source:
        assert line in source.read().split("\n")[int(number) - 1]


@pytest.mark.parametrize("layer", [inverse, pytest.param(loop, marks=pytest.mark.long)])
def test_of_less_it_stays_whole(init, layer):
    minimize(init, layer, AT_LIMIT - 1)
    assert not Graph.get().state_of(ReplicaGroups).shards


def test_the_sum_of_several_counts_for_none_of_them(init):
    """A large kernel that is cut does not answer for a small one that is not."""

    def both(x, kernel):
        small = tf.get_variable("small", [64, 64])
        return tf.matmul(tf.nn.relu(tf.matmul(x, kernel))[:, :64], tf.linalg.inv(small))

    minimize(init, both)
    split = Graph.get().state_of(ReplicaGroups)
    assert len(split.shards) == 1 and split.full_variables == {"small"}
