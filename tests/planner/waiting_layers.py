"""Models whose layers wait: real weights, tensors, graphs and collectives, but the time of a layer is a given one.

A layer multiplies by a matrix, and then waits for its rows, forward and backward. Waiting needs no core, so that what a
plan makes of a model can be timed on a machine with fewer cores than the plan has devices, while other programs run.
"""

import contextlib
import json
import os
import re
import time
from typing import NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.parallel.plan.row_shares import asked_for, share_out
from epl.planner.search import planned_model

WIDTH = 16
SECONDS = {}  # token of a Python function -> the seconds per row that it waits forward


class WaitingPlan(NamedTuple):
    """A model of waiting layers, and how it is trained.

    Attributes:
      name: for people.
      layers: for each block of the model, the seconds that each of its layers waits per row; twice that backward.
      annotations: for each block, "replicate(n)" or "split()"; "" for no scope.
      config: keys of `epl.Config`.
      workers, devices: of the job.
      rows: of the global batch.
      speeds: of the devices of each worker, relative to the seconds of the layers; () for equal ones.
      is_fed_by_first: whether worker 0 feeds the rows of all, as that of a pipeline of one replica.
    """

    name: str
    layers: Tuple[Tuple[float, ...], ...]
    annotations: Tuple[str, ...]
    config: Tuple[Tuple[str, object], ...]
    workers: int
    devices: int
    rows: int
    speeds: Tuple[float, ...] = ()
    is_fed_by_first: bool = False


def build(plan, speed=1.0):
    """Builds the model in the default graph, for a worker of this speed.

    Returns:
      The placeholder of the rows, the loss, and the op that trains.
    """
    epl.init(epl.Config(dict(plan.config)))
    rows = tf.placeholder(tf.float32, [None, WIDTH], "rows")
    x = rows
    for number, (layers, annotation) in enumerate(zip(plan.layers, plan.annotations)):
        with _scope(annotation):
            for at, seconds in enumerate(layers):
                x = _layer(x, seconds, speed, f"block{number}_layer{at}")
            if number == len(plan.layers) - 1:
                loss = tf.reduce_mean(tf.square(x))
    return rows, loss, tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)


def train(plan, steps):
    """Trains the model as one worker of the job, on the rows of the global batch that belong to it.

    Args:
      plan: the model and the job.
      steps: how many steps are timed; two more come before them.

    Returns:
      The seconds of each step that is timed, the losses of all steps on its own rows, and how many these are.
    """
    planned_model.open_profile = lambda mode, cluster, device: WaitingProfile()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if plan.workers > 1 else 0
    rows, loss, train_op = build(plan, plan.speeds[rank] if plan.speeds else 1.0)
    batch = np.random.RandomState(0).rand(plan.rows, WIDTH).astype(np.float32)
    # Where stages are scopes, too, worker 0 feeds the only replica.
    if not plan.is_fed_by_first and (plan.workers == 1 or len(plan.layers) == 1):
        shares = asked_for(Env.get().config) or (1,) * plan.workers
        of_workers = np.reshape(share_out(plan.rows, shares), [plan.workers, -1]).sum(axis=1)
        assert of_workers[rank] == epl.local_rows(plan.rows)
        begin = of_workers[:rank].sum()
        batch = batch[begin : begin + of_workers[rank]]
    # As many threads as may wait at the same time.
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=4 * plan.devices + 4)) as session:
        session.run(tf.global_variables_initializer())
        seconds, losses = [], []
        for _ in range(steps + 2):
            began = time.perf_counter()
            losses.append(float(session.run([loss, train_op], {rows: batch})[0]))
            seconds.append(time.perf_counter() - began)
    return seconds[2:], losses, len(batch)


class WaitingProfile:
    """In place of `OpProfile`: the layers take the times that they were given."""

    def measured(self, signature, device):
        """The seconds of a waiting layer, forward and backward, on a device that is named "cpu", or "cpu-2" if it has
        the speed 2; None for other ops.
        """
        if signature.type != "PyFuncStateless":
            return None
        token = re.search(rb"pyfunc_[0-9]+", b"".join(signature.attrs)).group()
        seconds = SECONDS[token] * signature.inputs[0].shape[0] / float(device.name.partition("-")[2] or 1)
        return seconds, 2 * seconds

    def notes(self):
        """Nothing could not be measured."""
        return []


def _scope(annotation):
    if not annotation:
        return contextlib.ExitStack()  # does nothing
    return eval(f"epl.{annotation}", {"epl": epl})


def _layer(x, seconds, speed, name):
    weights = tf.get_variable(name, [WIDTH, WIDTH], initializer=tf.initializers.random_normal(stddev=0.2, seed=1))
    return waiting(tf.tanh(tf.matmul(x, weights)), seconds, speed, name)


def waiting(x, seconds, speed, name):
    """`x`, after so many seconds for each of its rows at speed 1; its gradient comes after twice as many."""

    @tf.custom_gradient
    def identity(tensor):
        def gradient(upstream):
            return _wait(upstream, 2 * seconds, speed, name + "_backward")

        return _wait(tensor, seconds, speed, name + "_forward"), gradient

    return identity(x)


def _wait(tensor, seconds, speed, name):
    def wait(value):
        time.sleep(seconds / speed * len(value))
        return value

    waited = tf.py_func(wait, [tensor], tensor.dtype, stateful=False, name=name)  # stateless: may be computed twice
    waited.set_shape(tensor.shape)
    SECONDS[waited.op.get_attr("token")] = seconds
    return waited


def write_machine(path: str, speeds: Sequence[int], devices: int) -> None:
    """Writes a machine with so many devices of each speed, a worker's, in one node with shared memory.

    `WaitingProfile` reads the speeds from their names. Layers that wait take no cores from each other.
    """
    from epl.planner.machine import files, presets
    from epl.planner.machine.machine import LinkLevel, Machine, MachineNode

    cpu, link = presets.DEVICES["cpu"], presets.LINKS["shm"]
    kinds = {speed: cpu._replace(name=f"cpu-{speed}", shared_by=1) for speed in speeds}
    names = tuple(kinds[speed].name for speed in speeds for _ in range(devices))
    node = MachineNode(names, (LinkLevel(link.name, (tuple(range(len(names))),)),), "")
    with open(path, "w") as file:
        file.write(files.to_json(Machine("waiting", tuple(kinds.values()), (link,), (node,))))
