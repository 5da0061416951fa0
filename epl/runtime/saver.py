"""Checkpoints are those of the single-device script: written by worker 0, and without anything of the plan in them."""

from typing import Any, Callable, Optional, Set

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.rewrite import PLAN_SCOPE, REPLICA_PREFIX, Rewrite

_ADDED = (PLAN_SCOPE + "/", REPLICA_PREFIX.split("{")[0])


def save(original: Callable[..., Any], saver: Any, *args: Any, **kwargs: Any) -> Optional[str]:
    """`Saver.save`: on other workers than 0 it does nothing and returns None, if the model is replicated."""
    graph = Graph.get()
    cluster = Env.get().cluster
    if graph is not None and graph.taskgraphs and cluster is not None and cluster.worker_index > 0:
        return None
    return original(saver, *args, **kwargs)


def export_meta_graph(original: Callable[..., Any], saver: Any, *args: Any, **kwargs: Any) -> Any:
    """`Saver.export_meta_graph` of the graph as the user built it, so that plain TensorFlow can import it."""
    return original(saver, *args, **kwargs)


def added_names(rewrite: Rewrite) -> Set[str]:
    """Names of the ops that the rewriting added."""
    return {node.name for node in rewrite.tf_graph.as_graph_def().node if node.name.startswith(_ADDED)}


def user_graph_def(rewrite: Rewrite) -> tf.GraphDef:
    """The GraphDef of the graph as the user built it: without what was added, with the edges that were replaced."""
    graph_def = rewrite.tf_graph.as_graph_def(add_shapes=True)
    result = tf.GraphDef()
    result.versions.CopyFrom(graph_def.versions)
    result.library.CopyFrom(graph_def.library)
    return result
