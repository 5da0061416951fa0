"""A worker of a job that is profiled: python profiled.py <folder> <stages>."""

import logging
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.profiler.flops import FlopsProfilerHook
from epl.profiler.memory_profiler_hook import MemoryProfilerHook
from epl.profiler.trace_hook import TraceHook

logging.basicConfig(level=logging.INFO)
folder, stages = sys.argv[1], int(sys.argv[2])
epl.init(epl.Config({"pipeline.num_micro_batch": 2 if stages > 1 else 1}))
x = tf.placeholder(tf.float32, [None, 16])
hidden = x
for index in range(stages):
    with epl.replicate(1):
        hidden = tf.layers.dense(hidden, 16, tf.tanh, name=f"d{index}")
loss = tf.reduce_mean(tf.square(hidden))
step = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer().minimize(loss, step)
hooks = [
    MemoryProfilerHook(2, 2, folder, visualize=False),
    TraceHook(2, 2, folder),
    FlopsProfilerHook("op"),
]
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    for _ in range(3):
        session.run(train_op, {x: np.ones([8, 16])})
