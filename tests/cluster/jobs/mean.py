"""Trains one weight by data parallelism: after a step it is minus the mean of 1, 2, ... over the workers."""

import tensorflow.compat.v1 as tf

import epl

epl.init()
epl.set_default_strategy(epl.replicate(1))
cluster = epl.Env.get().cluster
number = tf.placeholder(tf.float32, [None])
weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
train = tf.train.GradientDescentOptimizer(1.0).minimize(weight * tf.reduce_mean(number))
with tf.train.MonitoredTrainingSession() as session:
    session.run(train, {number: [cluster.worker_index + 1.0]})
    value = session.run(weight)
print(f"worker {cluster.worker_index} of {cluster.worker_num} at {cluster.machines}: weight {value}", flush=True)
