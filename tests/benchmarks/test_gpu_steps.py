"""docs/machines.md says what is simulated for the preset of an H100, next to what benchmarks/gpu/steps.py measured."""

import os
import re

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.papers import planning
from benchmarks.papers.bert_pipeline import model as bert
from benchmarks.papers.many_classes import model as resnet
from epl.planner.machine.files import read_machine
from epl.planner.prediction.prediction import predict
from tests.parallel.in_process import init  # noqa: F401

PAGE = os.path.join(os.path.dirname(__file__), "../../docs/machines.md")
# Model -> how it is built, slots of its optimizer, rows, by how much the simulation may be off.
MODELS = {
    "ResNet-50": (lambda: resnet.build(1000, False), planning.MOMENTUM, 64, 0.1),
    "BERT-Large": (lambda: bert.build(1), planning.ADAM, 32, 0.2),
}
# The page has the graph of TensorFlow 2. The gradients of 1.15 cut two shapes for each batched matmul of operands of
# unlike shapes, which are that of values in 24 layers and that of masked words, and convert the shape of a lookup.
MORE_SHAPE_OPS = {"BERT-Large": 2 * (24 + 1) + 1}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_takes_about_what_was_measured(init, name):  # noqa: F811
    build, slots, rows, tolerance = MODELS[name]
    found = planning.planned(build, slots, devices=1)
    machine = read_machine("1*h100-80")
    seconds = predict(found.strategy, found.costs, machine, rows).seconds
    if tf.VERSION.startswith("1."):
        seconds -= MORE_SHAPE_OPS.get(name, 0) * machine.devices[0].launch_overhead
    with open(PAGE, encoding="utf-8") as page:
        row = re.search(rf"^\| {name}, [^|]* \| (\S+) ms \((\S+)%\) \| (\S+) ms \|", page.read(), re.M)
    simulated, gap, measured = row.groups()
    assert f"{1e3 * seconds:.1f}" == simulated
    assert f"{100 * (1e3 * seconds / float(measured) - 1):+.0f}" == gap
    assert abs(float(gap)) <= 100 * tolerance
