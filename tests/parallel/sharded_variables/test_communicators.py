"""The communicators that a graph opens, those that show variables in parts among them; and that each is closed."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.cluster.cluster import Cluster
from epl.ir.graph import Graph
from epl.ops.job import Job
from epl.parallel.sharded_variables.fetching import ShardFetches

KINDS = {
    "replicas": {},
    "ZeRO": {"zero__level": "v1"},
    "split": {"cluster__colocate_split_and_replicate": True},
    "groups": {"cluster__colocate_split_and_replicate": True},
}


@contextlib.contextmanager
def trained(init, kind):
    """A session that has trained a model on four devices for a step; its variable."""
    init(4, annotate=False, **KINDS[kind])
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.split(2 if kind == "groups" else 4) if kind in ("split", "groups") else epl.replicate(1):
        table = tf.get_variable("table", [8, 1001])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, table)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: np.ones([8, 8])})
        yield sess, table


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_those_of_earlier_graphs_are_closed_by_the_next_init(init, kind):
    with trained(init, kind) as (sess, table):
        assert sess.run(table).shape == (8, 1001)
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
    with trained(init, kind) as (sess, table):
        sess.run(table)
    assert asked and set(asked.values()) == {"nccl"}, asked


def test_what_shows_a_variable_is_made_once_for_its_own_name_and_that_of_its_part(init):
    with trained(init, "split") as (sess, table):
        fetches = Graph.get().state_of(ShardFetches)
        values = [fetches.fetch_value(sess.graph.as_graph_element(one)) for one in ("table:0", table)]
        assert values[0] is values[1]
        assert sess.run("table:0").shape == (8, 1001)


@pytest.mark.parametrize("kind", ["ZeRO", "split"])
def test_what_shows_a_value_is_made_once_for_all_threads(init, kind, monkeypatch):
    gather, made = ShardFetches._gather, []

    def slowly(fetches, tensor, *args, **kwargs):
        made.append(tensor)
        time.sleep(0.2)
        return gather(fetches, tensor, *args, **kwargs)

    monkeypatch.setattr(ShardFetches, "_gather", slowly)
    with trained(init, kind) as (sess, table), ThreadPoolExecutor(2) as pool:
        first, second = pool.map(sess.run, [table, table])
    np.testing.assert_array_equal(first, second)
    assert len(made) == 1


@pytest.mark.parametrize("kind", ["ZeRO", "split"])
def test_seeds_are_agreed_on_once_and_nothing_is_opened_in_vain(init, kind, monkeypatch):
    exchange, seeds = Job.exchange, []

    def recorded(job, key, mine):
        seeds.extend([key] if "seed" in key else [])
        return exchange(job, key, mine)

    monkeypatch.setattr(Job, "exchange", recorded)
    init(2, annotate=False, **KINDS[kind])
    with epl.split(2) if kind == "split" else epl.replicate(1):
        tables = [tf.get_variable(name, [8, 1001]) for name in ("first", "second")]
        loss = tf.add_n([tf.reduce_mean(tf.matmul(tf.ones([4, 8]), table)) for table in tables])
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        first, second = sess.run(tables)
    assert not np.array_equal(first, second)
    assert len(seeds) == 1
    if kind == "ZeRO":
        assert not [name for name in Job.current()._communicators if "sums" in name or "late" in name]
