"""Trains a small network on handwritten digits, on one device: python train.py <directory> <steps>."""

import sys

import digits
import tensorflow.compat.v1 as tf

BATCH_SIZE = 32
directory, steps = sys.argv[1], int(sys.argv[2])

images, labels = digits.batches(BATCH_SIZE)
logits = digits.network(images)
loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
tf.summary.scalar("loss", loss)
step = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer(0.001).minimize(loss, step)

hooks = [tf.train.StopAtStepHook(last_step=steps), digits.Progress(loss, steps, BATCH_SIZE, directory)]
with tf.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=hooks, log_step_count_steps=None) as sess:
    while not sess.should_stop():
        sess.run(train_op)
