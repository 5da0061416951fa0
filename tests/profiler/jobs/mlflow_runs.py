"""Trains with the hook, then with the callback, each in a run of MLflow, and prints what its file store has.

Run in .venv-mlflow, in a folder of the test.
"""

import json

import mlflow
import numpy as np
import tensorflow.compat.v1 as tf
from mlflow.tracking import MlflowClient

import epl

mlflow.set_tracking_uri("file:store")
epl.init(epl.Config({"cluster.device_type": "cpu", "cluster.num_virtual_devices": 2}))
epl.set_default_strategy(epl.replicate(1))
x, y = np.ones([32, 3], np.float32), np.zeros([32, 1], np.float32)
settings = {"log": mlflow.log_metrics, "samples_per_run": 8, "save_steps": 2, "trace_steps": 2, "peak_flops": 1e9}


def print_run(fetched):
    run, client = mlflow.active_run().info.run_id, MlflowClient()
    names = client.get_run(run).data.metrics
    stored = {name: [(one.step, one.value) for one in client.get_metric_history(run, name)] for name in names}
    print("RUN " + json.dumps([fetched, stored]))


with mlflow.start_run():
    given = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.square(tf.matmul(given, tf.get_variable("w", [3, 1]))))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
    with tf.train.MonitoredTrainingSession(hooks=[epl.StepStatsHook(**settings)]) as session:
        print_run([float(session.run([loss, train_op], {given: x[:8]})[0]) for _ in range(5)])

tf.reset_default_graph()
epl.set_default_strategy(epl.replicate(1))
with mlflow.start_run():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, y, 8, 2, 0, [epl.StepStatsCallback(**settings)], validation_data=(x, y))
    print_run({name: [float(value) for value in values] for name, values in history.history.items()})
