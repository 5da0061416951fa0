"""Passes run in an order that their contracts allow."""

import os

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel import transformation
from epl.parallel.rewriting.pass_manager import Pass, check_contracts, run_passes
from tests.parallel.in_process import Linear


def a_pass(name, requires=(), provides=(), run=lambda rewrite: None):
    return Pass(name, run, frozenset(requires), frozenset(provides), True)


def test_a_pass_before_what_it_requires_is_refused():
    later, earlier = a_pass("later", requires=["ground"]), a_pass("earlier", provides=["ground"])
    check_contracts([earlier, later])
    with pytest.raises(ValueError, match="'later' requires .'ground'."):
        check_contracts([later, earlier])


def test_contracts_are_checked_before_anything_runs():
    ran = []
    with pytest.raises(ValueError):
        run_passes([a_pass("first", run=ran.append), a_pass("second", requires=["nothing"])], None)
    assert ran == []


def test_the_passes_of_the_package_are_in_a_legal_order():
    check_contracts(transformation.PASSES)
    for i in range(len(transformation.PASSES) - 1):
        swapped = list(transformation.PASSES)
        swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
        if swapped[i].requires & swapped[i + 1].provides:
            with pytest.raises(ValueError):
                check_contracts(swapped)


def test_the_report_counts_ops_and_time(init):
    init()
    Linear().minimize()
    report = transformation.transform()
    assert [p.name for p in report.passes] == [p.name for p in transformation.PASSES]
    added = {p.name: p.ops_added for p in report.passes}
    assert added["aggregate_gradients"] > 0 and added["select_ops"] == 0
    assert added["clone_replicas"] >= report.cloned_ops > 10
    assert report.replicas == 2 and report.cpu_s >= sum(p.cpu_s for p in report.passes)


def test_a_second_transform_does_nothing(init):
    init()
    Linear().minimize()
    assert transformation.transform() is not None
    before = tf.get_default_graph().version
    assert transformation.transform() is None
    assert tf.get_default_graph().version == before


def test_the_graph_after_each_pass_can_be_written_to_files(init, tmp_path, monkeypatch):
    monkeypatch.setenv("EPL_DUMP_GRAPH", str(tmp_path / "dump"))
    init()
    Linear().minimize()
    transformation.transform()
    names = sorted(os.listdir(str(tmp_path / "dump")))
    assert len(names) == len(transformation.PASSES)
    assert "EPL_REPLICA_1/w" in (tmp_path / "dump" / names[-1]).read_text()
    assert "EPL_REPLICA_1/w" not in (tmp_path / "dump" / names[0]).read_text()
