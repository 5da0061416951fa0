"""Plans of real kernels whose steps are both simulated and run, on devices that are a core of this machine each.

python -m tests.planner.real_plans predict MODEL PLAN FOLDER    prints the seconds of the simulated step
python -m tests.planner.real_plans measure MODEL PLAN           prints the seconds of the steps that ran

The folder has the machine, machine.json, and gets the times of ops, ops.json. A device is a process that keeps to one
core, which the launcher gives it, and computes an op by one thread.
"""

import json
import os
import sys
import time
from typing import Callable, List, NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from tests.planner.recorded_script import recorded_graph, simulated_seconds

STEPS = 5
OP_SECONDS = 0.05  # for which each op is measured


class RealModel(NamedTuple):
    """A chain of layers that are alike.

    Attributes:
      layer: a function of a tensor and a number.
      layers: how many.
      shape: of a row of the data.
      rows: of the global batch.
    """

    layer: Callable[[tf.Tensor, int], tf.Tensor]
    layers: int
    shape: Tuple[int, ...]
    rows: int


class RealPlan(NamedTuple):
    """How a model is trained.

    Attributes:
      workers: processes of one device each.
      annotation: of each scope.
      stages: scopes, with equally many layers.
      config: keys of `epl.Config`.
    """

    workers: int
    annotation: str = "replicate(1)"
    stages: int = 1
    config: Tuple[Tuple[str, object], ...] = ()


def dense(x: tf.Tensor, number: int) -> tf.Tensor:
    """A dense layer that keeps the width."""
    return tf.layers.dense(x, x.shape[-1].value, tf.nn.relu, name=f"dense{number}")


def convolution(x: tf.Tensor, number: int) -> tf.Tensor:
    """A convolution of 3 x 3 that keeps the shape."""
    return tf.layers.conv2d(x, x.shape[-1].value, 3, padding="same", activation=tf.nn.relu, name=f"conv{number}")


def transformer(x: tf.Tensor, number: int) -> tf.Tensor:
    """Attention with heads of 64, and two dense layers; both with their residuals."""
    length, width = x.shape[1].value, x.shape[2].value
    heads = width // 64

    def project(flat: tf.Tensor, size: int, name: str, activation: object = None) -> tf.Tensor:
        return tf.layers.dense(flat, size, activation, name=f"{name}{number}")

    def head(name: str) -> tf.Tensor:
        return tf.transpose(tf.reshape(project(flat, width, name), [-1, length, heads, 64]), [0, 2, 1, 3])

    flat = tf.reshape(x, [-1, width])
    scores = tf.nn.softmax(tf.matmul(head("q"), head("k"), transpose_b=True) * 0.125)
    mixed = tf.reshape(tf.transpose(tf.matmul(scores, head("v")), [0, 2, 1, 3]), [-1, width])
    flat = flat + project(mixed, width, "out")
    flat = flat + project(project(flat, 4 * width, "wide", tf.nn.relu), width, "narrow")
    return tf.reshape(flat, [-1, length, width])


MODELS = {
    "dense": RealModel(dense, 8, (1024,), 256),
    "convolutions": RealModel(convolution, 6, (24, 24, 64), 16),
    "transformer": RealModel(transformer, 4, (64, 256), 16),
}
ONE = "one device"
PLANS = {
    ONE: RealPlan(1),
    "data parallel": RealPlan(2),
    "data parallel, gradient checkpoint": RealPlan(2, config=(("gradient_checkpoint.type", "auto"),)),
    "2 stages, 2 micro batches": RealPlan(2, stages=2, config=(("pipeline.num_micro_batch", 2),)),
    "2 stages, 8 micro batches": RealPlan(2, stages=2, config=(("pipeline.num_micro_batch", 8),)),
    "split": RealPlan(2, "split()"),
}


def build(model: RealModel, plan: RealPlan) -> Tuple[tf.Tensor, tf.Tensor, tf.Operation]:
    """Builds the model in the default graph: the placeholder of the rows, the loss, and the op that trains."""
    epl.init(epl.Config(dict(plan.config)))
    rows = tf.placeholder(tf.float32, (None, *model.shape), "rows")
    x = rows
    bounds = [stage * model.layers // plan.stages for stage in range(plan.stages + 1)]
    for stage in range(plan.stages):
        with eval(f"epl.{plan.annotation}", {"epl": epl}):
            for number in range(bounds[stage], bounds[stage + 1]):
                x = model.layer(x, number)
            if stage == plan.stages - 1:
                loss = tf.reduce_mean(tf.square(x))
    return rows, loss, tf.train.MomentumOptimizer(1e-4, 0.9).minimize(loss)


def train(model_name: str, plan_name: str, steps: int) -> List[float]:
    """Trains as one worker of the job; the seconds of each step that is timed, after two others."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model, plan = MODELS[model_name], PLANS[plan_name]
    rows, loss, train_op = build(model, plan)
    count = model.rows // (plan.workers if plan.stages == 1 else 1)  # worker 0 feeds the only replica of a pipeline
    batch = np.random.RandomState(0).rand(count, *model.shape).astype(np.float32)
    with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1)) as session:
        session.run(tf.global_variables_initializer())
        seconds = []
        for _ in range(steps + 2):
            began = time.perf_counter()
            session.run([loss, train_op], {rows: batch})
            seconds.append(time.perf_counter() - began)
    return seconds[2:]


def measure(model_name: str, plan_name: str) -> List[float]:
    """The seconds of steps of a job that trains."""
    from epl.launcher.run import run

    os.environ["EPL_CLUSTER_DEVICE_TYPE"] = "cpu"
    told = run(train, PLANS[plan_name].workers, 1, args=(model_name, plan_name, STEPS))
    return max([one for one in told if one is not None], key=sum)  # a worker that runs stages for others tells nothing


def predict(model_name: str, plan_name: str, folder: str) -> float:
    """The seconds of a simulated step, by measured times of its ops."""
    from epl.planner.profile.op_process import OpProcess
    from epl.planner.profile.op_profile import MEASURE, OpProfile
    from epl.planner.profile.op_timing import MeasuredDevice

    model, plan = MODELS[model_name], PLANS[plan_name]
    settings = {
        "cluster.device_type": "cpu",
        "cluster.num_virtual_devices": "1",
        "auto.rows": str(model.rows),
        "auto.machine": os.path.join(folder, "machine.json"),
    }
    one_thread = OpProcess(MeasuredDevice("/device:CPU:0", 1, 2e9), OP_SECONDS)
    times = os.path.join(folder, "ops.json")
    graph = recorded_graph(
        settings,
        plan.workers,
        lambda device: OpProfile(MEASURE, device, "one thread", times, one_thread),
        lambda: build(model, plan),
    )
    return simulated_seconds(graph)


if __name__ == "__main__":
    what = {"predict": predict, "measure": measure}[sys.argv[1]]
    print(json.dumps(what(*sys.argv[2:])))
