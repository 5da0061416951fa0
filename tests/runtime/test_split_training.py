"""How epl.split is decided and what it becomes, on devices of one process."""

import tensorflow.compat.v1 as tf

import epl
from epl.parallel.split.routes import LINKS, Link
from epl.runtime import split_training


def test_what_moves_costs_what_the_links_of_the_devices_take(init, monkeypatch):
    seen = []
    search = split_training.search
    monkeypatch.setattr(split_training, "search", lambda program, link: seen.append(link) or search(program, link))
    monkeypatch.setitem(LINKS, "cpu", Link(1e-3, 1e8))
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    with epl.split(2):
        loss = tf.reduce_mean(tf.layers.dense(tf.placeholder(tf.float32, [None, 8]), 1001))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert seen == [Link(1e-3, 1e8)]
