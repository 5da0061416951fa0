"""What the workers of `make gpu-check` run."""

import os
import signal
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts.data import FEATURES, samples

_SIZES = (1, 7, 1000, 100_000)
_REDUCTIONS: Dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
}
_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8", "int8")
_OF_DTYPE = {"float16": 4e-3, "float32": 1e-6, "float64": 1e-14}

Case = Tuple[str, tf.Tensor, np.ndarray]


def _values(dtype: str, shape: Tuple[int, ...], rank: int) -> np.ndarray:
    """What a rank gives; small whole numbers, or floats between 0.5 and 1.5."""
    random = np.random.RandomState(1000 * rank + sum(shape))
    if np.dtype(dtype).kind == "f":
        return (random.rand(*shape) + 0.5).astype(dtype)
    return random.randint(0, 4, shape).astype(dtype)


def collectives(ctx: Context, **config: Any) -> None:
    """Runs every kind of collective over all ranks and dtypes; records what is wrong, and the number of cases."""
    from epl.cluster.cluster import Cluster
    from epl.env import Env
    from epl.ops.communicator import Communicator
    from epl.parallel.plan.agreement import meet
    from epl.planner.machine.collective_algorithms import transport_between

    ctx.init(**config)
    cluster = Env.get().cluster
    assert isinstance(cluster, Cluster)
    meet()
    ranks = ctx.workers
    to = Communicator(
        f"gpu check {time.time() if ranks == 1 else 0}", range(ranks), transport_between(cluster.device_type, False)
    )
    cases: List[Case] = []
    last: List[tf.Operation] = []
    with tf.device(cluster.local_device(0)):
        for dtype in _DTYPES:
            for size in _SIZES:
                with tf.control_dependencies(last):
                    found = _cases(to, ctx.worker, ranks, dtype, size)
                cases += found
                last = [tensor.op for _, tensor, _ in found]
    wrong = []
    with tf.Session(config=cluster.config_proto()) as sess:
        for _ in range(3):
            for (name, _, expected), got in zip(cases, sess.run([tensor for _, tensor, _ in cases])):
                allowed = _OF_DTYPE.get(expected.dtype.name, 0.0) * max(1.0, float(np.max(np.abs(expected), initial=0)))
                same = got.shape == expected.shape
                if not same or np.max(np.abs(got.astype("d") - expected.astype("d")), initial=0) > allowed:
                    wrong.append(name)
    ctx.record(wrong=sorted(set(wrong)), cases=len(cases), transport=to.transport)


def _cases(to: Any, rank: int, ranks: int, dtype: str, size: int) -> List[Case]:
    """One collective of each kind; they run in this order on every rank."""
    all_values = [_values(dtype, (size, ranks), one) for one in range(ranks)]
    own = tf.constant(all_values[rank])
    found: List[Case] = []
    label = f"{dtype} x {size * ranks}"

    def then(name: str, build: Callable[[str], tf.Tensor], expected: np.ndarray) -> None:
        with tf.control_dependencies([found[-1][1].op] if found else []):
            found.append((f"{name} {label}", build(f"{name} {label}"), expected.astype(dtype)))

    for reduction, reduce in _REDUCTIONS.items():
        then(
            f"all_reduce {reduction}",
            lambda key, op=reduction: to.all_reduce(own, rank, key, op),
            reduce(np.stack(all_values).astype("d" if np.dtype(dtype).kind == "f" else dtype), axis=0),
        )
    then("broadcast", lambda key: to.broadcast(own, rank, key, root=ranks - 1), all_values[-1])
    then(
        "all_gather",
        lambda key: to.all_gather(own[: size - rank % 2], rank, key),
        np.concatenate([values[: size - one % 2] for one, values in enumerate(all_values)]),
    )
    blocks = tf.transpose(own)  # a row for each rank
    whole = sum(np.transpose(values).astype("d") for values in all_values)
    then("reduce_scatter", lambda key: to.reduce_scatter(blocks, rank, key), whole[rank : rank + 1])
    exchanged = np.stack([np.transpose(values)[rank] for values in all_values])
    then("all_to_all", lambda key: to.all_to_all(blocks, rank, key), exchanged)
    return found


def killed(ctx: Context, **config: Any) -> None:
    """Trains; worker 1 kills itself after 3 steps. The others end with what they are told, and after how long."""
    ctx.init(**config)
    x, train_op, _ = _layers(layers=2, width=64)
    feed = {x: ctx.step_rows(samples().x, 0)}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(100):
            if step == 3 and ctx.worker == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            begin = time.perf_counter()
            try:
                sess.run(train_op, feed)
            except Exception as error:  # pylint: disable=broad-except; whatever it was, the test looks at its words
                seconds = time.perf_counter() - begin
                raise RuntimeError(f"told after {seconds:.2f} s: {str(error)[:300]}") from None


def step_time(ctx: Context, layers: int, width: int, steps: int, **config: Any) -> None:
    """Records the median time of a step in milliseconds."""
    ctx.init(**config)
    x, train_op, loss = _layers(layers, width)
    feed = {x: np.repeat(ctx.mine(samples().x), 16, axis=0)}
    times = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(steps):
            begin = time.perf_counter()
            sess.run([train_op, loss], feed)
            times.append(1000 * (time.perf_counter() - begin))
    ctx.record(ms=statistics.median(times[steps // 3 :]))


def _layers(layers: int, width: int) -> Tuple[tf.Tensor, tf.Operation, tf.Tensor]:
    """Dense layers on a placeholder: the placeholder, the training op, the loss."""
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    hidden = tf.layers.dense(x, width, tf.nn.tanh)
    for _ in range(layers):
        hidden = tf.layers.dense(hidden, width, tf.nn.tanh)
    loss = tf.reduce_mean(tf.square(hidden))
    return x, tf.train.AdamOptimizer(1e-3).minimize(loss), loss
