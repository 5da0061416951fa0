"""The CPU time of building BERT's training graph, plain and with pipeline stages, and of rewriting it, in one process.

Usage: pipeline_rewriting.py LAYERS HIDDEN STAGES. A request of any content is answered with CPU seconds, op counts and
the largest size of the process. Devices and micro batches come from ``EPL_CLUSTER_NUM_VIRTUAL_DEVICES`` and
``EPL_PIPELINE_NUM_MICRO_BATCH``. Nothing is run: no session, no memory for weights.
"""

import contextlib
import gc
import resource
import sys
import time
from typing import Any, List

import tensorflow.compat.v1 as tf

from benchmarks import control
from benchmarks.models import bert
from benchmarks.workers import libraries
from examples.bert import model
from examples.bert.optimizer import AdamWeightDecayOptimizer


def main() -> None:
    """Builds the plain graph, then the annotated one, rewrites it and serves the figures.

    All in one process, one right after the other: the load of the machine changes from minute to minute.
    """
    layers, hidden, stages = (int(argument) for argument in sys.argv[1:4])
    sizes = bert.config(layers, hidden, heads=hidden // 64)
    start = time.process_time()
    with tf.Graph().as_default():
        _build(sizes, [contextlib.ExitStack()])
    reply: control.Message = {"plain": time.process_time() - start}
    gc.collect()
    library = libraries.load("epl")
    graph = tf.get_default_graph()
    start = time.process_time()
    _build(sizes, [library.scope() for _ in range(stages)])
    reply.update(build=time.process_time() - start, ops=len(graph.get_operations()))
    from epl.parallel import transform

    start = time.process_time()
    report = transform(graph)
    reply.update(
        rewrite=time.process_time() - start,
        added=sum(entry.ops_added for entry in report.passes),
        passes=[entry._asdict() for entry in report.passes],
        gigabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2.0**20,
    )
    control.serve(0, lambda request: reply)


def _build(sizes: bert.BertConfig, scopes: List[Any]) -> None:
    """Builds model, gradients, clipping and updates, as for one device; encoder layers dealt over the scopes."""
    tokens, mask, types = (tf.placeholder(tf.int32, [None, bert.SEQUENCE]) for _ in range(3))
    first, last = (tf.placeholder(tf.int32, [None]) for _ in range(2))
    logits = model.span_logits(sizes, model.Inputs(tokens, mask, types), scopes)
    with scopes[-1]:
        loss = model.span_loss(logits, (first, last))
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    optimizer = AdamWeightDecayOptimizer(1e-4)
    optimizer.apply_gradients(list(zip(gradients, variables)), tf.train.get_or_create_global_step())


if __name__ == "__main__":
    main()
