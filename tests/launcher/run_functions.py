"""What workers of `epl.run` call in tests. TensorFlow is imported only where it is needed."""

import json
import os
import signal
import sys
import threading
import time


def rank():
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def greet(*args, **kwargs):
    print("hello from", rank())
    return rank(), args, kwargs, os.environ["EPL_CLUSTER_NUM_VIRTUAL_DEVICES"]


def fail_at(worker, folder):
    """Raises in one of two workers, when both have noted their processes; the other sleeps."""
    note_pid(folder)
    if rank() == worker:
        while len(os.listdir(folder)) < 2:
            time.sleep(0.02)
        raise ValueError("bad row 17")
    time.sleep(60)


def sleep(folder):
    note_pid(folder)
    time.sleep(60)


def note_pid(folder):
    with open(os.path.join(folder, f"pid_{rank()}"), "w") as file:
        file.write(str(os.getpid()))


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def return_a_lock():
    return threading.Lock()


class TwoPartError(Exception):
    def __init__(self, first, second):
        super().__init__(first)


def raise_what_cannot_be_unpickled():
    raise TwoPartError("in two", "parts")


def leave():
    if rank() == 0:
        sys.exit(0)
    return "stayed"


def train(steps, bad_worker=None):
    """Trains one weight towards 3, data parallel; in `bad_worker` a step fails."""
    import tensorflow.compat.v1 as tf

    import epl

    epl.init()
    target = tf.placeholder(tf.float32, [])
    with epl.replicate(1):
        loss = tf.square(tf.get_variable("w", [], initializer=tf.zeros_initializer()) - target)
    train_op = tf.train.GradientDescentOptimizer(0.2).minimize(loss)
    check = tf.debugging.assert_greater(target, 0.0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = []
        for step in range(steps):
            value = -1.0 if (rank(), step) == (bad_worker, 1) else 2.0 + 2 * rank()
            losses.append(session.run([loss, train_op, check], {target: value})[0])
        return losses, session.run("w:0")
