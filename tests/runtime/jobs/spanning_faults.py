"""A user's script that goes wrong: spanning_faults.py <what> <directory>. Stage 1 of two lies in the next worker."""

import atexit
import os
import re
import signal
import sys
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl

what, directory = sys.argv[1], sys.argv[2]
tf.logging.set_verbosity(tf.logging.ERROR)
settings = {"pipeline.num_micro_batch": 2}
stopped = re.match(r"worker (\d) is stopped", what)
if stopped:
    settings.update({"communication.stall_warning": 4, "communication.timeout": 8})
epl.init(epl.Config(settings))
worker = epl.Env.get().cluster.worker_index
with open(os.path.join(directory, "pid_%d" % worker), "w") as out:
    out.write(str(os.getpid()))


def signal_worker(number: int, sent: int) -> None:
    with open(os.path.join(directory, "pid_%d" % number)) as source:
        os.kill(int(source.read()), sent)


def in_a_run(number: int, sent: int) -> None:
    """Sends a signal while the next step goes on."""
    threading.Timer(0.5, signal_worker, (number, sent)).start()


def wait() -> float:
    """A part of the model that lasts."""
    time.sleep(30.0 if slow else 0.0)
    return 0.0


def go_on() -> None:
    """Lets the stopped worker see that the others have ended."""
    time.sleep(2.0)
    signal_worker(int(stopped.group(1)), signal.SIGCONT)


if stopped and int(stopped.group(1)) != worker:
    atexit.register(go_on)
slow = False
x = tf.placeholder(tf.float32, [None, 4], "x")
with epl.replicate(1):
    (pause,) = tf.py_func(wait, [], [tf.float64])
    pause.set_shape([])
    hidden = tf.layers.dense(x, 8, tf.nn.tanh) + tf.cast(pause, tf.float32)
with epl.replicate(1):
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1)))
train_op = tf.train.AdamOptimizer(0.05).minimize(loss, tf.train.get_or_create_global_step())
print("session", flush=True)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(6):
        slow = step == 3 and what in ("interrupted", "server interrupted", "killed in a run")
        if worker == 2 and step == 3:
            if what == "raises":
                raise ValueError("something in the script")
            if what == "stops with code":
                sys.exit(7)
            if what == "raises SystemExit":
                raise SystemExit(7)
            if stopped:
                signal_worker(int(stopped.group(1)), signal.SIGSTOP)
            if what == "killed":
                signal_worker(2, signal.SIGKILL)
            if what == "server killed":
                signal_worker(3, signal.SIGKILL)
            if what == "killed in a run":
                in_a_run(3, signal.SIGKILL)
            if what == "interrupted":
                in_a_run(2, signal.SIGINT)
            if what == "server interrupted":
                in_a_run(3, signal.SIGINT)
        sess.run([loss, train_op], {x: np.ones([4, 4], np.float32)})
    while what == "until told" and not os.path.exists(os.path.join(directory, "told")):
        sess.run([loss, train_op], {x: np.ones([4, 4], np.float32)})
        open(os.path.join(directory, "trains"), "w").close()
    print("trained", flush=True)

if what == "data parallel after":
    with tf.Graph().as_default():
        with epl.replicate(1):
            loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.ones([4, 4]), 1)))
        train_op = tf.train.AdamOptimizer(0.05).minimize(loss)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            sess.run(train_op)
print("end", flush=True)
