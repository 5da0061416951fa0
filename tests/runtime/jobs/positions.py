"""One of several workers that read rows of their own and save the position of their input.

Arguments: "saver" or "estimator"; folder; number of steps. Goes on from the last checkpoint in the folder, if there is
one, and prints the rows that the worker read.
"""

import sys

import tensorflow.compat.v1 as tf

import epl
from epl.env import Env


def rows_of(worker, workers):
    """Rows of a worker: numbers that leave its index modulo the number of workers."""
    return tf.data.Dataset.range(100).shard(workers, worker).map(lambda row: tf.cast(row, tf.float32)).batch(1)


def loss_of(rows):
    """A loss with one weight."""
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    return tf.reduce_mean(tf.square(weight - rows))


def by_saver(folder, steps, worker, workers):
    """A session, and a Saver for all."""
    iterator = tf.data.make_initializable_iterator(rows_of(worker, workers))
    rows = iterator.get_next()
    tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, tf.data.experimental.make_saveable_from_iterator(iterator))
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss_of(rows), step)
    saver = tf.train.Saver()
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), iterator.initializer])
        last = tf.train.latest_checkpoint(folder)
        if last:
            saver.restore(sess, last)
        for _ in range(steps):
            print("row", int(sess.run([rows, train_op])[0][0]))
        saver.save(sess, folder + "/model.ckpt", global_step=step)


def by_estimator(folder, steps, worker, workers):
    """An Estimator with the hook of TensorFlow."""

    def model(features, labels, mode):
        loss = loss_of(features)
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        shown = tf.print("row", tf.cast(features[0], tf.int32), output_stream=sys.stdout)
        with tf.control_dependencies([shown]):
            train_op = tf.group(train_op)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tf.estimator.RunConfig(model_dir=folder, save_checkpoints_steps=steps)
    estimator = tf.estimator.Estimator(model, config=config)
    hook = tf.data.experimental.CheckpointInputPipelineHook(estimator)
    estimator.train(lambda: rows_of(worker, workers), hooks=[hook], steps=steps)


def main(way, folder, steps):
    """Trains."""
    epl.init(epl.Config({"communication.allow_different_graphs": True}))
    epl.set_default_strategy(epl.replicate(1))
    cluster = Env.get().cluster
    {"saver": by_saver, "estimator": by_estimator}[way](folder, int(steps), cluster.worker_index, cluster.worker_num)


if __name__ == "__main__":
    main(*sys.argv[1:])
