"""One of several processes that train a split variable, and save by the Saver of worker 0.

Arguments: hosts, index of the process, what happens, where to save.
"""

import os
import signal
import sys
import time

import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.ops.waits import Limits
from epl.parallel.sharded_variables.checkpoint_parts import CheckpointParts
from epl.parallel.sharded_variables.savers import complete_savers, slices_of
from epl.parallel.sharded_variables.slots import adopt_slots
from epl.parallel.sharded_variables.variables import shard_variable
from epl.parallel.sharding.placements import balanced_sizes, shard
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.updates import trace_updates
from epl.utils import tf_compat

STEPS = 4


def build(resharder, placement, delay=0.0):
    """The variable "fc/kernel", sharded if there is a resharder, and its training op; it updates so much later."""
    tf.set_random_seed(3)
    with tf.variable_scope("fc"):
        variable = tf.get_variable("kernel", [6, 8])
    held = {}
    if resharder is not None:
        shard_variable(variable, placement, resharder)
    (gradient,) = tf.gradients(tf.reduce_sum(tf.square(variable)), [variable.op.outputs[0]])
    if resharder is not None:
        after = tf_compat.last_op_id(variable.graph)
        together = resharder.all_reduce(tf.ones([]), "step")
        with tf.control_dependencies([together]):
            gradient = tf.py_func(lambda value: time.sleep(delay) or value, [gradient], gradient.dtype)
        gradient.set_shape(variable.shape)
        step = tf.train.MomentumOptimizer(0.1, 0.5).apply_gradients([(gradient, variable)])
        updates = trace_updates(
            variable.graph, {gradient: placement}, {variable.op.name: placement}, resharder.ranks, after
        )
        held = adopt_slots(updates.variables, resharder, "epl.split").variables
    else:
        step = tf.train.MomentumOptimizer(0.1, 0.5).apply_gradients([(gradient, variable)])
    return step, held


def main():
    """Trains, as one of the processes."""
    hosts, process, what, path = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    job = Job.start(hosts, process, start_timeout=60, stall_warning=10, timeout=60)
    placement = shard(1, balanced_sizes(8, len(hosts)))
    resharder = Resharder(Communicator("parts", range(len(hosts))), process, "test")
    step, held = build(resharder, placement, 0.5 if process and what == "late" else 0.0)
    slices = slices_of(held, [("", process)], {})
    own = {name: found[0][1:3] for name, found in slices.items()}
    parts = CheckpointParts(job.companion(), own, Limits(4, 8) if what.startswith("stopped") else Limits(0, 0))
    saver = tf.train.Saver(max_to_keep=10)
    complete_savers(tf.get_default_graph(), slices, 0, None if process else parts)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())

        def read(names):
            return sess.run([sess.graph.get_operation_by_name(name).outputs[0] for name in names])

        parts.attach(read)
        if what == "restore":
            saver.restore(sess, path)
        for number in range(STEPS):
            if process and what == "fails" and number == 2:
                raise ValueError("no more")
            with parts.step():
                sess.run(step)
            if process and what == "ahead" and number == 2:
                with parts.step():
                    pass
            if process and what == "stopped in a save" and number == 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            if not process:
                saver.save(sess, path + "-after", global_step=number + 1)
        if not process:
            time.sleep(0.5)
            saver.save(sess, path + "-last")
        if not process and what == "stopped before the end":
            os.kill(os.getpid(), signal.SIGSTOP)
        parts.close()
    parts.leave()
    job.stop()
    print("done")


if __name__ == "__main__":
    main()
