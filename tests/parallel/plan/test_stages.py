"""The stages of a model: their devices, and which stage each op belongs to."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.plan.plan import Stage
from epl.parallel.plan.stages import device_of_stage, plan_stages, stages_of_nodes
from epl.utils.errors import LayoutError, PlanError
from tests.parallel.pipelines import Chain, begin, dense, rewritten, stage


def device(index):
    return f"/job:worker/replica:0/task:0/device:CPU:{index}"


def stages_of(*devices):
    return [Stage((index,), "replicate(1)", tuple(device(i) for i in names)) for index, names in enumerate(devices)]


@pytest.mark.parametrize(
    "devices, expected",
    [
        ([[0], [1]], [0, 1]),
        ([[0, 2], [1, 3]], [0, 1]),
        ([[1], [0], [1], [0]], [0, 1, 0, 1]),
        ([[0, 2], [1, 3], [0, 2]], [0, 1, 0]),
    ],
)
def test_the_devices_of_stages_by_their_place_in_a_replica(devices, expected):
    assert device_of_stage(stages_of(*devices)) == expected


def test_replicas_that_share_devices_in_different_ways_are_refused():
    with pytest.raises(PlanError, match=r"\[0, 0\], \[0, 1\]"):
        device_of_stage(stages_of([0, 1], [0, 2]))


def test_a_layout_with_different_numbers_of_replicas_is_refused(init):
    init(3, annotate=False, pipeline__num_micro_batch=2)
    layout = {"specific": [[[device(0)], [device(1)]], [[device(2)]]]}
    with epl.Cluster(layout=layout):
        Chain(2).minimize()
        with pytest.raises(PlanError, match="have 2 and 1 devices"):
            rewritten()


@pytest.mark.parametrize("colocated, expected", [(False, [[0, 2], [1, 3]]), (True, [[0, 1, 2, 3]])])
def test_a_split_is_in_the_stage_of_the_scope_around_it(init, colocated, expected):
    init(4, annotate=False, cluster__colocate_split_and_replicate=colocated)
    for _ in range(2):
        with epl.replicate(1):
            tf.constant(1)
            with epl.split(2):
                tf.constant(1)
    stages, _ = plan_stages(Graph.get(), Env.get().cluster)
    assert [list(stage.devices) for stage in stages] == [[device(i) for i in of_stage] for of_stage in expected]
    assert [stage.taskgraphs for stage in stages] == ([(0, 1, 2, 3)] if colocated else [(0, 1), (2, 3)])


def test_a_layout_with_too_few_virtual_devices_is_refused(init):
    init(2, annotate=False, pipeline__num_micro_batch=2)
    with epl.Cluster(layout={"specific": [[[device(0)]], [[device(1)]]]}):
        Chain(3).minimize()
        with pytest.raises(LayoutError, match=r"2 virtual devices, and the model has 3 TaskGraph"):
            rewritten()


@pytest.mark.parametrize("devices, expected", [(2, [[0], [1]]), (4, [[0, 2], [1, 3]])])
def test_replicas_take_their_devices_side_by_side(init, devices, expected):
    begin(init, 2, devices)
    Chain(2).minimize()
    assert [list(s.devices) for s in rewritten().plan.stages] == [[device(i) for i in names] for names in expected]


def placed(*names):
    graph = tf.get_default_graph()
    return [graph.get_operation_by_name(name).device for name in names]


@pytest.mark.parametrize("resource", [False, True])
def test_what_takes_a_variable_is_where_the_variable_is(init, resource):
    begin(init, 2, 2)
    x = tf.placeholder(tf.int32, [None], "x")
    with stage():
        with tf.variable_scope("", use_resource=resource):
            table = tf.get_variable("table", [5, 3])
        hidden = dense(tf.nn.embedding_lookup(table, x, name="one"), 3, 0)
    with stage():
        again = tf.nn.embedding_lookup(table, x, name="two")
        loss = tf.reduce_mean(tf.square(dense(hidden, 3, 1) - again))
    tf.train.AdamOptimizer(0.1).minimize(loss)
    rewritten()
    assert placed("table", "one", "two", "table/Adam", "EPL_MICRO_BATCH_1/two") == ["/device:CPU:0"] * 5
    assert (
        placed("d1/kernel", "d1/kernel/Adam", "d1/MatMul", "Adam/update_d1/kernel/{}ApplyAdam".format(""))
        == ["/device:CPU:1"] * 4
    )


def test_slots_and_updates_are_where_their_variable_is(init):
    begin(init, 2, 2)
    Chain(2, optimizer=tf.train.AdamOptimizer(0.1)).minimize()
    rewrite = rewritten()
    ops = rewrite.tf_graph.get_operations()
    for index in (0, 1):
        own = [op for op in ops if f"d{index}/" in op.name and op.type in ("VariableV2", "ApplyAdam")]
        assert len(own) == 8 and {op.device for op in own} == {f"/device:CPU:{index}"}


def test_what_leads_into_a_branch_belongs_to_the_stage_of_the_branch(init):
    begin(init, 2, 2)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        chosen = tf.cond(tf.reduce_sum(hidden) > 0, lambda: tf.sin(hidden), lambda: tf.cos(hidden))
        loss = tf.reduce_mean(dense(chosen, 1, 1))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    graph = rewrite.tf_graph
    view = GraphView(graph)
    found = stages_of_nodes(view, rewrite.plan.stages)
    assert found[view.index["cond/Sin"]] == found[view.index["cond/Sin/Switch"]] == 1
    assert placed("cond/Sin/Switch", "cond/Merge") == ["/device:CPU:1"] * 2
