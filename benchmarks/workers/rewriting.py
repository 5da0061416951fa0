"""The CPU time of building a BERT training graph and of rewriting it, in one fresh process.

Usage: rewriting.py LIBRARY LAYERS. A request of any content is answered with CPU seconds and op counts. The number of
local devices comes from ``EPL_CLUSTER_NUM_VIRTUAL_DEVICES``. Nothing is run: no session, no memory for weights.
"""

import sys
import time

import tensorflow.compat.v1 as tf

from benchmarks import control
from benchmarks.models import bert
from benchmarks.workers import libraries
from examples.bert.optimizer import AdamWeightDecayOptimizer


def main() -> None:
    """Builds, rewrites and serves the result."""
    name, layers = sys.argv[1], int(sys.argv[2])
    library = libraries.load(name)
    graph = tf.get_default_graph()
    start = time.process_time()
    with library.scope():
        _build(bert.BASE._replace(num_hidden_layers=layers))
    reply: control.Message = {"build": time.process_time() - start, "ops": len(graph.get_operations())}
    if name == "epl":
        from epl.parallel import transform

        start = time.process_time()
        report = transform(graph)
        reply.update(
            rewrite=time.process_time() - start,
            added=sum(entry.ops_added for entry in report.passes),
            passes=[entry._asdict() for entry in report.passes],
        )
    control.serve(0, lambda request: reply)


def _build(sizes: bert.BertConfig) -> None:
    """Builds model, gradients, clipping and updates, as for one device."""
    integers, reals = (lambda width: tf.placeholder(tf.int32, [None, width])), tf.placeholder
    batch = bert.Batch(
        integers(bert.SEQUENCE),
        reals(tf.float32, [None, bert.SEQUENCE]),
        integers(bert.SEQUENCE),
        integers(20),
        integers(20),
    )
    loss = bert.masked_lm_loss(sizes, batch)
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    optimizer = AdamWeightDecayOptimizer(1e-4)
    optimizer.apply_gradients(list(zip(gradients, variables)), tf.train.get_or_create_global_step())
    tf.global_variables_initializer()


if __name__ == "__main__":
    main()
