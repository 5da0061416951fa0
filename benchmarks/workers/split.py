"""A training step of a classifier with a wide head: the head split over the devices, or data parallel.

Usage: split.py KIND DEVICES CLASSES FEATURES ROWS, with KIND "split" or "data_parallel", ROWS of one device.

Requests: ``{"steps": n, "warm_up": k}`` are answered with the seconds that they took; ``{"bytes": true}`` with what a
device sends in a step for the head and what each holds: ``moved``, ``persistent`` (variables) and ``peak`` by device.
"""

import sys
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks import control


def main() -> None:
    """Builds one contender and serves the driver."""
    kind = sys.argv[1]
    devices, classes, features, rows = (int(argument) for argument in sys.argv[2:6])
    control.serve(0, _contender(kind == "split", devices, classes, features, rows))


def _contender(
    is_split: bool, devices: int, classes: int, features: int, rows: int
) -> Callable[[control.Message], control.Message]:
    import epl

    epl.init(
        epl.Config(
            {
                "cluster.device_type": "cpu",
                "cluster.num_virtual_devices": devices,
                "cluster.colocate_split_and_replicate": True,
            }
        )
    )
    x = tf.placeholder(tf.float32, [rows, features])
    labels = tf.placeholder(tf.int32, [rows])
    with epl.replicate(1):
        hidden = tf.layers.dense(x, features, tf.nn.relu)
        if not is_split:
            loss = _loss(hidden, labels, classes)
    if is_split:
        with epl.split(devices):
            loss = _loss(hidden, labels, classes)
    train = tf.train.GradientDescentOptimizer(1e-3).minimize(loss)
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=devices))
    session.run(tf.global_variables_initializer())
    random = np.random.RandomState(0)
    feed = {
        x: random.rand(devices * rows, features).astype(np.float32),
        labels: random.randint(0, classes, devices * rows),
    }

    def answer(request: control.Message) -> control.Message:
        if "bytes" in request:
            return _bytes(session, train, feed, devices)
        return control.timed(lambda: session.run(train, feed), request["steps"], request["warm_up"])

    return answer


def _loss(hidden: tf.Tensor, labels: tf.Tensor, classes: int) -> tf.Tensor:
    logits = tf.layers.dense(hidden, classes, name="head")
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _bytes(session: tf.Session, train: tf.Operation, feed: Any, devices: int) -> control.Message:
    """Returns what the decisions and the plan say a device sends, and what a traced step shows that it holds."""
    from epl.ir.graph import Graph
    from epl.parallel.plan.replica_groups import ReplicaGroups
    from epl.profiler import memory, step_stats

    _, metadata = step_stats.run(session, train, feed)
    graph = Graph.of(session.graph)
    gradients = sum(
        int(np.prod(reduction.shape)) * tf.as_dtype(reduction.dtype).size
        for group in graph.rewritten.plan.groups
        for reduction in group.reductions
        if group.transfers and "head/" in reduction.variable
    )
    moved = 2.0 * (devices - 1) / devices * gradients  # of a ring
    split = graph.state_of(ReplicaGroups)
    if split is not None:
        moved += split.moved_bytes
    timelines = memory.timelines(metadata, session.graph)
    return {
        "moved": moved,
        "persistent": {timeline.device.rpartition("device:")[2]: timeline.persistent for timeline in timelines},
        "peak": {timeline.device.rpartition("device:")[2]: timeline.peak for timeline in timelines},
    }


if __name__ == "__main__":
    main()
