"""A worker of a job that explains its model: python explained.py <folder> <stages> <in session or before>."""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from tests.profiler.models import layers_in_stages

folder, stages, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ.pop("EPL_EXPLAIN", None)
if when == "first run":
    os.environ["EPL_EXPLAIN"] = "1"
x, loss = layers_in_stages(stages)
train_op = tf.train.AdamOptimizer().minimize(loss)
if when == "before":
    epl.explain()
with tf.Session() as session:
    if when == "in session":
        epl.explain(train_op, {x: tf.TensorShape([8, 16])})
    session.run(tf.global_variables_initializer())
    session.run(train_op, {x: np.ones([8, 16])})
