"""Every op that EPL adds follows from a decision, and every op of the user has a line of the script."""

import contextlib
import os

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR
from epl.parallel import transformation
from epl.profiler.origins import describe_origins, find_origins
from epl.utils import tf_compat
from tests.parallel.in_process import plain_graph


def _dense(scope=None, scope_after=None):
    """A model of four layers and an embedding; what scopes there are is the caller's."""
    x = tf.placeholder(tf.float32, [None, 8], "x")
    words = tf.placeholder(tf.int32, [None], "words")
    with scope() if scope else contextlib.ExitStack():
        table = tf.get_variable("table", [16, 8])
        hidden = x + tf.nn.embedding_lookup(table, words)
        for _ in range(2):
            hidden = tf.layers.dense(hidden, 8, tf.tanh)
    with scope_after() if scope_after else contextlib.ExitStack():
        for _ in range(2):
            hidden = tf.layers.dense(hidden, 8, tf.tanh)
        loss = tf.reduce_mean(tf.square(hidden))
    optimizer = tf.train.AdamOptimizer(0.01)
    pairs = optimizer.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
    optimizer.apply_gradients(list(zip(clipped, [variable for _, variable in pairs])))
    return loss


def _split_after():
    return _dense(scope_after=lambda: epl.split(2))


def _stages():
    return _dense(lambda: epl.replicate(1), lambda: epl.replicate(1))


def _simple():
    """Without a norm of all gradients, which accumulation and dropped weights do not go with."""
    x = tf.placeholder(tf.float32, [None, 8], "x")
    hidden = x
    for _ in range(6):
        hidden = tf.layers.dense(hidden, 8, tf.tanh)
    loss = tf.reduce_mean(tf.square(hidden))
    tf.train.AdamOptimizer(0.01).minimize(loss)
    return loss


PLAIN = "plain"  # names of the model's ops are those of plain TensorFlow
CASES = {
    "data parallel": (_dense, {}, {"replicas"}, PLAIN),
    "dense gradients": (_dense, {"communication__sparse_as_dense": True}, {"communication.sparse_as_dense"}, ""),
    "clip after": (_dense, {"communication__clip_after_allreduce": True}, {"replicas"}, PLAIN),
    "ZeRO v0": (_dense, {"zero__level": "v0"}, {"zero.level"}, ""),
    "ZeRO v1": (_dense, {"zero__level": "v1"}, {"zero.level"}, ""),
    "ZeRO v2": (_simple, {"zero__level": "v2"}, {"zero.level"}, ""),
    "checkpoint": (_simple, {"gradient_checkpoint__type": "auto"}, {"gradient_checkpoint.type"}, PLAIN),
    "mixed precision": (_simple, {"amp__level": "O1"}, {"amp.level"}, ""),
    "accumulation": (_simple, {"pipeline__num_micro_batch": 2}, {"pipeline.num_micro_batch"}, ""),
    "groups": (_simple, {"optimizer__num_apply_group": 2}, {"optimizer.num_apply_group"}, PLAIN),
    "offload": (_simple, {"offload__level": "v0"}, {"offload.level"}, PLAIN),
    "pipeline": (_stages, {"pipeline__num_micro_batch": 4}, {"pipeline.num_micro_batch"}, PLAIN),
    "uneven rows": (_simple, {"auto__balance": "3:1"}, {"replicas"}, PLAIN),
    "split": (_split_after, {"cluster__colocate_split_and_replicate": True}, {"epl.split"}, ""),
    "many": (
        _simple,
        {"zero__level": "v1", "amp__level": "O1", "pipeline__num_micro_batch": 2},
        {"zero.level", "amp.level", "pipeline.num_micro_batch", "replicas"},
        "",
    ),
}


@pytest.mark.parametrize("build, config, decisions, names", CASES.values(), ids=CASES)
def test_every_op_has_an_origin(init, build, config, decisions, names):
    annotate = build in (_dense, _simple)
    init(4 if build is _stages else 2, annotate=annotate, **config)
    if build is _split_after:
        epl.set_default_strategy(epl.replicate(1))
    build()
    transformation.transform()
    graph = Graph.get()
    of_decisions = graph.inserted.by_name()
    assert graph.rewritten.added <= of_decisions.keys()
    found = find_origins(graph)
    own = tf_compat.op_names(graph.tf_graph) - of_decisions.keys()
    assert decisions <= {one.decision for one in found.inserted}
    assert sum(one.ops for one in found.inserted) == len(of_decisions) and found.user_ops == len(own)
    assert found.located >= 0.95 * found.user_ops
    with plain_graph() as plain:
        _plain_twin(build)
    known = tf_compat.op_names(plain)
    others = own - known
    if names == PLAIN:
        assert others == set()
    for name in others:  # made by TensorFlow, which differentiates or applies what was replaced
        assert PHASE_ATTR in graph.tf_graph.get_operation_by_name(name).node_def.attr, name
    assert not known & of_decisions.keys() or names != PLAIN


def _plain_twin(build):
    return (_simple if build is _simple else _dense)()


def test_lines_of_taskgraphs_are_those_of_the_script(init):
    init(4, annotate=False, pipeline__num_micro_batch=4)
    _stages()
    transformation.transform()
    found = find_origins(Graph.get())
    assert {os.path.basename(one.file) for one in found.sources} == {"test_origins.py"}
    first, second = found.sources
    assert (first.taskgraph, second.taskgraph) == (0, 1) and first.first < second.first
    lines = describe_origins(found)
    assert any(line.startswith("TaskGraph 0: ") and "test_origins.py:" in line for line in lines)
    assert any(" ops for pipeline.num_micro_batch: clone_micro_batches " in line for line in lines)
