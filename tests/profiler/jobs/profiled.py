"""A worker of a job that is profiled: python profiled.py <folder> <stages>."""

import logging
import sys

import numpy as np
import tensorflow.compat.v1 as tf

from epl.profiler.flops import FlopsProfilerHook
from epl.profiler.memory_profiler_hook import MemoryProfilerHook
from epl.profiler.trace_hook import TraceHook
from tests.profiler.models import layers_in_stages

logging.basicConfig(level=logging.INFO)
folder, stages = sys.argv[1], int(sys.argv[2])
x, loss = layers_in_stages(stages)
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
