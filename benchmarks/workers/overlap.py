"""Exposed communication of data parallelism between two machines, from traces; run by benchmarks/network_benchmark.py.

    overlap.py OTHER BUCKETS     starts both workers, the second one in the network namespace OTHER

The first worker prints for each traced step "step EXPOSED LAST": the seconds in which it communicates and does not
compute, and those of the collective that ends last.
"""

import json
import os
import subprocess
import sys

LAYERS, WIDTH, ROWS, STEPS = 10, 512, 1024, 24
_PORT = 7070


def _train(buckets: int) -> None:
    import tensorflow.compat.v1 as tf

    import epl
    from epl.ops.op_types import COLLECTIVE_OP_TYPES
    from epl.profiler import exposed_communication, step_stats

    epl.init(epl.Config({"communication.max_splits": buckets}))
    with epl.replicate(1):
        hidden = tf.random.normal([ROWS, WIDTH])
        for _ in range(LAYERS):
            hidden = tf.layers.dense(hidden, WIDTH, tf.tanh, use_bias=False)
        train = tf.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(hidden)))
    threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    with tf.Session(config=threads) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(train)
        for _ in range(STEPS):
            metadata = step_stats.run(session, train)[1]
            exposed = sum(one.exposed_s for one in exposed_communication.exposures(metadata, session.graph))
            moved = [one for one in step_stats.executions(metadata) if one.op_type in COLLECTIVE_OP_TYPES]
            last = max(moved, key=lambda one: one.end_ns)
            print("step {:.6f} {:.6f}".format(exposed, (last.end_ns - last.start_ns) / 1e9), flush=True)


def main() -> int:
    """Runs one worker, or both."""
    if "TF_CONFIG" in os.environ:
        _train(int(sys.argv[2]))
        return 0
    workers = []
    # Processes that do not see each other share no memory, like those of two machines.
    elsewhere = ["nsenter", "--net=" + sys.argv[1], "unshare", "--pid", "--fork", "--mount-proc"]
    for index, enter in enumerate(([], elsewhere)):
        hosts = ["10.77.0.{}:{}".format(1 + worker, _PORT + worker) for worker in range(2)]
        job = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        variables = dict(os.environ, TF_CONFIG=json.dumps(job), TF_CPP_MIN_LOG_LEVEL="1")
        output = None if index == 0 else subprocess.DEVNULL
        workers.append(subprocess.Popen(enter + [sys.executable] + sys.argv, env=variables, stdout=output))
    codes = [worker.wait() for worker in workers]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
