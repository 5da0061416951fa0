"""docs/papers.md says what the figures compute, and these stay as near to what was published as issue and page say."""

import math
import subprocess
import sys

import pytest

from benchmarks.papers import planning, run
from benchmarks.papers.figure import Comparison, Figure, Table, compared
from epl.parallel.plan.strategy import Block, ForwardOp, PlannedChoice, Setting, Strategy
from tests.parallel.in_process import init  # noqa: F401


def section_in_page(name):
    """The section of a figure in docs/papers.md."""
    with open(run.PAGE, encoding="utf-8") as file:
        return run.section_of(file.read(), name)


def is_near(value, published, part):
    return abs(value / published - 1) <= part


def test_the_page_agrees_with_the_quickest_figure_and_flexflow(init):  # noqa: F811
    found = run.compute("alexnet")
    assert section_in_page("alexnet") == found.section()
    for case, gain in (("32 10", 1.5), ("32 1.2", 5.0)):
        slow, *others = [found.values[f"{case} {dense}"] for dense in ("parallel", "one", "split")]
        assert slow >= gain * min(others) and slow >= 1.3 * others[0]
    fast = [found.values[f"256 100 {dense}"] for dense in ("parallel", "one", "split")]
    assert fast[0] <= 1.03 * min(fast) and fast[0] < fast[1]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_classes(init):  # noqa: F811
    found = run.compute("many_classes")
    gains = [found.values[f"gain {count}"] for count in (8, 16, 32)]
    assert is_near(gains[0], 1.13, 0.25) and is_near(gains[2], 2.43, 0.25) and gains == sorted(gains)
    assert found.values["data parallel lacks"] > 0 and found.values["hybrid lacks"] == 0
    assert found.values["scaling"] >= 0.9
    assert section_in_page("many_classes") == found.section()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_bert_pipeline(init):  # noqa: F811
    found = run.compute("bert_pipeline")
    assert is_near(found.values["gain 4"], 1.45, 0.2) and is_near(found.values["gain 8"], 1.14, 0.2)
    assert math.isclose(found.values["schedule alone"], 1.0, rel_tol=1e-6)
    assert min(found.values["hybrid 2"], found.values["hybrid 4"]) > found.values["hybrid 8"] == 1.0
    assert section_in_page("bert_pipeline") == found.section()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_m6_dense(init):  # noqa: F811
    found = run.compute("m6_dense")
    assert is_near(found.values["weights"], 10e9, 0.05) and found.values["lacks"] == 0
    assert abs(found.values["scaling"] - 0.91) <= 0.05
    assert section_in_page("m6_dense") == found.section()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_m6_experts(init):  # noqa: F811
    found = run.compute("m6_experts")
    assert is_near(found.values["weights"], 10e12, 0.05)
    assert found.values["with offload"] <= found.values["limit"] < found.values["without offload"]
    assert section_in_page("m6_experts") == found.section()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_unequal_gpus(init):  # noqa: F811
    found = run.compute("unequal_gpus")
    assert 1.25 <= found.values["ResNet-50 gain"] <= 1.45
    assert 1.1 <= found.values["BERT-Large gain"] <= 1.45
    for name in ("ResNet-50", "BERT-Large"):
        assert found.values[f"{name} computing"] >= 0.95 * found.values[f"{name} bound"]
    assert all(1.1 <= found.values[f"pipeline {count}"] <= 1.3 for count in (2, 4, 8))
    assert section_in_page("unequal_gpus") == found.section()


@pytest.mark.parametrize("name", ["many_classes", "bert_pipeline", "m6_dense", "unequal_gpus", "m6_experts"])
def test_the_page_has_a_section_of_each_figure(name):
    assert "| published | predicted |" in section_in_page(name)


def test_a_new_section_takes_the_place_of_the_old_one():
    mark = "<!-- {}: made by make papers -->\n"
    page = "# Title\n\n" + mark.format("one") + "## Old\n\n" + mark.format("two") + "## Other\n"
    row = compared("speed", 2.0, 2.5, "nothing")
    found = Figure("New", "one", ("Text.",), (row,), (Table("More:", (("a",), ("b",))),), {})
    changed = run.with_section(page, found)
    assert run.section_of(changed, "one") == found.section() and run.section_of(changed, "two") == "## Other\n"
    assert "| speed | 2 | 2.50 | +25% | nothing |" in found.section() and isinstance(row, Comparison)
    with pytest.raises(ValueError, match="no line '<!-- three"):
        run.section_of(page, "three")


def test_a_strategy_is_made_for_more_devices_and_fewer_stages():
    ops = tuple(ForwardOp(str(n), "Tanh", (), ("float32[?]",), n) for n in range(4))
    cut = PlannedChoice(0, "full, shard(1: 5+5) -> shard(0: 6+4), shard(0)")
    strategy = Strategy(
        "m", 1, 2, "CPU", "scopes", (Block("replicate", 1, 0, (), ()),) * 4, (cut,),
        (Setting("pipeline.num_micro_batch", "1", "default"),), ops,
    )  # fmt: skip
    wider = planning.for_job(strategy, 2, 2)
    assert (wider.workers, wider.devices) == (2, 2)
    assert wider.choices[0].placements == "full, shard(1: 3+3+2+2) -> shard(0: 3+3+2+2), shard(0)"
    fewer = planning.in_fewer_stages(strategy, 2)
    assert len(fewer.blocks) == 2 and [op.block for op in fewer.ops] == [0, 0, 1, 1]
    assert planning.with_settings(strategy, {"pipeline.num_micro_batch": 8}).settings[0].value == "8"
    alone = planning.data_parallel(strategy)
    assert not alone.choices and {op.block for op in alone.ops} == {0} and len(alone.blocks) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
def test_epl_plan_plans_the_scripts():
    command = [
        sys.executable, "epl_plan.py", "--machine", "benchmarks/papers/alexnet/machine.json", "--rows", "32",
        "benchmarks/papers/alexnet/model.py", "--dense", "one",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=run.ROOT, check=False, universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout
