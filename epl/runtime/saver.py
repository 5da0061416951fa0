"""Checkpoints and exported graphs are those of the single-device script: nothing of the plan is in them."""

import inspect
from typing import Any, Callable, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.runtime import positions
from epl.runtime.saver_builder import MemoryEfficientBuilder as MemoryEfficientBuilder
from epl.runtime.sharding_loader import ShardingLoader as ShardingLoader
from epl.utils import tf_compat
from epl.utils.errors import CheckpointError, PlanError


def save(original: Callable[..., Any], saver: Any, sess: Any, *args: Any, **kwargs: Any) -> Optional[str]:
    """`Saver.save`: worker 0 writes, if the model is replicated; others keep positions alone, and return None.

    Trials of plans write nothing.
    """
    if Env.get().trial is not None:
        return None
    graph = Graph.of(sess.graph)
    cluster = Env.get().cluster
    if graph is not None and graph.taskgraphs and cluster is not None and cluster.worker_index > 0:
        if positions.saves_positions(saver, sess.graph):
            given = inspect.signature(original).bind(saver, sess, *args, **kwargs).arguments
            positions.save(saver, sess, _checkpoint(sess, given["save_path"], given.get("global_step")))
        return None
    path: Optional[str] = original(saver, sess, *args, **kwargs)
    if path is not None:
        positions.save(saver, sess, path)
    return path


def refuse_no_path(sess: tf.Session) -> None:
    """Raises CheckpointError for `Saver.restore` of None where `Saver.save` returns None; else TensorFlow answers."""
    graph = Graph.of(sess.graph)
    cluster = Env.get().cluster
    if graph is not None and graph.taskgraphs and cluster is not None and cluster.worker_index > 0:
        raise CheckpointError(
            "Saver.restore got None in worker {}: Saver.save writes in worker 0, and returns its path there alone. Let "
            "the script make the path, `saver.save(sess, name)`, and restore `name` in all workers, at the earliest "
            "after the training step that follows the save: only then is worker 0 sure to have written it.".format(
                cluster.worker_index
            )
        )


def _checkpoint(sess: tf.Session, path: str, step: Any) -> str:
    """The path of a checkpoint, as `Saver.save` makes it."""
    if step is None:
        return path
    return f"{path}-{step if isinstance(step, (int, np.integer)) else tf.train.global_step(sess, step)}"


def add_meta_graph(original: Callable[..., None], builder: Any, *args: Any, **kwargs: Any) -> None:
    """What gives a saved model a graph.

    Raises:
      PlanError: the graph computes with parts of variables, and with the collectives that exchange them.
    """
    session = kwargs.get("sess", args[0] if args else None)
    graph = Graph.of(session.graph if isinstance(session, tf_compat.BaseSession) else tf.get_default_graph())
    sharded = None if graph is None else graph.state_of(ShardedVariables)
    if sharded is not None:
        raise PlanError(
            "A saved model was asked for of the graph that is trained with {}: it has parts of variables and what "
            "exchanges them, which plain TensorFlow cannot load. Write a checkpoint, build the model in a tf.Graph of "
            "its own without tf.gradients or minimize, restore the checkpoint there and save that; "
            "Estimator.export_saved_model does so.".format(next(iter(sharded.owners)))
        )
    original(builder, *args, **kwargs)


def user_graph_def(
    original: Callable[..., tf.GraphDef],
    tf_graph: tf.Graph,
    from_version: Optional[int] = None,
    add_shapes: bool = False,
    **how: Any,
) -> tf.GraphDef:
    """`Graph.as_graph_def`: of a rewritten graph, what the user built, so that plain TensorFlow can import it.

    EPL_DUMP_GRAPH writes the graph that runs.
    """
    graph = Graph.of(tf_graph)
    rewrite: Optional[RewriteContext] = None if graph is None else graph.rewritten
    if rewrite is None or not rewrite.added or from_version is not None:
        result = original(tf_graph, from_version, add_shapes, **how)
        if graph is not None and graph.device_placement is not None:
            for node in result.node:
                node.device = graph.device_placement.user_device(node)
        return result
    everything = tf_compat.full_graph_def(tf_graph)
    result = tf.GraphDef()
    result.versions.CopyFrom(everything.versions)
    library = everything.library
    result.library.function.extend(f for f in library.function if f.signature.name not in rewrite.added_functions)
    result.library.gradient.extend(g for g in library.gradient if g.function_name not in rewrite.added_functions)
    for node in everything.node:
        if node.name in rewrite.added:
            continue
        copy = result.node.add()
        copy.CopyFrom(rewrite.user_nodes.get(node.name, node))
        copy.device = rewrite.user_devices.get(node.name, copy.device)
        if add_shapes:
            shapes = [t.shape.as_proto() for t in tf_graph.get_operation_by_name(node.name).outputs]
            if shapes:
                copy.attr["_output_shapes"].list.shape.extend(shapes)
    return result
