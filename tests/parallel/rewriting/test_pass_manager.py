"""Passes run in an order that their contracts allow."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.features import FEATURES
from epl.parallel.io_slicing.feature import IoSlicingFeature
from epl.parallel.rewriting import contracts
from epl.parallel.rewriting.contracts import CheckedRewrite, ContractError
from epl.parallel.rewriting.pass_manager import Pass, in_order, run_passes
from epl.parallel.rewriting.pass_manager import names as words
from epl.parallel.transformation import passes_of
from epl.utils.errors import PlanError
from tests.parallel.in_process import Linear


def a_pass(name, provides="", requires="", after="", adds="", run=lambda rewrite: None):
    contract = {"provides": provides, "requires": requires, "after": after, "adds": adds}
    return Pass(name, run, "replicas", **{key: words(text) for key, text in contract.items()})


def names(passes):
    return [p.name for p in passes]


@pytest.fixture
def checked(init):
    """A rewriting that looks at every access to what passes hand on."""
    init()
    Linear().minimize()
    transformation.transform()
    rewrite = Graph.get().rewritten
    assert isinstance(rewrite, CheckedRewrite)
    return rewrite


def test_a_pass_runs_after_what_provides_what_it_requires():
    later, earlier = a_pass("later", requires="gates"), a_pass("earlier", provides="gates")
    assert names(in_order([later, earlier])) == ["earlier", "later"]
    adding = a_pass("adding", adds="orders")
    assert names(in_order([a_pass("reading", requires="orders"), adding, earlier])) == ["adding", "reading", "earlier"]


def test_a_pass_runs_after_another_only_where_there_is_one():
    later, earlier = a_pass("later", after="earlier"), a_pass("earlier")
    assert names(in_order([later, earlier])) == ["earlier", "later"]
    assert names(in_order([later])) == ["later"]


def test_passes_that_wait_for_each_other_are_refused():
    one, other = a_pass("one", after="other"), a_pass("other", after="one")
    with pytest.raises(ValueError, match="'one', 'other'"):
        in_order([one, other])


def test_a_value_has_one_provider():
    with pytest.raises(ValueError, match="'gates': .'one', 'other'."):
        contracts.check([a_pass("one", provides="gates"), a_pass("other", provides="gates")])
    with pytest.raises(ValueError, match="gates"):
        contracts.check([a_pass("one", provides="gates"), a_pass("other", adds="gates")])
    contracts.check([a_pass("one", adds="orders"), a_pass("other", adds="orders")])
    with pytest.raises(ValueError, match="'one' names .'gate'."):
        contracts.check([a_pass("one", requires="gate")])


def test_a_pass_reads_what_its_contract_names(checked):
    with pytest.raises(ContractError, match="'one' reads 'gates'"):
        run_passes([a_pass("one", run=lambda rewrite: rewrite.gates)], checked)
    run_passes([a_pass("one", requires="gates", run=lambda rewrite: rewrite.gates)], checked)


def test_a_pass_sets_what_its_contract_says_it_provides(checked):
    def change(rewrite):
        rewrite.counted = frozenset()

    with pytest.raises(ContractError, match="'one' sets 'counted'"):
        run_passes([a_pass("one", requires="counted", run=change)], checked)
    run_passes([a_pass("one", provides="counted", run=change)], checked)


def test_a_feature_that_stands_elsewhere_in_the_list_changes_no_order():
    features = [one for one in FEATURES if not isinstance(one, IoSlicingFeature)]  # which may come at any time
    passes = names(passes_of(features))
    assert names(passes_of(features[::-1])) == passes
    assert passes.index("recompute") < passes.index("offload") < passes.index("gather_per_use")
    assert passes.index("aggregate_gradients") < passes.index("group_apply") < passes.index("order_scale_updates")
    assert passes.index("clone_replicas") < passes.index("merge_local_outputs")


@pytest.mark.parametrize("name, why", [("select_ops", "would compute other numbers"), ("selct", "is no pass")])
def test_what_the_numbers_depend_on_cannot_be_skipped(init, monkeypatch, name, why):
    monkeypatch.setenv("EPL_SKIP_PASS", name)
    init()
    Linear().minimize()
    with pytest.raises(PlanError, match=why + ".*group_apply"):
        transformation.transform()


def dense(initial):
    """A model with something to recompute, to offload and to apply in groups."""
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    hidden = x
    for number in range(3):
        kernel = tf.get_variable(f"w{number}", [3, 3], initializer=tf.constant_initializer(initial + number / 10))
        hidden = tf.tanh(tf.sigmoid(tf.matmul(hidden, kernel)) * 2 - 1)
        tf.add_to_collection("checkpoints", hidden)
    loss = tf.reduce_mean(hidden**2)
    return x, loss, tf.train.AdamOptimizer(0.1).minimize(loss)


def losses_and_weights(init, devices):
    init(
        devices,
        gradient_checkpoint__type="collection",
        offload__level="v0",
        optimizer__num_apply_group=2,
        zero__level="" if devices == 1 else "v1",
    )
    x, loss, train_op = dense(0.3)
    report = transformation.transform()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rows = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
        values = [session.run([loss, train_op], {x: rows})[0] for _ in range(3)]
        return values, session.run(tf.trainable_variables()), {p.name: p.ops_added for p in report.passes}


@pytest.mark.parametrize("devices", [1, 2])
def test_without_an_optional_pass_the_numbers_are_the_same_to_the_last_bit(init, monkeypatch, devices):
    expected = losses_and_weights(init, devices)
    optional = [p.name for p in passes_of(FEATURES, is_plain=devices == 1) if p.optional]
    assert min(expected[2][name] for name in ("recompute", "offload", "group_apply")) > 0
    for name in optional:
        monkeypatch.setenv("EPL_SKIP_PASS", name)
        found = losses_and_weights(init, devices)
        assert name not in found[2]
        np.testing.assert_array_equal(found[0], expected[0])
        for mine, right in zip(found[1], expected[1]):
            np.testing.assert_array_equal(mine, right)


def test_the_report_counts_ops_and_time(init):
    init()
    Linear().minimize()
    report = transformation.transform()
    assert [p.name for p in report.passes] == names(passes_of(FEATURES))
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
    assert len(names) == len(passes_of(FEATURES))
    assert "EPL_REPLICA_1/w" in (tmp_path / "dump" / names[-1]).read_text()
    assert "EPL_REPLICA_1/w" not in (tmp_path / "dump" / names[0]).read_text()
