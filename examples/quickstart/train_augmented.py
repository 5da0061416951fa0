"""The digits with an input pipeline in Python: epl-launch -np 2 train_augmented.py <directory> <steps>.

A process runs one Python function at a time, so that two workers prepare the 256 images of a step in half the time.
"""

import sys
from typing import Tuple

import digits
import numpy as np
import tensorflow.compat.v1 as tf
from scipy import ndimage

import epl

ROWS = 256  # of a step, whatever the number of devices
directory, steps = sys.argv[1], int(sys.argv[2])
epl.init()
epl.set_default_strategy(epl.replicate(1))
cluster = epl.Env.get().cluster


def distorted(image: np.ndarray, label: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the image turned by up to 15 degrees and distorted as if written by another hand (Simard et al. 2003)."""
    square = ndimage.rotate(image.reshape(8, 8), np.random.uniform(-15, 15), reshape=False, order=1)
    moves = [ndimage.gaussian_filter(np.random.uniform(-4, 4, (8, 8)), 2) for _ in range(2)]
    return ndimage.map_coordinates(square, np.indices((8, 8)) + moves, order=1).reshape(64), label


def in_python(image: tf.Tensor, label: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns what the Python function makes of a row."""
    image, label = tf.py_func(distorted, [image, label], [tf.float32, tf.int64])
    return tf.reshape(image, [64]), tf.reshape(label, [])


np.random.seed(cluster.worker_index)
rows = tf.data.Dataset.from_tensor_slices(digits.images_and_labels("train"))
rows = rows.shuffle(2000).repeat().map(in_python)
rows = rows.batch(ROWS // cluster.total_gpu_num).prefetch(2)
images, labels = tf.data.make_one_shot_iterator(rows).get_next()
loss = tf.losses.sparse_softmax_cross_entropy(labels, digits.network(images))
step = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer(0.001).minimize(loss, step)

hooks = [
    tf.train.StopAtStepHook(last_step=steps),
    digits.Progress(loss, steps, ROWS // cluster.total_gpu_num, directory),
]
with tf.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=hooks, log_step_count_steps=None) as sess:
    while not sess.should_stop():
        sess.run(train_op)
