"""Trains a layer by data parallelism in a job of several machines; writes its weights and the transports in use."""

import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.ops.job import Job

create = Job.create_communicator
transports = []


def created(job, name, rank_process, transport):
    transports.append(create(job, name, rank_process, transport))
    return transports[-1]


Job.create_communicator = created  # type: ignore[method-assign]
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
data = np.load(os.path.join(sys.argv[1], "data.npz"))
epl.init()
with epl.replicate(1):
    x = tf.placeholder(tf.float32, [None, 300])
    y = tf.placeholder(tf.float32, [None, 200])
    weights = tf.get_variable("weights", [300, 200], initializer=tf.constant_initializer(0.01))
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, weights)) - y))
train = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    rows = slice(4 * worker, 4 * worker + 4)
    for step in range(3):
        session.run(train, {x: data["x"][step][rows], y: data["y"][step][rows]})
    np.savez(os.path.join(sys.argv[1], f"worker{worker}.npz"), weights=session.run(weights), transports=transports)
