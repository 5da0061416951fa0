"""A training script in which one worker does something bad: python faulty.py <what> <marker>."""

import json
import os
import signal
import sys
import time
from typing import Iterator

import numpy as np
import tensorflow.compat.v1 as tf

import epl

what = sys.argv[1]
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
bad = worker == 1

if bad and what == "never starts":
    time.sleep(600)

epl.init()
epl.set_default_strategy(epl.replicate(1))


def rows() -> Iterator[np.ndarray]:
    """Rows for ever; the bad worker's end with what was asked for, while the others wait for it in their step."""
    for row in range(10**9):
        if bad and row == 5 * 8:
            if what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hangs":
                time.sleep(600)
            if what == "fails":
                raise ValueError("this row is rotten")
        yield np.full([4], row, np.float32)


x = tf.data.make_initializable_iterator(tf.data.Dataset.from_generator(rows, tf.float32, [4]).batch(8))
tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, x.initializer)
hidden = tf.layers.dense(x.get_next(), 9 if bad and what == "other shapes" else 8, name="my_layer")
if bad and what == "other variables":
    hidden = tf.layers.dense(hidden, 8, name="only_here")
loss = tf.reduce_mean(tf.tanh(hidden))
train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)

with tf.train.MonitoredTrainingSession() as sess:
    for step in range(10**9):
        if bad and what == "raises" and step == 5:
            raise RuntimeError("something in the script")
        if bad and what == "leaves" and step == 5:
            sys.exit(0)
        sess.run(train_op)
        print("step", step, flush=True)
