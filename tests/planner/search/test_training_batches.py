"""On which batches the candidates of a search train: those of the script as it is."""

import json

import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.planner.search.decision import SearchResult, find_strategy
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.search.test_decision import _minimize, _trained_batches


def test_a_batch_that_is_built_in_is_read_as_often(init):  # noqa: F811
    init(4, annotate=False, auto__planner="search", auto__steps=0, auto__machine="4*v100-16")
    _minimize(rows=8)
    found = Graph.get().state_of(SearchResult)
    assert _trained_batches(found) == {(1, 1), (2, 2), (4, 4)}
    words = "4 micro batch(es) would train on other batches than the 4 x 1 of the script"
    assert any(words in one.refusal for one in found.compared)


def test_a_batch_of_an_iterator_or_of_batch_norm_is_taken_as_it_is(init):  # noqa: F811
    for is_fed in (False, True):
        init(4, annotate=False, auto__planner="search", auto__steps=0, auto__machine="4*v100-16")
        if is_fed:
            rows = tf.placeholder(tf.float32, [None, 8])
            rows = tf.layers.batch_normalization(rows, training=True)
        else:
            data = tf.data.Dataset.from_generator(lambda: iter(()), tf.float32, [None, 8])
            rows = tf.data.make_one_shot_iterator(data).get_next()
        for _ in range(4):
            rows = tf.layers.dense(rows, 8)
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(rows))
        assert _trained_batches(Graph.get().state_of(SearchResult)) == {(1, 1), (2, 2), (4, 4)}


def test_as_many_runs_make_an_update(init):  # noqa: F811
    config = {"auto__planner": "search", "auto__steps": 0, "auto__machine": "4*v100-16", "auto__rows": 64}
    init(4, annotate=False, **config)
    _minimize()
    trained = _trained_batches(Graph.get().state_of(SearchResult))
    assert (2, 8) in trained and {one for one in trained if one[0] == 1} == {(1, 1)}
    init(4, annotate=False, pipeline__num_micro_batch=4, **config)
    _minimize()
    found = Graph.get().state_of(SearchResult)
    assert _trained_batches(found) == {(1, 4)}
    words = "an update would take 1 run(s) of the training op, and 4 in the script as it is"
    assert any(words in one.refusal for one in found.compared)


def test_every_worker_keeps_its_part_of_the_rows(init, monkeypatch):  # noqa: F811
    hosts = ["a.invalid:1", "b.invalid:1"]
    cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    init(2, annotate=False, auto__planner="search", auto__steps=0, auto__machine="2x2*v100-16,eth-25", auto__rows=64)
    x = tf.placeholder(tf.float32, [None, 64])
    hidden = x
    for _ in range(4):
        hidden = tf.layers.dense(hidden, 64)
    find_strategy(Graph.get(may_create=True), tf.reduce_mean(hidden), tf.trainable_variables())
    assert {stages for stages, _ in _trained_batches(Graph.get().state_of(SearchResult))} == {1, 2}


def test_scopes_that_read_their_batches_may_save_memory(init):  # noqa: F811
    init(2, annotate=False, auto__planner="search", auto__steps=0, auto__machine="2*v100-16")
    rows = tf.ones([64, 64])
    for first in (0, 4):
        with epl.replicate(1):
            for layer in range(first, first + 4):
                rows = tf.layers.dense(rows, 64, tf.tanh, name=f"layer{layer}")
    tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(rows))
    found = Graph.get().state_of(SearchResult)
    assert {one.candidate.name for one in found.compared if one.outcome} == {
        "the script as it is",
        "the scopes of the script, gradient checkpoint",
    }
