"""A training step of a small BERT, the same script for plain TensorFlow, Horovod, MirroredStrategy and EPL.

Usage: training.py LIBRARY MICRO_BATCH LAYERS HIDDEN [DEVICES [default] [sparse]]. The process has one intra-op thread
and an inter-op thread for each device, with `default` as many as TensorFlow takes by itself; with `sparse` the gradient
of the tied table stays IndexedSlices. Requests: ``{"steps": n, "warm_up": k}`` runs steps and answers with the seconds
they took and the loss of the last one.
"""

import sys
import zlib
from typing import Any, Callable, Dict, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks import control
from benchmarks.models import bert
from benchmarks.workers import libraries

_DISTINCT_BATCHES = 8
_PREDICTIONS = 20


def main() -> None:
    """Builds the model, initializes it and serves the driver."""
    micro_batch, layers, hidden, *devices = (int(argument) for argument in sys.argv[2:6])
    library = libraries.load(sys.argv[1], *devices)
    sizes = bert.config(layers, hidden, heads=4, vocabulary=bert.SMALL.vocab_size, dropout=0.0)
    tf.set_random_seed(7)
    loss, train = _build(library, sizes, micro_batch)
    initialize = tf.global_variables_initializer()
    then = library.after_initialization()
    config = tf.ConfigProto(device_count={"CPU": library.devices})
    if "default" not in sys.argv[5:]:
        config.intra_op_parallelism_threads, config.inter_op_parallelism_threads = 1, library.devices
    session = tf.Session(config=config)
    session.run(initialize)
    session.run(then)
    state: Dict[str, float] = {}

    def step() -> None:
        state["loss"], _ = session.run([loss, train])

    def answer(request: control.Message) -> control.Message:
        reply = control.timed(step, request["steps"], request["warm_up"])
        reply["loss"] = float(state["loss"])
        return reply

    control.serve(library.rank, answer)


def _build(library: libraries.Library, sizes: bert.BertConfig, micro_batch: int) -> Tuple[tf.Tensor, tf.Operation]:
    """Returns the loss and the training op; written as for one device."""

    def step(batch: bert.Batch) -> Tuple[tf.Tensor, tf.Operation]:
        with tf.variable_scope("", custom_getter=_seeded):
            loss = bert.masked_lm_loss(sizes, batch)
        optimizer = library.optimizer(tf.train.AdamOptimizer(1e-4))
        # Densified for all alike, so that every contender applies the same dense update to the tied embedding table.
        dense = (lambda gradient: gradient) if "sparse" in sys.argv[5:] else tf.convert_to_tensor
        gradients = [
            (dense(gradient), variable)
            for gradient, variable in optimizer.compute_gradients(loss)
            if gradient is not None
        ]
        return loss, optimizer.apply_gradients(gradients)

    return library.build(step, _input(sizes, micro_batch, library.rank))


def _seeded(getter: Callable[..., tf.Variable], name: str, **arguments: Any) -> tf.Variable:
    """Makes a variable whose initial value follows from its name; TensorFlow's own seeds count the ops before it."""
    if hasattr(arguments["initializer"], "seed"):
        arguments["initializer"].seed = zlib.crc32(name.encode())
    return getter(name, **arguments)


def _input(sizes: bert.BertConfig, micro_batch: int, rank: int) -> tf.data.Dataset:
    """Returns batches of synthetic text; every rank has its own."""
    random = np.random.RandomState(rank)
    shape = [_DISTINCT_BATCHES, micro_batch, bert.SEQUENCE]
    tokens = random.randint(0, sizes.vocab_size, shape).astype(np.int32)
    positions = random.randint(0, bert.SEQUENCE, [_DISTINCT_BATCHES, micro_batch, _PREDICTIONS]).astype(np.int32)
    arrays = bert.Batch(
        tokens,
        np.ones(shape, np.float32),
        np.zeros(shape, np.int32),
        positions,
        np.take_along_axis(tokens, positions, axis=2),
    )
    return tf.data.Dataset.from_tensor_slices(arrays).repeat()


if __name__ == "__main__":
    main()
