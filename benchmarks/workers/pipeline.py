"""A training step of a multilayer perceptron: as a pipeline of two stages or more, on one device, and stage by stage.

Usage: pipeline.py KIND STAGES MICRO_BATCHES ROWS WIDTH LAYERS SCHEDULE, with KIND one of

    pipeline      the script of a user of EPL: a scope per stage, one virtual CPU device for each
    accumulation  plain TensorFlow on one device: the micro batches one after another, their mean gradient applied once
    stages        plain TensorFlow on one device: the forward and the backward pass of each stage alone

A device has one thread. Requests: ``{"steps": n, "warm_up": k}`` are answered with the seconds that they took, those of
`stages` with ``forward`` and ``backward``, seconds per pass and stage; ``{"memory": true}`` to a pipeline with the
largest number of bytes that each device held at once in a traced step.
"""

import contextlib
import statistics
import sys
import time
from typing import Callable, ContextManager, Dict, List, NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks import control


class Sizes(NamedTuple):
    """Of the model: layers per stage, their width, rows of a micro batch."""

    stages: int
    micro_batches: int
    rows: int
    width: int
    layers: int


_LEARNING_RATE = 1e-3


def main() -> None:
    """Builds one contender and serves the driver."""
    tf.disable_v2_behavior()  # of plain TensorFlow, too
    kind, schedule = sys.argv[1], sys.argv[7]
    sizes = Sizes(*(int(argument) for argument in sys.argv[2:7]))
    tf.set_random_seed(3)
    control.serve(0, {"pipeline": _pipeline, "accumulation": _accumulation, "stages": _stages}[kind](sizes, schedule))


def _pipeline(sizes: Sizes, schedule: str) -> Callable[[control.Message], control.Message]:
    import epl

    epl.init(
        epl.Config(
            {
                "cluster.device_type": "cpu",
                "cluster.num_virtual_devices": sizes.stages,
                "pipeline.num_micro_batch": sizes.micro_batches,
                "pipeline.strategy": schedule,
            }
        )
    )
    x, y = (tf.placeholder(tf.float32, [None, sizes.width]) for _ in range(2))
    loss = _loss(sizes, x, y, lambda stage: epl.replicate(1))
    train = tf.train.GradientDescentOptimizer(_LEARNING_RATE).minimize(loss)
    session = _session(threads=sizes.stages)
    feed = _feed(sizes, x, y, sizes.micro_batches)

    def answer(request: control.Message) -> control.Message:
        if "memory" in request:
            return _memory(session, train, feed)
        return control.timed(lambda: session.run(train, feed), request["steps"], request["warm_up"])

    return answer


def _accumulation(sizes: Sizes, schedule: str) -> Callable[[control.Message], control.Message]:
    x, y = (tf.placeholder(tf.float32, [None, sizes.width]) for _ in range(2))
    pairs = zip(tf.split(x, sizes.micro_batches), tf.split(y, sizes.micro_batches))
    total: List[tf.Tensor] = []
    for part_x, part_y in pairs:
        # Each micro batch after the one before, so that no more than one is in memory.
        with tf.control_dependencies(total), tf.variable_scope("", reuse=tf.AUTO_REUSE):
            gradients = tf.gradients(_loss(sizes, part_x, part_y), tf.trainable_variables())
        total = [a + b for a, b in zip(total, gradients)] if total else gradients
    mean = [gradient / sizes.micro_batches for gradient in total]
    train = tf.train.GradientDescentOptimizer(_LEARNING_RATE).apply_gradients(zip(mean, tf.trainable_variables()))
    session = _session(threads=1)
    feed = _feed(sizes, x, y, sizes.micro_batches)
    return lambda request: control.timed(lambda: session.run(train, feed), request["steps"], request["warm_up"])


def _stages(sizes: Sizes, schedule: str) -> Callable[[control.Message], control.Message]:
    """Each stage alone, on data that is there; the backward pass takes what both take together, less the forward."""
    x, y = (tf.get_variable(name, [sizes.rows, sizes.width], trainable=False) for name in ("x", "y"))
    passes: List[Tuple[List[tf.Operation], List[tf.Operation]]] = []
    for stage in range(sizes.stages):
        before = set(tf.trainable_variables())
        hidden = _layers(sizes, stage, x)
        last = stage == sizes.stages - 1
        out = _distance(hidden, y) if last else hidden
        variables = [v for v in tf.trainable_variables() if v not in before]
        inputs = variables if stage == 0 else variables + [x]
        gradients = tf.gradients(out, inputs, grad_ys=None if last else y)
        # All of them as fetches: TensorFlow drops what nothing but control edges leave.
        passes.append(([out.op], [out.op] + [gradient.op for gradient in gradients]))
    session = _session(threads=1)

    def answer(request: control.Message) -> control.Message:
        start = time.perf_counter()
        forward, both = [], []
        for ahead, through in passes:
            forward.append(_seconds(session, ahead, request["steps"]))
            both.append(_seconds(session, through, request["steps"]))
        return {
            "forward": forward,
            "backward": [max(0.0, b - f) for f, b in zip(forward, both)],
            "seconds": time.perf_counter() - start,
        }

    return answer


def _seconds(session: tf.Session, ops: List[tf.Operation], steps: int) -> float:
    """Returns the median seconds of a run, after one that is not counted."""
    run = session.make_callable(ops)
    return statistics.median(control.timed(run, 1, int(step == 0))["seconds"] for step in range(steps))


def _loss(
    sizes: Sizes,
    x: tf.Tensor,
    y: tf.Tensor,
    scope: Callable[[int], ContextManager] = lambda stage: contextlib.ExitStack(),
) -> tf.Tensor:
    for stage in range(sizes.stages):
        with scope(stage):
            x = _layers(sizes, stage, x)
            if stage == sizes.stages - 1:
                loss = _distance(x, y)
    return loss


def _layers(sizes: Sizes, stage: int, x: tf.Tensor) -> tf.Tensor:
    for layer in range(sizes.layers):
        x = tf.layers.dense(x, sizes.width, tf.nn.relu, name="stage%d_layer%d" % (stage, layer))
    return x


def _distance(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(x - y))


def _session(threads: int) -> tf.Session:
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=threads))
    session.run(tf.global_variables_initializer())
    return session


def _feed(sizes: Sizes, x: tf.Tensor, y: tf.Tensor, micro_batches: int) -> Dict[tf.Tensor, np.ndarray]:
    random = np.random.RandomState(0)
    return {tensor: random.rand(micro_batches * sizes.rows, sizes.width).astype(np.float32) for tensor in (x, y)}


def _memory(session: tf.Session, train: tf.Operation, feed: Dict[tf.Tensor, np.ndarray]) -> control.Message:
    """Returns the peak of what the ops of each device have allocated and not given back yet."""
    from epl.profiler import memory, step_stats

    _, metadata = step_stats.run(session, train, feed)
    peaks = {
        timeline.device.rpartition("device:")[2]: timeline.peak - timeline.persistent
        for timeline in memory.timelines(metadata)
    }
    return {"peak_bytes": peaks}


if __name__ == "__main__":
    main()
