"""The table of programs, and what several of them use."""

from typing import Any, Callable, Dict, Iterator, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context

Script = Callable[[Context], None]

PROGRAMS: Dict[str, Script] = {}
ROWS = STEPS * GLOBAL_BATCH


def program(function: Script) -> Script:
    """Puts a program in the table under its name."""
    PROGRAMS[function.__name__] = function
    return function


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Random numbers, the same on every run."""
    return np.random.RandomState(seed).normal(size=shape).astype(dtype)


def integers(below: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers from 0 to `below` - 1."""
    return np.random.RandomState(seed).randint(0, below, shape).astype(np.int32)


def fresh(scale: float = 0.3, seed: int = 3) -> Any:
    """An initializer whose values depend on nothing but the shape."""
    return tf.random_normal_initializer(stddev=scale, seed=seed)


def weights(name: str, *shape: int, **arguments: Any) -> tf.Variable:
    """A variable of random numbers."""
    return tf.get_variable(name, shape, initializer=fresh(), **arguments)


def state(name: str, *shape: int, value: float = 0.0) -> tf.Variable:
    """A variable that no optimizer trains."""
    return tf.get_variable(name, shape, initializer=tf.constant_initializer(value), trainable=False, use_resource=True)


def dense(x: tf.Tensor, units: int, name: str, activation: Optional[Callable[..., Any]] = None) -> tf.Tensor:
    """A layer on the last dimension."""
    return tf.layers.dense(x, units, activation, kernel_initializer=fresh(), name=name)


def feeds(ctx: Context, rows: Dict[tf.Tensor, np.ndarray], steps: Sequence[int] = range(STEPS)) -> Iterator[Any]:
    """What this process feeds in each step."""
    for step in steps:
        yield {tensor: ctx.step_rows(values, step) for tensor, values in rows.items()}


def train(ctx: Context, loss: tf.Tensor, train_op: Any, rows: Dict[tf.Tensor, np.ndarray]) -> None:
    """The loop of a script that does no more than to feed and to train."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for feed in feeds(ctx, rows):
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)
