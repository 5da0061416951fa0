"""docs/machines.md says what is simulated for the preset of an H100, next to what benchmarks/gpu/steps.py measured."""

import os
import re

import pytest

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


@pytest.mark.parametrize("name", MODELS)
def test_a_step_takes_about_what_was_measured(init, name):  # noqa: F811
    build, slots, rows, tolerance = MODELS[name]
    found = planning.planned(build, slots, devices=1)
    seconds = predict(found.strategy, found.costs, read_machine("1*h100-80"), rows).seconds
    with open(PAGE, encoding="utf-8") as page:
        row = re.search(rf"^\| {name}, [^|]* \| (\S+) ms \((\S+)%\) \| (\S+) ms \|", page.read(), re.M)
    simulated, gap, measured = row.groups()
    assert f"{1e3 * seconds:.1f}" == simulated
    assert f"{100 * (1e3 * seconds / float(measured) - 1):+.0f}" == gap
    assert abs(float(gap)) <= 100 * tolerance
