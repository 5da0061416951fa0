"""What automatic partition leaves in the graph: TaskGraphs and marks, of the objective's ops and of all others."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR
from epl.parallel.auto_partition.annotate import partition_model
from epl.utils.errors import PlanError
from tests.parallel.in_process import error_text, marks
from tests.parallel.partition_models import cnn, stage_marks, transformer


@pytest.fixture
def graph(init):
    init(annotate=False)
    return Graph.get(may_create=True)


def chain(layers=4):
    """Dense layers of one size on a placeholder."""
    x = tf.placeholder(tf.float32, [16, 64], "x")
    for i in range(layers):
        x = tf.layers.dense(x, 64, name=f"dense{i}")
    return tf.reduce_sum(x, name="loss")


def test_there_is_a_taskgraph_for_each_stage(graph):
    partition_model(graph, [transformer(8)], 4)
    assert [taskgraph.index for taskgraph in graph.taskgraphs] == [0, 1, 2, 3]
    assert all(taskgraph.strategy.name_of_kind == "replicate" for taskgraph in graph.taskgraphs)


def test_every_op_is_marked(graph):
    loss = cnn()
    tf.global_variables_initializer()
    partition_model(graph, loss, 3)
    assert set(stage_marks(graph.tf_graph).values()) == {0, 1, 2}


def test_an_initializer_is_with_its_variable(graph):
    loss = chain()
    tf.global_variables_initializer()
    partition_model(graph, loss, 4)
    found = stage_marks(graph.tf_graph)
    for i in range(4):
        names = [f"dense{i}/kernel{part}" for part in ("", "/Assign", "/read", "/Initializer/random_uniform")]
        assert {found[name] for name in names} == {i}


def test_a_metric_is_with_the_latest_of_its_inputs(graph):
    loss = chain()
    early = tf.reduce_mean(tf.get_default_graph().get_tensor_by_name("dense1/BiasAdd:0"), name="mean")
    early = tf.multiply(early, tf.constant(2.0, name="two"), name="early")
    tf.add(early, loss, name="late")
    partition_model(graph, loss, 4)
    found = stage_marks(graph.tf_graph)
    assert found["early"] == found["two"] == 1 and found["late"] == 3


def test_moving_averages_are_with_their_layer(graph):
    loss = cnn()
    partition_model(graph, loss, 3)
    found = stage_marks(graph.tf_graph)
    for i in range(6):
        layer = f"block_{i}/batch_normalization/"
        assert found[layer + "moving_mean"] == found[layer + "FusedBatchNormV3"]


def test_an_input_that_the_objective_does_not_need_is_in_the_first_stage(graph):
    loss = chain()
    other = tf.placeholder(tf.float32, [], "other")
    tf.add(loss, other, name="sum")
    partition_model(graph, loss, 4)
    assert stage_marks(graph.tf_graph)["other"] == 0


def test_what_fills_a_queue_is_in_the_first_stage(graph):
    x = tf.train.batch([tf.constant(np.ones([64], "f")) * 2.0], 4, name="batch")
    for i in range(4):
        x = tf.layers.dense(x, 64, name=f"dense{i}")
    partition_model(graph, tf.reduce_sum(x), 4)
    found = stage_marks(graph.tf_graph)
    assert {stage for name, stage in found.items() if name.startswith("batch/")} == {0}


def test_the_backward_pass_follows(graph):
    loss = chain()
    partition_model(graph, loss, 4)
    with graph.phase("backward"):
        computed = [g.op.inputs[0].op for g in tf.gradients(loss, tf.trainable_variables())]  # after the boundaries
    assert marks(TASKGRAPH_ATTR, computed) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(marks(PHASE_ATTR, computed)) == {"backward"}


def test_ops_created_later_are_in_the_last_stage(graph):
    partition_model(graph, chain(), 4)
    assert marks(TASKGRAPH_ATTR, [tf.constant(1).op]) == [3]


def test_the_partition_is_the_same_every_time(graph):
    first = partition_model(graph, transformer(6), 4)
    found = stage_marks(graph.tf_graph)
    with tf.Graph().as_default():
        other = Graph.get(may_create=True)
        assert partition_model(other, transformer(6), 4).stages == first.stages
        assert stage_marks(other.tf_graph) == found


def test_one_stage_is_data_parallelism(graph):
    assert partition_model(graph, chain(), 1) is None
    assert len(graph.taskgraphs) == 1 and graph.taskgraphs[0].strategy.device_count == 1


def test_a_default_strategy_is_the_one_of_the_last_stage(graph):
    strategy = epl.replicate(1)
    epl.set_default_strategy(strategy)
    partition_model(graph, chain(), 4)
    assert len(graph.taskgraphs) == 4 and graph.taskgraphs[-1].strategy is strategy


@pytest.mark.parametrize(
    "strategies", [[lambda: epl.replicate(1)] * 2, [lambda: epl.split(2)], [lambda: epl.replicate(2)]]
)
def test_other_annotations_are_refused(graph, strategies):
    for make in strategies:
        with make():
            loss = chain() if not graph.gradient_calls else None
            tf.get_variable_scope().reuse_variables()
    assert "use no strategy" in error_text(partition_model, graph, loss, 4)
    assert PlanError.__name__ in error_text(partition_model, graph, loss, 4)


def test_the_stages_are_logged(graph, caplog):
    with caplog.at_level("INFO", logger="epl"):
        partition_model(graph, chain(), 4)
    assert "4 pipeline stages" in caplog.text


def test_the_environment_stays_as_it_was(graph):
    before = Env.get().strategy_context.state
    partition_model(graph, chain(), 4)
    assert Env.get().strategy_context.state == before
