"""Training over two machines (two addresses of this one) with hierarchical collectives equals one device."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.runtime.spanning import codes, outputs, run_workers


def one_device(data):
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(tf.float32, [None, 300]), tf.placeholder(tf.float32, [None, 200])
        weights = tf.get_variable("weights", [300, 200], initializer=tf.constant_initializer(0.01))
        loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, weights)) - y))
        train = tf.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
        session.run(tf.global_variables_initializer())
        for step in range(3):
            session.run(train, {x: data["x"][step], y: data["y"][step]})
        return session.run(weights)


@pytest.mark.timeout(150)
def test_two_machines_of_two_workers_equal_one_device(tmp_path):
    random = np.random.RandomState(0)
    data = {"x": random.randn(3, 16, 300).astype("f"), "y": random.randn(3, 16, 200).astype("f")}
    np.savez(str(tmp_path / "data.npz"), **data)
    machines = ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]
    workers = run_workers("hierarchical_training.py", [str(tmp_path)], tmp_path, machines, 120.0)
    assert codes(workers) == [0] * 4, outputs(workers)
    found = [np.load(str(tmp_path / f"worker{worker}.npz")) for worker in range(4)]
    assert all("hierarchical" in one["transports"] for one in found)
    expected = one_device(data)
    np.testing.assert_allclose(found[0]["weights"], expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    for other in found[1:]:
        np.testing.assert_array_equal(found[0]["weights"], other["weights"])
