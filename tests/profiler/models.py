"""What several tests of the profiler train: layers in stages, for jobs of several workers, and an Estimator."""

import tensorflow.compat.v1 as tf

import epl


def layers_in_stages(stages):
    """Calls epl.init and builds a layer in each stage; a pipeline has 2 micro batches. The placeholder and the loss."""
    epl.init(epl.Config({"pipeline.num_micro_batch": 2 if stages > 1 else 1}))
    x = tf.placeholder(tf.float32, [None, 16])
    hidden = x
    for index in range(stages):
        with epl.replicate(1):
            hidden = tf.layers.dense(hidden, 16, tf.tanh, name=f"d{index}")
    return x, tf.reduce_mean(tf.square(hidden))


def estimator(folder):
    """An Estimator of one layer with its checkpoints in a folder, and its input function."""

    def model_fn(features, labels):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(features, 1) - labels))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec("train", loss=loss, train_op=train_op)

    def input_fn():
        return tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1]))).repeat()

    return tf.estimator.Estimator(model_fn, str(folder)), input_fn
