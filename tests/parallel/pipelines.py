"""Pipelines in the process of the test: models of a few stages, and the same models in plain TensorFlow.

A model is a function of `stage`, which opens the scope of the next TaskGraph: `epl.replicate(1)` under a plan, nothing
in plain TensorFlow. So both are built from the same lines.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel import transformation
from tests.parallel.in_process import plain_graph


def begin(init: Callable[..., None], micro_batches: int = 2, devices: int = 2, **config: Any) -> None:
    """A fresh graph in which scopes are stages."""
    init(devices, annotate=False, pipeline__num_micro_batch=micro_batches, **config)


def stage() -> Any:
    """The next stage of the pipeline."""
    return epl.replicate(1)


@contextlib.contextmanager
def no_stage() -> Iterator[None]:
    """What stands for `stage` in plain TensorFlow."""
    yield


def rewritten() -> Any:
    """Rewrites the default graph; its RewriteContext."""
    transformation.transform()
    return Graph.get().rewritten


def rows(count: int, width: int = 3, seed: int = 0) -> np.ndarray:
    """Random rows."""
    return np.random.RandomState(seed).randn(count, width).astype("f")


class Chain:
    """Dense layers d0, d1, ... with tanh, one per stage; least squares on x [None, 3] and y [None, 1]."""

    def __init__(self, stages: int = 2, stage: Any = stage, optimizer: Any = None, resource: bool = False) -> None:
        self.x = tf.placeholder(tf.float32, [None, 3], "x")
        self.y = tf.placeholder(tf.float32, [None, 1], "y")
        self.hidden = [self.x]
        with tf.variable_scope("", use_resource=resource):
            for index in range(stages):
                with stage():
                    last = index == stages - 1
                    self.hidden.append(dense(self.hidden[-1], 1 if last else 3, index, None if last else tf.tanh))
                    if last:
                        self.out = self.hidden[-1]
                        self.loss = tf.reduce_mean(tf.square(self.out - self.y), name="loss")
        self.optimizer = optimizer or tf.train.GradientDescentOptimizer(0.1)

    def minimize(self, **arguments: Any) -> tf.Operation:
        """The training op."""
        self.train_op = self.optimizer.minimize(self.loss, **arguments)
        return self.train_op

    def feed(self, count: int = 8, seed: int = 0) -> Dict[tf.Tensor, np.ndarray]:
        """Random rows."""
        return {self.x: rows(count, 3, seed), self.y: rows(count, 1, seed + 100)}


def dense(x: tf.Tensor, units: int, index: int, activation: Any = tf.tanh) -> tf.Tensor:
    """The layer d<index>, whose initial values depend on its index alone."""
    initializer = tf.random_normal_initializer(stddev=0.5, seed=index + 1)
    return tf.layers.dense(x, units, activation, name=f"d{index}", kernel_initializer=initializer)


def run_steps(build: Callable[[Any], Any], stage: Any, steps: int, count: int) -> List[np.ndarray]:
    """Losses and then all global variables, after some steps of the model that `build(stage)` returns.

    The model has `loss`, `train_op` and `feed(rows, seed)`.
    """
    model = build(stage)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        values = [sess.run([model.loss, model.train_op], model.feed(count, seed))[0] for seed in range(steps)]
        return values + sess.run(tf.global_variables())


def equals_plain(build: Callable[[Any], Any], steps: int = 3, count: int = 8, tolerance: float = 1e-5) -> None:
    """Asserts that the model trains as in plain TensorFlow on all rows at once. `begin` was called before."""
    planned = run_steps(build, stage, steps, count)
    with plain_graph():
        plain = run_steps(build, no_stage, steps, count)
    assert len(planned) == len(plain)
    for mine, other in zip(planned, plain):
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)
