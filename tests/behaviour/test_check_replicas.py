"""`debug.check_replicas` finds the variables that differ between replicas, on all workers, and no others."""

import types
from typing import Any, Tuple

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.config.config import Config
from epl.parallel.replication import check_replicas
from epl.utils.errors import PlanError, ReplicaError
from tests.behaviour.small import Small
from tests.parity.context import Context, clone_name
from tests.parity.oracle import Oracle, topology_name
from tests.parity.scripts.data import FEATURES, samples
from tests.parity.scripts.models import train

STEPS = 5

topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)


def _drift(ctx: Context, drifts: bool, resource: bool = False, **config: Any) -> None:
    """Trains; after step 3 a weight of the last replica changes in its last bits. Records what is raised, and when."""
    ctx.init(**config)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    with tf.variable_scope("model", use_resource=resource):
        weight = tf.get_variable("weight", [FEATURES, 3], initializer=tf.ones_initializer())
        output = tf.layers.batch_normalization(tf.matmul(x, weight), training=True, name="norm")
    loss = tf.reduce_mean(tf.square(output - 1.0))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            try:
                sess.run(train_op, {x: ctx.step_rows(samples().x, step)})
            except ReplicaError as error:
                ctx.record(error=str(error), step=step)
                return
            if drifts and step == 2 and ctx.worker == ctx.workers - 1:
                sess.run(_added(weight, 1e-6))


def _added(weight: tf.Variable, value: float) -> tf.Operation:
    """Adds to the copy of a weight in the last replica of this process."""
    variable = tf.get_default_graph().get_operation_by_name(clone_name(weight.op.name, 1))
    delta = tf.fill(weight.shape, tf.constant(value))
    if variable.type == "VarHandleOp":
        return tf.raw_ops.AssignAddVariableOp(resource=variable.outputs[0], value=delta)
    return tf.raw_ops.AssignAdd(ref=variable.outputs[0], value=delta).op


@topologies
@pytest.mark.parametrize("resource", [False, True], ids=["references", "resources"])
def test_a_difference_ends_the_job_on_all_workers(oracle: Oracle, topology: Tuple[int, int], resource: bool) -> None:
    last = topology[0] * topology[1] - 1
    others = ", ".join(map(str, range(last)))
    for answer in oracle.plan(topology, _drift, drifts=True, resource=resource, debug__check_replicas=2):
        (error,) = answer.results["error"]
        assert answer.results["step"] == [3]
        assert error.startswith("After 4 training steps, 1 variable(s) differ between replicas")
        assert f"model/weight (ranks {others} | {last})" in error


def test_a_difference_is_a_warning_if_asked_for(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _drift, drifts=True, debug__check_replicas=1, debug__replicas_differ="warn")
    assert "error" not in answer.results
    assert answer.log.count("differ between replicas that should hold equal bits: model/weight (ranks 0 | 1)") == 2


def _evaluated(ctx: Context, **config: Any) -> None:
    """Evaluates a collective output between steps."""
    ctx.init(**config)
    small = Small()
    epl.add_to_collection(small.loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(4):
            sess.run(small.loss, small.feed(ctx, step))
            if step == 2:
                sess.run(_added(tf.trainable_variables()[0], 1e-3))
            try:
                sess.run(small.train_op, small.feed(ctx, step))
            except ReplicaError as error:
                ctx.record(error=str(error))
                return


def test_evaluations_are_no_steps(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _evaluated, debug__check_replicas=3)
    (error,) = answer.results["error"]
    assert error.startswith("After 3 training steps")


@topologies
def test_moving_averages_of_own_rows_are_not_compared(oracle: Oracle, topology: Tuple[int, int]) -> None:
    for answer in oracle.plan(topology, _drift, drifts=False, debug__check_replicas=1):
        assert "error" not in answer.results


@pytest.mark.grid
@pytest.mark.parametrize("topology", [(1, 2), (2, 1), (2, 2)], ids=topology_name)
@pytest.mark.parametrize(
    "config",
    [
        {"name": "embedding", "optimizer": "adam"},
        {"name": "recurrent", "optimizer": "momentum", "pipeline__num_micro_batch": 2},
        {"name": "resource_embedding", "optimizer": "adam", "amp__level": "O1"},
        {"name": "layers", "optimizer": "adam", "communication__fp16": True},
        {"name": "layers", "optimizer": "adam", "zero__level": "v0"},
    ],
    ids=str,
)
def test_replicas_hold_equal_bits(oracle: Oracle, topology: Tuple[int, int], config: dict) -> None:
    oracle.plan(topology, train, debug__check_replicas=1, **config)


def test_stages_in_several_processes_are_refused() -> None:
    config = Config({"debug.check_replicas": 1})
    rewrite = types.SimpleNamespace(config=config, world_size=2, spans_processes=True)
    with pytest.raises(PlanError, match="the stages of a replica are in several processes.* as there are stages"):
        check_replicas.run(rewrite)
