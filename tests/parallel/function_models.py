"""Models with functions, whose digests are printed as JSON: the same in every process, whatever Python's hash seed.

python -m tests.parallel.function_models
"""

import contextlib
import json

import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.graph_digest import GraphDigest
from epl.utils import tf_compat


@contextlib.contextmanager
def control_flow_v2():
    tf.enable_control_flow_v2()
    try:
        yield
    finally:
        tf.disable_control_flow_v2()


def of_branches(hidden):
    @tf.function
    def step(h):
        if tf.reduce_sum(h) > 0.0:
            scale, shift, done = 2.0, h, True
        else:
            scale, shift, done = 3.0, -h, False
        if done:
            return h * scale
        return shift - h

    return step(hidden)


def of_loops(hidden):
    @tf.function
    def step(h):
        i, total, last = 0, h, 0.0 * h
        while i < 3:
            last = total
            total = total * 1.5 + h
            i += 1
        return total - last

    return step(hidden)


def of_values_alike(hidden):
    """Sums that begin alike, and draws that are alike, whose order in loops and branches is that of sets of names."""
    first, second = [tf.random.uniform([4]) for _ in range(2)]

    @tf.function
    def step(h):
        i, total, other = 0, 0.0 * h, 0.0 * h
        while i < 3:
            total, other = total + h * first, other + total * second
            i += 1
        if tf.reduce_sum(other) > 0.0:
            scale, shift = first, second + tf.random.uniform([4])
        else:
            scale, shift = second, first
        return total * scale - other * shift

    return step(hidden)


def of_defun(hidden):
    return tf_compat.function.Defun(tf.float32, func_name="double")(lambda h: h * 2.0)(hidden)


def of_control_flow_v2(hidden):
    with control_flow_v2():
        hidden = tf.cond(tf.reduce_sum(hidden) > 0.0, lambda: hidden * 2.0, lambda: hidden)
        return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 1.1), [0, hidden])[1]


def of_dataset(hidden):
    def prepare(row):
        return row + 1.0 if tf.reduce_sum(row) > 0.0 else row

    rows = tf.data.Dataset.from_tensor_slices([[1.0, 2.0]] * 4).map(tf.function(prepare)).batch(2)
    return hidden + tf.reduce_mean(tf.data.make_one_shot_iterator(rows).get_next())


MODELS = {
    "branches": of_branches,
    "loops": of_loops,
    "alike": of_values_alike,
    "defun": of_defun,
    "v2": of_control_flow_v2,
    "data": of_dataset,
}


def digest(build):
    """The digest of a model with a layer that `build` gets, and an optimizer."""
    tf.reset_default_graph()
    epl.init(epl.Config({"cluster.device_type": "cpu", "cluster.num_virtual_devices": 1}))
    epl.set_default_strategy(epl.replicate(1))
    x = tf.placeholder(tf.float32, [None, 3])
    w = tf.get_variable("w", [3, 4], use_resource=True)
    loss = tf.reduce_mean(tf.square(build(tf.matmul(x, w))))
    tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
    return GraphDigest(Graph.get()).top


if __name__ == "__main__":
    print(json.dumps({name: digest(build) for name, build in MODELS.items()}))
