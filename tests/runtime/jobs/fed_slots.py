"""One of two workers that train a table under ZeRO with Adam, fed by hand; worker 0 is slow to save after each step.

Arguments: level of ZeRO, or "plain" for one device that is fed all rows; folder.
"""

import sys
import time

import tensorflow.compat.v1 as tf

STEPS = 4
ROWS = [[0, 1, 2, 3], [2, 3, 4, 5]]


def build():
    """The placeholder of the rows and the training op."""
    rows = tf.placeholder(tf.int32, [None], "rows")
    table = tf.get_variable("table", [6, 4], initializer=tf.constant_initializer([[1.0, 2.0, 3.0, 4.0]] * 6))
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, rows)))
    return rows, tf.train.AdamOptimizer(0.1).minimize(loss)


def main(level, folder):
    """Trains and saves after each step."""
    worker, fed = 0, ROWS[0] + ROWS[1]
    if level != "plain":
        import epl
        from epl.env import Env

        epl.init(epl.Config({"zero.level": level}))
        epl.set_default_strategy(epl.replicate(1))
        worker = Env.get().cluster.worker_index
        fed = ROWS[worker]
    tf.disable_v2_behavior()  # of the plain script, too
    rows, train_op = build()
    saver = tf.train.Saver(max_to_keep=STEPS)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            sess.run(train_op, {rows: fed})
            if worker == 0:
                time.sleep(0.5)  # the other worker begins its next step
                saver.save(sess, f"{folder}/{level}", global_step=step + 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
