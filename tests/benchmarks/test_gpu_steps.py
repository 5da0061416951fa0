"""Steps simulated on the preset of an H100 against those that benchmarks/gpu/steps.py measured there."""

import pytest

from benchmarks.papers import planning
from benchmarks.papers.bert_pipeline import model as bert
from benchmarks.papers.many_classes import model as resnet
from epl.planner.machine.files import read_machine
from epl.planner.prediction.prediction import predict
from tests.parallel.in_process import init  # noqa: F401

# Rows, seconds measured in float32 as TF32, started op by op: docs/machines.md.
MODELS = {
    "ResNet-50": (lambda: resnet.build(1000, False), planning.MOMENTUM, 64, 29.0e-3),
    "BERT-Large": (lambda: bert.build(1), planning.ADAM, 32, 95.9e-3),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_takes_about_what_was_measured(init, name):  # noqa: F811
    build, slots, rows, measured = MODELS[name]
    found = planning.planned(build, slots, devices=1)
    seconds = predict(found.strategy, found.costs, read_machine("1*h100-80"), rows).seconds
    print(f"{name}: simulated {1e3 * seconds:.1f} ms, measured {1e3 * measured:.1f} ms, {seconds / measured - 1:+.0%}")
    assert abs(seconds / measured - 1) <= 0.25
