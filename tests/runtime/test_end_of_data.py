"""The end of the data of one replica is the end of the step of all, and a script sees it as the end of the data."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parallel.in_process import replicas_equal


@pytest.mark.parametrize("devices, batches", [(2, 3), (4, 6)])
def test_the_step_ends_with_the_end_of_the_data_and_not_with_its_consequences(init, devices, batches):
    init(devices)
    data = tf.data.Dataset.from_tensor_slices(np.ones([batches, 3], "f")).batch(1)
    iterator = tf.data.make_initializable_iterator(data)
    loss = tf.reduce_mean(tf.layers.dense(iterator.get_next(), 1, name="dense"))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(60):  # the errors of the replicas come in any order
            sess.run(iterator.initializer)
            sess.run(train_op)
            with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
                sess.run(train_op)
        assert replicas_equal(sess, "dense/kernel")
