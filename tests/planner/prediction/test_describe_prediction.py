"""A prediction as text has its numbers."""

import pytest

from epl.config.config import Config
from epl.planner.machine.machine import OpRate, Speed
from epl.planner.machine.op_kinds import CONTRACTION
from epl.planner.prediction.describe import describe, flops_in_words, name_in_words
from epl.planner.prediction.prediction import predict
from tests.planner.prediction.hand_made import HandCosts, Layer, device, machine, stages, strategy


def test_the_text_has_times_memory_communication_and_assumptions():
    costs = HandCosts([Layer(weight=2_000_000, output=1e6, kept=True), Layer(weight=4_000_000)])
    two = machine([["a"] * 4], [device(memory=5_000_000)], bandwidth=1e6)
    planned = strategy(costs, devices=4, pipeline__num_micro_batch=2, **stages(costs, 1))
    text = "\n".join(describe(predict(planned, costs, two, 4)))
    for piece in (
        "step ",
        "samples per second; the work by itself, at the speeds of all devices, is ",
        "what the step waits for: the longest parts of its critical path",
        "stage 0, ranks 0 to 1 (a)",
        "each device of stage 1, ranks 0 to 1 (a) lacks",
        "gradients of stage 1",
        "stage 0 to 1",
        "point to point",
        "no schedule can beat",
        "assumed: made by hand",
    ):
        assert piece in text, text


def test_the_flops_are_a_share_of_the_peak_of_the_devices():
    costs = HandCosts([Layer(weight=400)])
    rates = (OpRate(CONTRACTION, "float32", Speed(8.0, 0.5)), OpRate(CONTRACTION, "float16", Speed(16.0, 0.5)))
    two = machine(devices=[device()._replace(rates=rates)])
    for config, share in ((Config(), "18.8%"), (Config({"amp.level": "O1"}), "9.4%")):
        found = predict(strategy(costs, devices=2), costs, two, 4, config)
        found = found._replace(seconds=4.0)
        assert flops_in_words(found).startswith("12 FLOPs of the model, 3 FLOP/s: " + share + " of the peak of the ")


@pytest.mark.parametrize(
    "name, words",
    [
        ("1F2", "forward of stage 1, micro batch 2"),
        ("0B10 part 3", "backward of stage 0, micro batch 10, part 3"),
        ("0B1 again part 0", "forward again of stage 0, micro batch 1, part 0"),
        ("update", "update"),
        ("gradients of the model, bucket 0", "gradients of the model, bucket 0"),
    ],
)
def test_passes_are_named_in_words(name, words):
    assert name_in_words(name) == words


def test_a_step_without_communication_has_no_table_of_it():
    costs = HandCosts([Layer(weight=8)])
    lines = describe(predict(strategy(costs), costs, machine([["a"]]), 1))
    assert "communication of a step" not in lines and not [line for line in lines if "does not fit" in line]


@pytest.mark.parametrize("parts, end", [(8, ""), (9, "and 1 shorter part"), (10, "and 2 shorter parts")])
def test_the_longest_parts_of_the_critical_path_are_told_and_the_others_counted(parts, end):
    costs = HandCosts([Layer(weight=8)])
    found = predict(strategy(costs), costs, machine([["a"]]), 1)
    path = [found.critical_path[0]._replace(name=f"op {at}", start=1.0 * at, end=at + 1.0) for at in range(parts)]
    lines = [line.strip() for line in describe(found._replace(critical_path=tuple(path)))]
    assert [line for line in lines if "shorter" in line] == ([end] if end else [])
