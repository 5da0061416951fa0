"""EPL in the process of the test: one worker with virtual CPU devices, small models, and looks into what was built.

What needs several workers is tested by tests/parity and tests/behaviour, in processes of their own.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.ops.job import Job
from epl.parallel import transformation
from epl.runtime import hooks
from epl.utils import tf_compat


@pytest.fixture
def init() -> Iterator[Callable[..., None]]:
    """`init(devices, annotate, section__key=value)`: a fresh graph and epl.init; taken back afterwards."""

    def call(devices: int = 2, annotate: bool = True, **config: Any) -> None:
        values = {key.replace("__", "."): value for key, value in config.items()}  # type: Dict[str, Any]
        values.update({"cluster.device_type": "cpu", "cluster.num_virtual_devices": devices})
        values.setdefault("communication.timeout", 30)
        tf.reset_default_graph()
        epl.init(epl.Config(values))
        tf.get_default_graph()  # TensorFlow makes it when it is first asked for
        if annotate:
            epl.set_default_strategy(epl.replicate(1))

    tf.reset_default_graph()
    yield call
    hooks.remove()
    Env.get().reset()
    job = Job.current()
    if job is not None:
        job.stop()
    tf.reset_default_graph()


@contextlib.contextmanager
def plain_graph() -> Iterator[tf.Graph]:
    """A new graph that stays plain TensorFlow, whatever the configuration asks of models without annotation."""
    env = Env.get()
    before, env.is_ready = env.is_ready, False
    try:
        with tf.Graph().as_default() as graph:
            yield graph
    finally:
        env.is_ready = before


class Linear:
    """Least squares on placeholders x [None, 3] and y [None, 1], with one weight `name` of ones."""

    def __init__(self, name: str = "w", resource: bool = False, optimizer: Any = None) -> None:
        self.x = tf.placeholder(tf.float32, [None, 3], "x")
        self.y = tf.placeholder(tf.float32, [None, 1], "y")
        self.w = tf.get_variable(name, [3, 1], initializer=tf.ones_initializer(), use_resource=resource)
        self.out = tf.matmul(self.x, self.w, name="out")
        self.loss = tf.reduce_mean(tf.square(self.out - self.y), name="loss")
        self.optimizer = optimizer or tf.train.GradientDescentOptimizer(0.1)

    def minimize(self) -> tf.Operation:
        """The training op."""
        self.train_op = self.optimizer.minimize(self.loss)
        return self.train_op

    def feed(self, rows: int = 8, seed: int = 0) -> Dict[tf.Tensor, np.ndarray]:
        """Random rows."""
        random = np.random.RandomState(seed)
        return {self.x: random.randn(rows, 3).astype("f"), self.y: random.randn(rows, 1).astype("f")}


def counting_loop() -> tf.Tensor:
    """A loop of three turns, each of which adds one to the variable "count"."""
    count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False, use_resource=True)

    def body(i: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([count.assign_add(1.0)]):
            return i + 1

    return tf.while_loop(lambda i: i < 3, body, [0])


def rewritten() -> Any:
    """Rewrites the default graph; its RewriteContext."""
    transformation.transform()
    return Graph.get().rewritten


def value(sess: tf.Session, name: str) -> np.ndarray:
    """The value of the variable with this op name, in whichever replica."""
    op = sess.graph.get_operation_by_name(name)
    if op.type != "VarHandleOp":
        return sess.run(op.outputs[0])
    dtype = tf.as_dtype(op.get_attr("dtype"))
    return sess.run(tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=dtype))


def replicas_equal(sess: tf.Session, *names: str) -> bool:
    """Whether replica 1 holds what replica 0 holds."""
    return all(np.array_equal(value(sess, name), value(sess, "EPL_REPLICA_1/" + name)) for name in names)


def marks(attr: str, ops: List[tf.Operation]) -> List[Any]:
    """The attribute of each op, None where it has none."""
    nodes = {node.name: node for node in tf_compat.full_graph_def(ops[0].graph).node} if ops else {}
    found = []
    for op in ops:
        attrs = nodes[op.name].attr
        found.append(None if attr not in attrs else attrs[attr].s.decode() or attrs[attr].i)
    return found


def error_text(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """ "Type: message" of what the call raises; "" if nothing."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
