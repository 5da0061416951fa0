"""Models whose strategy and costs are recorded as they are built, and what EPL makes of their graphs."""

from typing import Callable, Dict, NamedTuple, Optional

import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.strategy import Strategy
from epl.parallel.strategy import record
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.machine import presets
from epl.planner.machine.machine import Machine
from epl.profiler.estimate.estimate import MemoryEstimate
from epl.profiler.memory_estimate import memory_estimate
from tests.planner.prediction.hand_made import machine

WIDTH, LAYERS, ROWS = 256, 6, 64  # rows of each device
MOMENTUM = {"Momentum": 1.0}  # slots for each variable


class RecordedModel(NamedTuple):
    """A model after it has been rewritten.

    Attributes:
      graph: its graph.
      strategy: of the script.
      costs: of the model.
      estimate: the memory of a step of the rewritten graph.
    """

    graph: Graph
    strategy: Strategy
    costs: GraphCosts
    estimate: MemoryEstimate


def recorded(
    build: Callable[[tf.Tensor], tf.Tensor], rows: int, slots: Optional[Dict[str, float]] = None
) -> RecordedModel:
    """Builds a model and rewrites it, after `init`.

    Args:
      build: x [rows, WIDTH] -> the loss.
      rows: that are fed.
      slots: of its optimizer that the costs have; None: as they are found.
    """
    with record.recording():
        x = tf.placeholder(tf.float32, [None, WIDTH], "x")
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(build(x))
        estimate = memory_estimate(train, {x: tf.TensorShape([rows, WIDTH])}, threads=2, advise=False)
    graph = Graph.of(x.graph)
    costs = GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass), slots=slots)
    return RecordedModel(graph, record.strategy_of(graph), costs, estimate)


def on_cpus(devices: int) -> Machine:
    """CPUs with links without limits: the estimate of memory does not let collectives wait for each other."""
    return machine([["cpu"] * devices], [presets.DEVICES["cpu"]], bandwidth=1e15)


def dense(hidden: tf.Tensor, layers: int) -> tf.Tensor:
    """Some dense layers of WIDTH, each of which is a checkpoint of the script."""
    for _ in range(layers):
        hidden = tf.layers.dense(hidden, WIDTH, tf.tanh)
        tf.add_to_collection("checkpoints", hidden)
    return hidden


def mean_square(kind: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Builds LAYERS layers and a loss, as "replicas", a "split" over two devices, or two "stages".

    "apart" has two replicas, and a split over two devices of its own; "inside" has two stages, with a split over two
    replicas in each, and replicated code after the first.
    """

    def build(x: tf.Tensor) -> tf.Tensor:
        if kind == "split":
            with epl.split(2):
                return tf.reduce_mean(tf.square(dense(x, LAYERS)))
        if kind == "inside":
            with epl.replicate(1):
                with epl.split(2):
                    hidden = dense(x, LAYERS // 2 - 1)
                hidden = dense(hidden, 1)
            with epl.replicate(1), epl.split(2):
                return tf.reduce_mean(tf.square(dense(hidden, LAYERS // 2)))
        if kind == "apart":
            with epl.replicate(2):
                hidden = dense(x, LAYERS // 2)
            with epl.split(2):
                return tf.reduce_mean(tf.square(dense(hidden, LAYERS // 2)))
        with epl.replicate(1):
            hidden = dense(x, LAYERS // 2)
            if kind == "replicas":
                return tf.reduce_mean(tf.square(dense(hidden, LAYERS // 2)))
        with epl.replicate(1):
            return tf.reduce_mean(tf.square(dense(hidden, LAYERS // 2)))

    return build
