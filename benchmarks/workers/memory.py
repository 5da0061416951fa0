"""A training step of BERT for SQuAD, under whatever the environment asks of EPL, with what it holds.

Usage: memory.py LIBRARY OPTIMIZER STAGES LAYERS HIDDEN ROWS. OPTIMIZER is `adam`, that of TensorFlow, which updates in
place, or `adamw`, that of the example, which is made of plain ops. ROWS are those of the process. The output of every
layer is in the collection "checkpoints". Requests:

    {"steps": n, "warm_up": k}  the seconds that steps took
    {"bytes": true}             of a traced step: `persistent` and `peak` by device
    {"estimate": true}          `peak` by device as estimated, before anything has run

Variables are initialized before the first step. What that and a traced step leave to the allocator is given back: other
contenders are in memory at the same time.
"""

import ctypes
import sys
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks import control
from benchmarks.models import bert
from benchmarks.workers import libraries
from examples.bert import model
from examples.bert.optimizer import AdamWeightDecayOptimizer

# Of ops. One would leave the order of ops to the order in which they became ready: gradients wait until all are there.
THREADS = 2
_OPTIMIZERS = {"adam": tf.train.AdamOptimizer, "adamw": AdamWeightDecayOptimizer}


def main() -> None:
    """Builds one contender and serves the driver."""
    library, optimizer = libraries.load(sys.argv[1]), _OPTIMIZERS[sys.argv[2]]
    stages, layers, hidden, rows = (int(argument) for argument in sys.argv[3:7])
    tf.set_random_seed(7)
    sizes = bert.config(layers, hidden, heads=hidden // 64)
    loss, feed = _loss(sizes, [library.scope() for _ in range(stages)], rows, library.rank)
    train = optimizer(1e-4).minimize(loss)
    control.serve(library.rank, _answers(train, feed))


def _loss(sizes: bert.BertConfig, scopes: List[Any], rows: int, rank: int) -> Tuple[tf.Tensor, Dict[tf.Tensor, Any]]:
    """Returns the loss and what is fed to it; layers are dealt over the scopes."""
    tokens, mask, types = (tf.placeholder(tf.int32, [None, bert.SEQUENCE]) for _ in range(3))
    first, last = (tf.placeholder(tf.int32, [None]) for _ in range(2))
    logits = model.span_logits(sizes, model.Inputs(tokens, mask, types), scopes)
    for layer in range(sizes.num_hidden_layers):
        tf.add_to_collection("checkpoints", _last_output("bert/encoder/layer_%d/" % layer))
    with scopes[-1]:
        loss = model.span_loss(logits, (first, last))
    random = np.random.RandomState(rank)
    shape = [rows, bert.SEQUENCE]
    return loss, {
        tokens: random.randint(0, sizes.vocab_size, shape),
        mask: np.ones(shape, np.int32),
        types: np.zeros(shape, np.int32),
        first: random.randint(0, bert.SEQUENCE, rows),
        last: random.randint(0, bert.SEQUENCE, rows),
    }


def _last_output(scope: str) -> tf.Tensor:
    """Returns what the last op of a scope gives."""
    return [op for op in tf.get_default_graph().get_operations() if op.name.startswith(scope)][-1].outputs[0]


def _answers(train: tf.Operation, feed: Dict[tf.Tensor, Any]) -> Callable[[control.Message], control.Message]:
    sessions: List[tf.Session] = []

    def session() -> tf.Session:
        if not sessions:
            config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=THREADS)
            initialize = tf.global_variables_initializer()
            sessions.append(tf.Session(config=config))
            sessions[0].run(initialize)
            _give_back()
        return sessions[0]

    def answer(request: control.Message) -> control.Message:
        if "estimate" in request:
            return _estimate(train, feed)
        if "bytes" in request:
            return _bytes(session(), train, feed)
        running = session()
        return control.timed(lambda: running.run(train, feed), request["steps"], request["warm_up"])

    return answer


def _estimate(train: tf.Operation, feed: Dict[tf.Tensor, Any]) -> control.Message:
    from epl.profiler.memory_estimate import memory_estimate

    found = memory_estimate(train, feed, THREADS, advise=False)
    return {"peak": {_short(device.device): device.peak for device in found.devices}}


def _bytes(session: tf.Session, train: tf.Operation, feed: Dict[tf.Tensor, Any]) -> control.Message:
    from epl.profiler import memory, step_stats

    _, metadata = step_stats.run(session, train, feed)
    timelines = memory.timelines(metadata, session.graph)
    del metadata
    _give_back()
    return {
        "persistent": {_short(timeline.device): timeline.persistent for timeline in timelines},
        "peak": {_short(timeline.device): timeline.peak for timeline in timelines},
    }


def _give_back() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


if __name__ == "__main__":
    main()
