"""How much memory a training step will take on each device: a function and a hook, before the step runs.

`epl/profiler/estimate` makes the estimate. Here a step is one `Session.run`: fetches and feeds have the meaning that
they have for the session.
"""

import logging
import math
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.amp import gradients as amp
from epl.profiler.estimate import what_if
from epl.profiler.estimate.estimate import MemoryEstimate, StepEstimate, StepGraph, estimate, prepare
from epl.profiler.estimate.report import describe
from epl.runtime.feeds import FeedSharing
from epl.runtime.run_plan import RunPlanner
from epl.utils import tf_compat

logger = logging.getLogger("epl")

Shapes = Dict[str, Tuple[int, ...]]


class PreparedRun(NamedTuple):
    """What a `Session.run` would do.

    Attributes:
      graph: the graph that runs.
      step: its program.
      ops: names of the ops that are asked for, those of other replicas included.
      fed: name of a tensor that is fed -> shape of the value.
    """

    graph: StepGraph
    step: StepEstimate
    ops: List[str]
    fed: Shapes


class MemoryEstimateHook(tf.train.SessionRunHook):
    """Logs the estimate before the first run of a session (log `epl`, level INFO)."""

    def __init__(self) -> None:
        """The estimate is for the fetches and feeds of that run."""
        self.estimate: Optional[MemoryEstimate] = None

    def before_run(self, run_context: Any) -> None:
        """Estimates once."""
        if self.estimate is None:
            asked = run_context.original_args
            with run_context.session.graph.as_default():
                self.estimate = memory_estimate(asked.fetches, asked.feed_dict)
            logger.info("%s", describe(self.estimate))


def memory_estimate(
    fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None, threads: Optional[int] = None, advise: bool = True
) -> MemoryEstimate:
    """Estimates the memory of a run of the default graph on each device of this process; runs nothing.

    An annotated graph is rewritten for all devices first, as its first `Session.run` would do. Show the result with
    `epl.profiler.estimate.report.describe`.

    Args:
      fetches: what would be fetched: ops and tensors, in any nesting; the training op for a training step.
      feed_dict: what would be fed: tensor -> an array, or a tf.TensorShape in its place.
      threads: inter-op threads of the session; by default as many as there are cores, as in TensorFlow.
      advise: also look for changes of the configuration that would lower the peak; takes about three times as long.

    Raises:
      PlanError: the graph cannot be rewritten as asked.
      FeedError: the feeds cannot be divided among replicas and micro batches.
    """
    run = prepare_run(fetches, feed_dict, threads)
    found = estimate(run.graph, run.step)
    if not advise:
        return found
    return found._replace(changes=what_if.changes(run.graph, run.step, found, run.ops, run.fed))


def prepare_run(fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None, threads: Optional[int] = None) -> PreparedRun:
    """What a run of the default graph would do, the input of an estimate; arguments and errors as `memory_estimate`."""
    tf_graph = tf.get_default_graph()
    transformation.transform(tf_graph)
    elements = [tf_graph.as_graph_element(item) for item in tf.nest.flatten(fetches) if item is not None]
    feeds = _of_built(tf_graph, _arrays(tf_graph, feed_dict or {}))
    names, fed = _step(tf_graph, elements, feeds)
    graph = StepGraph(tf_graph)
    return PreparedRun(graph, prepare(graph, names, fed, threads or os.cpu_count() or 1), names, fed)


def _arrays(tf_graph: tf.Graph, feed_dict: Dict[Any, Any]) -> Dict[Any, Any]:
    """Arrays of the shapes that are fed; those for shapes take no memory."""
    arrays = {}
    for key, value in feed_dict.items():
        if isinstance(value, tf.TensorShape):
            tensor = tf_graph.as_graph_element(key, allow_operation=False)
            value = np.broadcast_to(np.zeros([], tensor.dtype.as_numpy_dtype), value.as_list())
        arrays[key] = value
    return arrays


def _of_built(tf_graph: tf.Graph, arrays: Dict[Any, Any]) -> Dict[Any, Any]:
    """The rows of the replicas that are built, where a plan builds one of those that are alike."""
    graph = Graph.of(tf_graph)
    rewrite = None if graph is None else graph.rewritten
    if rewrite is None or rewrite.local_replicas == rewrite.process_replicas:
        return arrays
    part = rewrite.local_replicas / rewrite.process_replicas
    whole = {tensor.name for tensor in rewrite.graph.whole_inputs}

    def is_cut(key: Any) -> bool:
        if isinstance(key, tf.SparseTensor):
            return False
        tensor = tf_graph.as_graph_element(key, allow_operation=False)
        return tensor.name not in whole and bool(tensor.shape.ndims) and tensor.shape.as_list()[0] is None

    return {key: value[: math.ceil(len(value) * part)] if is_cut(key) else value for key, value in arrays.items()}


def _step(tf_graph: tf.Graph, elements: Sequence[Any], feed_dict: Dict[Any, Any]) -> Tuple[List[str], Shapes]:
    """Names of the ops that run, those of other replicas included, and the shapes that are fed to each placeholder."""
    graph = Graph.of(tf_graph)
    rewrite = None if graph is None else graph.rewritten
    targets = [item for item in elements if isinstance(item, tf.Operation)]
    fetches = [item for item in elements if not isinstance(item, tf.Operation)]
    if graph is not None:
        fetches = amp.fetched(graph, fetches, _by_tensor(tf_graph, feed_dict))
    if rewrite is not None and not rewrite.runs_as_it_is:
        sharing = FeedSharing(rewrite)
        feeds = _by_tensor(tf_graph, sharing.cut_ahead(feed_dict))
        step = RunPlanner(rewrite).plan_run(fetches, targets, feeds)
        if step.shares_feeds:
            feeds = sharing.share(feeds, step.unneeded)
        elif step.repeats_feeds:
            feeds = sharing.repeat(feeds)
        feeds.update(dict.fromkeys(step.barriers, np.asarray(True)))
        targets, fetches = list(step.targets), list(step.fetches)
    else:
        feeds = _by_tensor(tf_graph, feed_dict)
    names = list(dict.fromkeys([op.name for op in targets] + [tensor.op.name for tensor in fetches]))
    return names, {tensor.name: np.shape(value) for tensor, value in feeds.items()}


def _by_tensor(tf_graph: tf.Graph, feed_dict: Dict[Any, Any]) -> Dict[tf.Tensor, Any]:
    return {
        tf_graph.as_graph_element(key, allow_operation=False): value
        for key, value in tf_compat.flatten_feeds(feed_dict)
    }
