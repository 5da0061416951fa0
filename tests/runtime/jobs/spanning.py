"""One of four workers of a hand-placed model of two stages: python spanning.py <what> <directory>.

Stage 0 is on workers 0 and 2, which drive it, stage 1 on workers 1 and 3, which serve. The gradient of stage 1 is
all-reduced between workers 1 and 3 by native collectives.
"""

import os
import signal
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.cluster import topology
from epl.env import Env
from epl.ops import collectives
from epl.ops.collectives import CollectiveMember
from epl.ops.service import CommunicatorSpec
from epl.runtime import hooks
from epl.runtime.server import ProcessServer

what, directory = sys.argv[1], sys.argv[2]
epl.init()
hooks.remove()  # the graph is placed by hand
cluster = Env.get().cluster
worker = cluster.worker_index
layout = topology.of_virtual_devices(cluster.generate_virtual_devices([1, 1]), cluster.worker_num)
server = ProcessServer.start()
with open(os.path.join(directory, "pid_%d" % worker), "w") as out:
    out.write(str(os.getpid()))
if not layout.is_constructor(worker):
    if what == "server stops":
        sys.exit(7)
    print("serves", flush=True)
    if what == "twice":
        try:
            server.serve()
        except SystemExit as end:
            assert end.code == 0
        epl.init()
        server = ProcessServer.start()
    server.serve()
print("drives", flush=True)
(replica,) = layout.replicas_of(worker)

if what == "grpc target":
    original_init = tf.Session.__bases__[0].__init__

    def with_target(session, target="", graph=None, config=None):
        original_init(session, target or server.target, graph, server.session_config(layout, config))

    tf.Session.__bases__[0].__init__ = with_target
    x = tf.Variable(3.0, use_resource=True)
    with tf.device(layout.device(1, replica)):
        w = tf.Variable(2.0, use_resource=True)
        y = x * w
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.25).minimize(y, global_step=step)
    for last in (2, 4):  # the second one restores
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=os.path.join(directory, "model_%d" % worker),
            save_summaries_steps=1,
            hooks=[tf.train.StopAtStepHook(last_step=last)],
        ) as sess:
            while not sess.should_stop():
                print("step", sess.run([y, step, train])[1], flush=True)

    def model_fn(features, labels, mode):
        with tf.device(layout.device(1, replica)):
            loss = tf.reduce_mean(tf.square(tf.layers.dense(features, 1) - labels))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn():
        return tf.data.Dataset.from_tensors((np.ones([2, 3], np.float32), np.ones([2, 1], np.float32))).repeat()

    os.environ["TF_CONFIG"] = "{}"
    estimator = tf.estimator.Estimator(model_fn, os.path.join(directory, "estimator_%d" % worker))
    estimator.train(input_fn, steps=3)
    print("estimator", estimator.evaluate(input_fn, steps=1)["global_step"], flush=True)
    sys.exit()

if what == "differ":
    server.open(tf.get_default_graph(), [CommunicatorSpec("stage%d" % (1 + worker // 2), layout.rank_process(1))])
if what == "twice":
    server.leave()
    epl.init()
    hooks.remove()
    server = ProcessServer.start()
server.open(tf.get_default_graph(), [CommunicatorSpec("stage1", layout.rank_process(1))])
with tf.device(layout.device(0, replica)):
    length = 5 if what == "data ends" and worker == 0 else 10**6
    rows = tf.data.make_initializable_iterator(tf.data.Dataset.range(length).map(lambda row: tf.cast(row, tf.float32)))
    row = rows.get_next()
    kernel = tf.get_variable("kernel", [1, 2], initializer=tf.ones_initializer(), use_resource=True)
    hidden = tf.matmul(tf.reshape(row + worker, [1, 1]), kernel)
with tf.device(layout.device(1, replica)):
    weight = tf.get_variable("weight", [2, 1], initializer=tf.ones_initializer(), use_resource=True)
    loss = tf.reduce_sum(tf.matmul(hidden, weight))
    (gradient,) = tf.gradients(loss, [weight])
    (mean,) = collectives.all_reduce(CollectiveMember("stage1", replica, "weight", 2), [gradient], "sum", 0.5)
    train_op = weight.assign_sub(0.001 * mean)

session = tf.Session(server.target, config=server.session_config(layout))
server.adopt(session)


def run(fetches):
    """What the hook of Session.run does."""
    return server.guarded(lambda: "a run", session.run, fetches)


def kill(victim):
    with open(os.path.join(directory, "pid_%d" % victim)) as source:
        os.kill(int(source.read()), signal.SIGKILL)


run([tf.global_variables_initializer(), rows.initializer])
count = 12 if what == "finishes early" and worker == 2 else 10
step = 0
while step < count or what not in ("trains", "twice", "finishes early"):
    if worker == 2 and step == 5:
        if what == "constructor killed":
            kill(2)
        if what == "server killed":
            kill(3)
        if what == "server killed while idle":
            kill(3)
            time.sleep(3)
        if what == "raises":
            raise ValueError("something in the script")
        if what == "stops with code":
            sys.exit(7)
    generation = server.service.job.generation
    try:
        value, _ = run([mean, train_op])
    except tf.errors.OutOfRangeError as error:
        server.service.end_generation(error.message, generation)
        run(rows.initializer)
        for _ in range(3):  # fresh counters in every process
            run(train_op)
        print("data ended after", step, flush=True)
        break
    step += 1
    print("step", step, value.tolist(), flush=True)
print("final", run(weight).tolist(), flush=True)
