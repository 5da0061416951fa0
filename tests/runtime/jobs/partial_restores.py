"""One of two workers that train with variables in parts; what gives them values may run in worker 0 alone.

Arguments: "v0", "v1", "v2", "split" or "replicate", or "plain" for one device that is fed all rows; what is done;
folder, which has the checkpoint `first` in all cases but "plain".
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

STEPS = 2
ROWS = np.arange(256, dtype=np.float32).reshape(8, 32) / 256


def build(scope=None):
    """The placeholder of the rows, the loss, the training op, and an op that assigns a value."""
    rows = tf.placeholder(tf.float32, [None, 32], "rows")
    if scope is None:
        hidden = layer(rows)
    else:
        with scope():
            hidden = layer(rows)
    loss = tf.reduce_mean(tf.square(hidden - 1.0))
    kernel = tf.global_variables()[0]
    assigned = kernel.assign(tf.fill([32, 64], 0.1))
    return rows, loss, tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss), assigned


def layer(rows):
    """A dense layer of 64 units."""
    kernel = tf.get_variable("fc/kernel", [32, 64], initializer=tf.constant_initializer(np.sin(np.arange(2048)) / 4))
    return tf.nn.tanh(tf.matmul(rows, kernel))


def main(layout, done, folder):
    """Restores and trains; prints the losses."""
    worker, fed, scope = 0, ROWS, None
    if layout == "plain":
        tf.disable_v2_behavior()
    else:
        import epl
        from epl.env import Env

        epl.init(epl.Config({"zero.level": layout if layout.startswith("v") else ""}))
        if layout == "split":
            scope = lambda: epl.split(2, choices={"MatMul": "shard(1)"})  # noqa: E731
        else:
            epl.set_default_strategy(epl.replicate(1))
        worker = Env.get().cluster.worker_index
        fed = ROWS[4 * worker : 4 * worker + 4]
    rows, loss, train_op, assigned = build(scope)
    saver = tf.train.Saver()
    losses = []

    def step():
        losses.append(float(sess.run([loss, train_op], {rows: fed})[0]))

    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        if layout == "plain":
            step()
            saver.save(sess, folder + "/first")
        elif done == "restored by all" or (worker == 0 and done.startswith("restored by worker 0")):
            saver.restore(sess, folder + "/first")
        elif worker == 0 and done == "assigned by worker 0":
            sess.run(assigned.op)
        if done == "restored by worker 0 and read":
            sess.run(tf.global_variables()[0])
        if done == "restored by worker 0 and saved":
            saver.save(sess, folder + "/second")
        for _ in range(STEPS):
            step()
    print("losses", losses)


if __name__ == "__main__":
    main(*sys.argv[1:])
