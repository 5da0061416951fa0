"""How the benchmark of the TensorFlows compares them; a quick run measures the one that runs the tests."""

import os
import sys

import pytest

from benchmarks import environment, versions_benchmark


def test_each_is_compared_with_the_oldest_in_the_same_round_and_with_its_own_plain_tensorflow():
    nothing = {what: [] for what in versions_benchmark.MEASURED}
    old = dict(nothing, **{"rewriting, pipeline": [{"CPU": 10.0, "peak": 1.0}, {"CPU": 20.0, "peak": 1.0}]})
    new = dict(nothing, **{"rewriting, pipeline": [{"CPU": 11.0, "peak": 2.0}, {"CPU": 30.0, "peak": 2.0}]})
    new["step of EPL"] = [{"seconds": 2.0, "CPU": 4.0, "peak": 3.0}]
    new["step of plain TensorFlow"] = [{"seconds": 1.0, "CPU": 1.0, "peak": 2.0}]
    cpu, peak, speed, sample, size = versions_benchmark.rows({"1.15": old, "2.21": new})
    assert cpu.what == "rewriting, pipeline: CPU, TensorFlow 2.21 / 1.15"
    assert cpu.ratios == [1.1, 1.5] and cpu.at_most == 1.2
    assert peak.ratios == [2.0, 2.0] and peak.at_most is None
    assert speed.ratios == [2.0]  # 4 devices of a batch each take twice as long as one
    assert sample.ratios == [1.0] and size.ratios == [1.5]


def test_an_environment_that_is_missing_is_named_with_the_command(monkeypatch, tmp_path):
    os.makedirs(str(tmp_path / ".venv-2.15" / "bin"))
    (tmp_path / ".venv-2.15" / "bin" / "python").write_text("")
    monkeypatch.setattr(environment, "ROOT", str(tmp_path))
    missing = []
    assert list(versions_benchmark.interpreters(missing)) == ["2.15"]
    assert missing == [
        "TensorFlow 1.15: .venv is not there; make it with: make setup TF=1.15",
        "TensorFlow 2.21: .venv-2.21 is not there; make it with: make setup TF=2.21",
    ]


@pytest.mark.long
def test_a_quick_run_measures_everything(monkeypatch):
    monkeypatch.setattr(versions_benchmark, "interpreters", lambda missing: {"this": sys.executable})
    result = versions_benchmark.run(quick=True)
    assert not result.missing
    assert all(len(figures) == 1 for figures in result.details["this"].values())
    assert [row.what.partition(": ")[0] for row in result.rows] == ["TensorFlow this, EPL / plain TensorFlow"] * 3
