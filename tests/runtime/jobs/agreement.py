"""Workers that build different things, one after the other: python agreement.py <directory>; see test_agreement.py.

Writes what the first run of each case raised, "trained" if nothing, into <directory>/told_<worker>.json.
"""

import json
import os
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.ops.job import Job
from epl.parallel.plan import agreement

DIRECTORY = sys.argv[1]
WORKER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
IS_ODD = WORKER == 1


def rows():
    """Data of this worker: how many rows there are, in which order, and which."""
    dataset = tf.data.Dataset.from_tensor_slices(np.full([6 + 2 * WORKER, 4], WORKER, "f")).repeat()
    return tf.data.make_one_shot_iterator(dataset.shuffle(8, seed=WORKER).batch(2)).get_next()


def build(optimizer, activation=tf.nn.relu):
    """The training op of a small model."""
    if WORKER == 0:
        tf.summary.scalar("of_the_chief", tf.constant(1.0))
    hidden = tf.layers.dense(rows(), 5, activation=activation, name="hidden")
    hidden = tf.nn.dropout(hidden, rate=0.5, seed=WORKER)
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 3, name="out")))
    return optimizer.minimize(loss, tf.train.get_or_create_global_step())


def split(width_factor):
    """A step whose softmax is divided."""
    hidden = tf.layers.dense(rows(), 5, name="hidden")
    with epl.split(2):
        logits = tf.layers.dense(hidden * width_factor, 7, name="logits")
        labels = tf.zeros([tf.shape(logits)[0]], tf.int32)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return tf.train.AdamOptimizer(0.1).minimize(loss)


def adam(rate=0.01, **hyperparameters):
    """The optimizer of most cases."""
    return tf.train.AdamOptimizer(rate, **hyperparameters)


TENSORFLOW = tf.VERSION
CASES = {
    "equal": lambda: ({}, lambda: build(adam())),
    "rate": lambda: ({}, lambda: build(adam(0.5 if IS_ODD else 0.01))),
    "beta1": lambda: ({}, lambda: build(adam(beta1=0.8 if IS_ODD else 0.9))),
    "momentum": lambda: ({}, lambda: build(tf.train.MomentumOptimizer(0.1, 0.5 if IS_ODD else 0.9))),
    "activation": lambda: ({}, lambda: build(adam(), tf.nn.tanh if IS_ODD else tf.nn.relu)),
    "optimizer": lambda: ({}, lambda: build(tf.train.GradientDescentOptimizer(0.1) if IS_ODD else adam())),
    "allowed": lambda: (
        {"communication.allow_different_graphs": True},
        lambda: build(adam(0.5 if IS_ODD else 0.01)),
    ),
    "zero": lambda: ({"zero.level": "v1"}, lambda: build(adam())),
    "zero, rate": lambda: ({"zero.level": "v1"}, lambda: build(adam(0.5 if IS_ODD else 0.01))),
    "zero.level": lambda: ({"zero.level": "v1" if IS_ODD else ""}, lambda: build(adam())),
    "groups": lambda: ({"optimizer.num_apply_group": 2 if IS_ODD else 1}, lambda: build(adam())),
    "own keys": lambda: ({"communication.stall_warning": 50 + WORKER}, lambda: build(adam())),
    "split": lambda: ({"cluster.colocate_split_and_replicate": True}, lambda: split(2.0)),
    "split, factor": lambda: ({"cluster.colocate_split_and_replicate": True}, lambda: split(3.0 if IS_ODD else 2.0)),
    "version": lambda: ({}, lambda: build(adam())),
    "version of TensorFlow": lambda: ({}, lambda: build(adam())),
}


def run(name):
    """What the first runs of a case raise."""
    config, make = CASES[name]()
    if IS_ODD:
        agreement.VERSION = "0.5" if name == "version" else epl.VERSION
        tf.VERSION = "2.99.0" if name == "version of TensorFlow" else TENSORFLOW
    tf.reset_default_graph()
    epl.init(epl.Config(config))
    epl.set_default_strategy(epl.replicate(1))
    try:
        train_op = make()
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            sess.run([train_op, train_op])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


def wait_for(name):
    """Until another worker has written a file."""
    while not os.path.exists(os.path.join(DIRECTORY, name)):
        time.sleep(0.05)


# Worker 0 is ready, and has data, before worker 1 begins.
if IS_ODD:
    wait_for("prepared")
epl.init()
if WORKER == 0:
    assert Job.current() is None
    with tf.Session() as session:  # of no annotated model
        session.run(tf.constant(1))
    open(os.path.join(DIRECTORY, "prepared"), "w").close()
told = {name: run(name) for name in CASES}
with open(os.path.join(DIRECTORY, "told_%d.json" % WORKER), "w") as out:
    json.dump(told, out)
