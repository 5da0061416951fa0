"""FLOPs and parameters of models of the literature: FLOPs within 2% of the formula, parameters exact."""

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs.costs import node_costs
from tests.planner import known_models
from tests.yardstick import cpu_seconds


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def _costs(loss):
    view = GraphView(tf.get_default_graph())
    return node_costs(tf.get_default_graph(), view, view.ancestors([view.index[loss.op.name]]))


# Parameters as published, those of batch norm's scale and offset included; of BERT-large without the pooler, whose
# 1,049,600 parameters and those of the second segment belong to the next sentence.
@pytest.mark.parametrize(
    "build, gigaflops, parameters",
    [
        (lambda: known_models.alexnet(1), 2.27, 62378344),
        (lambda: known_models.resnet50(1), 8.18, 25557032),
        (lambda: known_models.bert(24, 1024, 16, 1, 128), None, 24 * 12596224 + 30522 * 1024 + 512 * 1024 + 2 * 1024),
        (lambda: known_models.lstm(4, 32, 64), None, 128 * 256 + 256),
    ],
    ids=["alexnet", "resnet-50", "bert-large", "lstm"],
)
def test_flops_and_parameters(build, gigaflops, parameters):
    loss, formula = build()
    assert gigaflops is None or formula / 1e9 == pytest.approx(gigaflops, rel=0.02)
    found = _costs(loss)
    assert sum(found.flops.values()) == pytest.approx(formula, rel=0.02)
    trained = {variable.op.name for variable in tf.trainable_variables()}
    names = [node.name for node in GraphView(tf.get_default_graph()).nodes]
    assert sum(size for node, size in found.parameters.items() if names[node] in trained) == 4 * parameters
    assert not [note for note in found.notes if "counts as" in note]


def test_a_loop_counts_its_steps_forward_and_backward():
    seconds = []
    for steps in (16, 32):
        tf.reset_default_graph()
        found = _costs(known_models.lstm(4, steps, 64)[0])
        seconds.append(sum(found.step_seconds.values()))
    assert seconds[1] / seconds[0] == pytest.approx(2.0, rel=0.1)


@pytest.mark.long
def test_costs_of_bert_large_are_quick():
    loss, _ = known_models.bert(24, 1024, 16, 1, 128)
    view = GraphView(tf.get_default_graph())
    nodes = view.ancestors([view.index[loss.op.name]])
    taken = cpu_seconds(lambda: node_costs(tf.get_default_graph(), view, nodes))
    print(f"{len(nodes)} ops in {taken:.3f} s: {len(nodes) / taken:.0f} ops/s")
    assert len(nodes) / taken > 8000
