"""A worker in a monitored session: python monitored.py <folder> <chiefs, or one chief>."""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl

folder = sys.argv[1]
epl.init(epl.Config({"cluster.device_type": "cpu", "communication.timeout": 60}))
epl.set_default_strategy(epl.replicate(1))
worker = epl.Env.get().cluster.worker_index

# What differs between workers is fed, as their graphs are compared; the summary of a run without feeds needs a default.
rows = tf.placeholder_with_default(tf.zeros([8, 4]), [8, 4])
feed = {rows: np.random.RandomState(worker).randn(8, 4)}
loss = tf.reduce_mean(tf.square(tf.layers.dense(rows, 1, name="dense")))
tf.summary.scalar("loss", loss)
step = tf.train.get_or_create_global_step()
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
own = os.path.join(folder, f"worker{worker}")


class Notes(tf.train.SessionRunHook):
    """A hook of the user that writes."""

    def after_run(self, run_context, run_values):
        with open(os.path.join(own, "notes"), "a") as notes:
            notes.write("ran\n")


options = {"save_checkpoint_steps": 2, "save_summaries_steps": 1, "log_step_count_steps": 1}
is_chief = worker == 0 or sys.argv[2] == "chiefs"
with tf.train.MonitoredTrainingSession("", is_chief, own, chief_only_hooks=[Notes()], **options) as sess:
    for _ in range(4):
        sess.run(train_op, feed)
    kernel = sess.run("dense/kernel:0")
np.save(os.path.join(folder, f"kernel{worker}.npy"), kernel)
