"""The step that not all can do is not done: all stop in the same step, with equal variables, and can go on."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.oracle import Oracle, replica_differences, topology_name
from tests.parity.scripts.data import samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS


def _uneven(ctx: Context, batches: list, name: str = "layers") -> None:
    """Process i has batches[i] batches; two epochs."""
    ctx.init()
    data = samples()
    count = batches[ctx.worker] * 4
    dataset = tf.data.Dataset.from_tensor_slices((data.x[:count], data.ids[:count], data.y[:count])).batch(4)
    iterator = dataset.make_initializable_iterator()
    loss = MODELS[name](*iterator.get_next())
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            sess.run(iterator.initializer)
            steps = 0
            while True:
                before = sess.run(variables)
                try:
                    ctx.record(loss=sess.run([loss, train_op])[0])
                    steps += 1
                except tf.errors.OutOfRangeError as error:
                    ctx.record(steps=steps, message=str(error))
                    break
            ctx.record_variables(sess)
            ctx.record(all_variables=ctx.results["variables"][0], before=before)


@pytest.mark.grid
@pytest.mark.parametrize("name", ["layers", "embedding"])
@pytest.mark.parametrize(
    "topology,batches,steps",
    [
        ((2, 1), [5, 3], 3),
        ((2, 1), [2, 6], 2),
        ((2, 2), [4, 7], 2),
        ((2, 2), [7, 2], 1),
        ((1, 2), [5], 2),
        ((1, 4), [11], 2),
    ],
    ids=str,
)
def test_all_stop_in_the_same_step(oracle: Oracle, topology: Any, batches: list, steps: int, name: str) -> None:
    answers = oracle.plan(topology, _uneven, batches=batches, name=name)
    for answer in answers:
        assert answer.results["steps"] == [steps, steps]
        assert answer.results["variables"][0]["global_step"] == 2 * steps
    assert not replica_differences(answers)
    for epoch in range(2):
        first = answers[0].results["before"][epoch]
        for answer in answers:
            for variable, value in answer.results["all_variables"][epoch].items():
                np.testing.assert_array_equal(value, first[variable])


def _monitored(ctx: Context, batches: list) -> None:
    ctx.init()
    data = samples()
    count = batches[ctx.worker] * 4
    dataset = tf.data.Dataset.from_tensor_slices((data.x[:count], data.y[:count])).batch(4)
    x, y = dataset.make_one_shot_iterator().get_next()
    loss = MODELS["layers"](x, None, y)
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    with tf.train.MonitoredTrainingSession(checkpoint_dir=ctx.temporary_directory()) as sess:
        while not sess.should_stop():
            ctx.record(loss=sess.run([loss, train_op])[0])


@pytest.mark.parametrize("topology,batches,steps", [((2, 1), [5, 3], 3), ((2, 2), [4, 8], 2)], ids=str)
def test_monitored_sessions_end_cleanly(oracle: Oracle, topology: Any, batches: list, steps: int) -> None:
    answers = oracle.plan(topology, _monitored, batches=batches)
    assert [len(answer.results["loss"]) for answer in answers] == [steps] * topology[0]


def _evaluated(ctx: Context) -> None:
    """Each epoch's validation has another number of batches in each process; it moves nothing between processes."""
    ctx.init()
    data = samples()
    train_rows = tf.data.Dataset.from_tensor_slices((data.x[:32], data.y[:32])).batch(4)
    count = 8 * (1 + ctx.worker)
    valid_rows = tf.data.Dataset.from_tensor_slices((data.x[:count], data.y[:count])).batch(4)
    iterator = tf.data.Iterator.from_structure(
        tf.data.get_output_types(train_rows), tf.data.get_output_shapes(train_rows)
    )
    start_train, start_valid = iterator.make_initializer(train_rows), iterator.make_initializer(valid_rows)
    x, y = iterator.get_next()
    loss = MODELS["layers"](x, None, y)
    train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            for start, fetch, name in ((start_train, train_op, "trained"), (start_valid, loss, "valid")):
                sess.run(start)
                steps = 0
                try:
                    while True:
                        sess.run(fetch)
                        steps += 1
                except tf.errors.OutOfRangeError:
                    ctx.record(**{name: steps})
        ctx.record_variables(sess)


@pytest.mark.parametrize("topology", [(2, 1), (2, 2)], ids=topology_name)
def test_validation_of_different_length(oracle: Oracle, topology: Any) -> None:
    answers = oracle.plan(topology, _evaluated)
    devices = topology[1]
    for worker, answer in enumerate(answers):
        assert answer.results["trained"] == [8 // devices] * 2
        assert answer.results["valid"] == [2 * (1 + worker) // devices] * 2
    assert not replica_differences(answers)
