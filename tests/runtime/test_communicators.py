"""The communicators that a graph opens: what is asked for, and that each is closed in the end."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.cluster import Cluster
from epl.ops.job import Job

KINDS = {
    "replicas": {},
    "ZeRO": {"zero__level": "v1"},
    "split": {"cluster__colocate_split_and_replicate": True},
    "groups": {"cluster__colocate_split_and_replicate": True},
}


def train(init, kind):
    """One step of a model, on four devices, and a look at its variable."""
    init(4, annotate=False, **KINDS[kind])
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.split(2 if kind == "groups" else 4) if kind in ("split", "groups") else epl.replicate(1):
        table = tf.get_variable("table", [8, 1001])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, table)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([8, 8])})
        assert sess.run(table).shape == (8, 1001)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_those_of_earlier_graphs_are_closed_by_the_next_init(init, kind):
    train(init, kind)
    tf.reset_default_graph()
    assert Job.current()._communicators
    epl.init()
    assert not Job.current()._communicators


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_all_between_gpus_move_data_by_nccl(init, kind, monkeypatch):
    create, asked = Job.create_communicator, {}

    def recorded(job, name, owners, transport):
        asked[name] = transport
        return create(job, name, owners, "auto")  # the devices are no GPUs in truth

    monkeypatch.setattr(Job, "create_communicator", recorded)
    monkeypatch.setattr(Cluster, "device_type", "GPU")
    train(init, kind)
    assert asked and set(asked.values()) == {"nccl"}, asked
