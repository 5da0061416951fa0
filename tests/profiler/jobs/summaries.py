"""A worker of a job that writes summaries: python summaries.py <folder> <stages>; the loss is that of the job."""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from tests.profiler.models import layers_in_stages

folder, stages = sys.argv[1], int(sys.argv[2])
x, loss = layers_in_stages(stages)
epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
step = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer().minimize(loss, step)
hook = epl.StepStatsHook(folder, samples_per_run=16, save_steps=2, trace_steps=2)
with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    for _ in range(4):
        session.run(train_op, {x: np.ones([8, 16])})
