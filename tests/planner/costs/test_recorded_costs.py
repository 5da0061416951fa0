"""The costs of a model that was recorded and rewritten are those of the model that the script built."""

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel.strategy import record
from epl.planner.machine.presets import DEVICES
from epl.planner.search.planned_model import planned_model
from tests.parallel.in_process import init, rewritten  # noqa: F401


@pytest.mark.parametrize("level", ["", "v1"])
def test_copies_and_shards_change_no_costs(init, level):  # noqa: F811
    init(2, zero__level=level)
    x = tf.placeholder(tf.float32, [None, 48], "x")
    loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.dense(x, 64, tf.nn.relu), 32)))
    with record.recording():
        tf.train.AdamOptimizer().minimize(loss)
        rewritten()
    graph = Graph.get()
    costs = planned_model(graph, graph.state_of(record.ForwardPass)).costs
    found = costs.at(8, DEVICES["cpu"])
    assert costs.slots == {"Adam": 1.0, "Adam_1": 1.0}
    assert [op.name for op in costs.ops] == [op.name for op in graph.state_of(record.ForwardPass).ops]
    assert sum(op.variable_bytes for op in costs.ops if op.is_trained) == 4 * (48 * 64 + 64 + 64 * 32 + 32)
    products = [at for at, op in enumerate(costs.ops) if op.type == "MatMul"]
    assert sum(found.forward_flops[at] for at in products) == 2 * 8 * (48 * 64 + 64 * 32)
