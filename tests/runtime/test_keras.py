"""tf.keras models in graph mode."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph

X = np.random.RandomState(0).randn(16, 3).astype("f")
Y = np.random.RandomState(1).randn(16, 1).astype("f")


def compiled(metrics=None):
    layers = [
        tf.keras.layers.Dense(4, "tanh", kernel_initializer=tf.keras.initializers.glorot_uniform(3), input_shape=(3,)),
        tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.glorot_uniform(4)),
    ]
    model = tf.keras.Sequential(layers)
    model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics)
    return model


def fitted():
    """Losses of the epochs, the weights, the loss on all rows, and predictions."""
    model = compiled()
    history = model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    return [history] + model.get_weights() + [model.evaluate(X, Y, verbose=0), model.predict(X)]


def test_fit_of_arrays_equals_one_device(init):
    init(annotate=False)
    plain = fitted()
    tf.keras.backend.clear_session()
    for devices in (2, 3):
        init(devices)
        parallel = fitted()
        tf.keras.backend.clear_session()
        for expected, found in zip(plain, parallel):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_fit_runs_on_every_replica(init):
    init(2)
    fitted()
    graph = Graph.get()
    assert graph.rewritten.world_size == 2
    tf.keras.backend.clear_session()


class Largest(tf.keras.metrics.Metric):
    """The largest prediction, which is not the sum of those of the replicas."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight("largest", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        return self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y_pred)))

    def result(self):
        return tf.identity(self.largest)


def test_metrics_of_fit_are_of_all_rows(init, caplog):
    found = []
    for devices in (1, 2):
        init(devices)
        found.append(compiled(["mae"]).fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history)
        tf.keras.backend.clear_session()
    for name, values in found[0].items():
        np.testing.assert_allclose(found[1][name], values, rtol=1e-5)
    assert "those of the rows of replica 0" not in caplog.text


@pytest.mark.parametrize("devices,metric,said", [(2, Largest, 1), (2, None, 0), (1, Largest, 0)])
def test_other_metrics_are_those_of_replica_0_which_is_said_once(init, monkeypatch, caplog, devices, metric, said):
    init(devices)
    monkeypatch.setattr(Env.get(), "_said", set())
    model = compiled(metric and [metric()])
    for _ in range(2):
        model.fit(X, Y, batch_size=8, verbose=0)
    model.evaluate(X, Y, verbose=0)
    tf.keras.backend.clear_session()
    assert len([record for record in caplog.records if "those of the rows of replica 0" in record.message]) == said


def compiled_again():
    """The weights after two compilations, which the graph is verified for."""
    model = compiled()
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    model.layers[0].trainable = False
    model.compile(tf.keras.optimizers.Adam(0.01), "mae")
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, sample_weight=np.abs(X[:, 0]))
    return model.get_weights()


def test_metrics_of_evaluate_are_of_all_rows_with_batch_norms_of_all_rows(init):
    init(2, batch_norm__sync=True)
    layers = [
        tf.keras.layers.Dense(4, input_shape=(3,)),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.Dense(1),
    ]
    model = tf.keras.Sequential(layers)
    model.compile(tf.keras.optimizers.SGD(0.1), "mse", ["mae"])
    model.fit(X, Y, batch_size=16, verbose=0)
    loss, error = model.evaluate(X, Y, batch_size=16, verbose=0)
    wrong = model.predict(X) - Y
    tf.keras.backend.clear_session()
    np.testing.assert_allclose([loss, error], [np.mean(wrong**2), np.mean(np.abs(wrong))], rtol=2e-5)


def test_a_graph_that_is_rewritten_again_is_sound(init, monkeypatch):
    init(annotate=False)
    plain = compiled_again()
    tf.keras.backend.clear_session()
    monkeypatch.setenv("EPL_VERIFY", "1")
    init(2)
    parallel = compiled_again()
    definition = tf.get_default_graph().as_graph_def()
    tf.keras.backend.clear_session()
    for expected, found in zip(plain, parallel):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    assert not [node.name for node in definition.node if node.name.startswith("EPL_")]
    with tf.Graph().as_default():
        tf.import_graph_def(definition)
