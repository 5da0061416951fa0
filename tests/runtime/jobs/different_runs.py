"""One of two workers, of which one does something that needs the other, which trains.

Arguments: the level of ZeRO, or "each" for none; what worker 0 does between two steps.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env


def main(level, done):
    """Trains; prints the loss at the end."""
    epl.init(epl.Config({"zero.level": "" if level == "each" else level}))
    epl.set_default_strategy(epl.replicate(1))
    rows = tf.placeholder(tf.float32, [None, 3])
    weight = tf.get_variable("weight", [3, 4], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, weight) - 1.0))
    epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    value = tf.placeholder(tf.float32, [3, 4])
    assigned = weight.assign(value)
    train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    feed = {rows: np.ones([2, 3], "f")}
    is_first = Env.get().cluster.worker_index == 0
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, feed)
        if done.startswith("assigns") and (is_first or done.endswith("in all")):
            sess.run(assigned.op, {value: np.full([3, 4], 0.5, "f")})
        for _ in range(2 if done.startswith("evaluates") and (is_first or done.endswith("in all")) else 0):
            sess.run(loss, feed)
        sess.run(train_op, feed)
        print("loss", sess.run([loss, train_op], feed)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
