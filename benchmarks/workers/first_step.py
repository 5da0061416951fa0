"""The time from an empty graph to the end of the first training step, in one fresh process.

Usage: first_step.py LIBRARY MODEL LAYERS STAGES. A request of any content is answered with the CPU and wall seconds
of building the model and its training step, and of initializer and first step. Devices and features come from
``EPL_*`` variables. MODEL: "bert" (128 wide, 4 heads) or "dense" (64 wide); layers are dealt over the stages.
"""

import sys
import time
from typing import Any, Dict, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks import control
from benchmarks.models import bert
from benchmarks.workers import libraries
from examples.bert import model

_ROWS = 8
_WIDTH = 64


def main() -> None:
    """Builds, trains one step and serves the figures."""
    library = libraries.load(sys.argv[1])
    build = {"bert": _bert, "dense": _dense}[sys.argv[2]]
    layers, stages = int(sys.argv[3]), int(sys.argv[4])
    marks = [(time.process_time(), time.perf_counter())]
    loss, feed = build(layers, [library.scope() for _ in range(stages)])
    train_op = library.optimizer(tf.train.AdamOptimizer(1e-3)).minimize(loss)
    marks.append((time.process_time(), time.perf_counter()))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op, feed)
        marks.append((time.process_time(), time.perf_counter()))
    reply: control.Message = {}
    for name, before, after in zip(("build", "run"), marks, marks[1:]):
        reply[name], reply[name + "_wall"] = after[0] - before[0], after[1] - before[1]
    control.serve(0, lambda request: reply)


def _bert(layers: int, scopes: List[Any]) -> Tuple[tf.Tensor, Dict[tf.Tensor, np.ndarray]]:
    """The loss of BERT for SQuAD, and a batch."""
    sizes = bert.config(layers, 128, heads=4, vocabulary=bert.SMALL.vocab_size, dropout=0.0)
    tokens, mask, types = (tf.placeholder(tf.int32, [None, bert.SEQUENCE]) for _ in range(3))
    first, last = (tf.placeholder(tf.int32, [None]) for _ in range(2))
    logits = model.span_logits(sizes, model.Inputs(tokens, mask, types), scopes)
    with scopes[-1]:
        loss = model.span_loss(logits, (first, last))
    rows = np.ones([_ROWS, bert.SEQUENCE], np.int32)
    return loss, {tokens: rows, mask: rows, types: 0 * rows, first: rows[:, 0], last: rows[:, 0]}


def _dense(layers: int, scopes: List[Any]) -> Tuple[tf.Tensor, Dict[tf.Tensor, np.ndarray]]:
    """The loss of a chain of dense layers, and a batch."""
    x = hidden = tf.placeholder(tf.float32, [None, _WIDTH])
    for stage, scope in enumerate(scopes):
        with scope:
            for number in range(layers * stage // len(scopes), layers * (stage + 1) // len(scopes)):
                hidden = tf.layers.dense(hidden, _WIDTH, tf.nn.relu, name="dense_%d" % number)
            if stage + 1 == len(scopes):
                loss = tf.reduce_mean(tf.square(hidden))
    return loss, {x: np.ones([_ROWS, _WIDTH], np.float32)}


if __name__ == "__main__":
    main()
