"""The public functions: epl.init, the default strategy, the output collections."""

import logging
import numbers
import os
from typing import Any, Dict, List, Optional, Sequence, Union

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.ir.graph import Graph, GraphKeys
from epl.parallel.plan.row_shares import asked_for, ranks_without_rows, rows_for_all, share_out
from epl.parallel.plan.strategy import Strategy
from epl.profiler import explanation_report
from epl.runtime import foreign_training, hooks
from epl.strategies import Replicate
from epl.strategies.context import StrategyContext
from epl.utils import graph_mode, tf_compat
from epl.utils.errors import AnnotationError, ConfigError, PlanError
from epl.utils.lost_output import tolerate_full_disk

logger = logging.getLogger("epl")


def init(config: Optional[Config] = None) -> None:
    """Sets EPL up: configuration, devices, the list of the other processes, the hooks into TensorFlow.

    It needs no other process: the processes connect at the first session that trains (with `epl.split` or `zero.level`
    where the model is differentiated).

    Called again it starts anew: annotations and plans of all graphs are forgotten, and so is what the default graph
    has, unless a `with graph.as_default()` is open: the next model is built in an empty graph.

    Args:
      config: the configuration; None means defaults and environment. It is frozen: to change it, make a new one and
        call `epl.init` again.

    Raises:
      GraphModeError: TensorFlow executes eagerly, or with other behaviour of TensorFlow 2.
      TypeError: `config` is not an epl.Config.
      ConfigError: the file of `auto.explain` could not be written.
      ClusterError: TF_CONFIG is incomplete, or srun or mpirun has started several tasks and nothing joins them.
      JobSecretError: there are several workers, and the job's secret cannot be used.
    """
    graph_mode.require()
    if Env.get().inits == 0:
        graph_mode.warn_of_keras()
    config = Config() if config is None else config
    if not isinstance(config, Config):
        raise TypeError(f"epl.init expected an epl.Config, got {type(config).__name__}: epl.init(epl.Config({{...}})).")
    config.forget_decisions()
    config.freeze()
    tolerate_full_disk()
    env = Env.get()
    env.reset()
    if env.inits > 0:
        _begin_new_graph()
    layout = "all" if config.cluster.colocate_split_and_replicate else None
    cluster = Cluster(layout=layout, config=config)
    _refuse_missing_folder(config, cluster)
    env.init(config, cluster, StrategyContext())
    env.find_strategy = _find_strategy
    foreign_training.refuse_current_strategy()
    hooks.install(_tell_at_first_run)


def _tell_at_first_run(tf_graph: tf.Graph) -> None:
    """Tells what a graph became, as EPL_EXPLAIN and `auto.explain` ask."""
    explanation_report.print_at_first_run(tf_graph)
    if Env.get().config.auto.explain:
        from epl.planner.report.job_report import tell_at_first_run

        tell_at_first_run(tf_graph)


def _refuse_missing_folder(config: Config, cluster: Cluster) -> None:
    """Raises ConfigError if worker 0 could not write the file of `auto.explain`."""
    path = config.auto.explain
    if cluster.worker_index or path in ("", "text"):
        return
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK) or os.path.isdir(path):
        why = "there is no such folder" if not os.path.isdir(folder) else "nothing can be written there"
        raise ConfigError(
            f"auto.explain is {path!r}, a file in {folder}, and {why}: make the folder, or name another file."
        )


def _find_strategy(graph: Graph, ys: Any, xs: Sequence[Any]) -> Strategy:
    """The planner, which is loaded when a configuration asks for it."""
    from epl.planner.search.decision import find_strategy

    return find_strategy(graph, ys, xs)


def _begin_new_graph() -> None:
    """Gives the next model an empty default graph, as a cell of a notebook that runs again needs it."""
    if tf_compat.default_graph_is_chosen() or not tf_compat.last_op_id(tf.get_default_graph()):
        return
    tf.reset_default_graph()
    if Env.get().says_first("new graph"):
        logger.warning(
            "epl.init was called again: the default graph is a new one (tf.reset_default_graph), and what was built "
            "before cannot be part of the next model. To keep a graph over several epl.init, open it by "
            "`with graph.as_default():`. This is said once."
        )


def set_default_strategy(strategy: Replicate) -> None:
    """Makes `strategy` that of all ops outside an explicit scope. Each call begins a new TaskGraph.

    Args:
      strategy: an `epl.replicate(...)`.

    Raises:
      AnnotationError: before `epl.init`, or not a `replicate`.
      NestingError: inside a strategy scope.
    """
    if not isinstance(strategy, Replicate):
        raise AnnotationError(
            "Only replicate is supported as default strategy now, got {!r}: "
            "epl.set_default_strategy(epl.replicate(1)).".format(strategy)
        )
    env = Env.get()
    if not env.is_ready:
        raise AnnotationError("epl.set_default_strategy was called before epl.init(). Call epl.init() first.")
    env.strategy_context.set_default(strategy)


def explain(fetches: Any = None, feed_dict: Optional[Dict[Any, Any]] = None) -> None:
    """Prints what EPL makes of the model in the default graph: TaskGraphs, memory, schedule, communication, features.

    Nothing is run. A graph that did not run yet is rewritten, as its first `Session.run` would do; in a job of several
    workers each of them makes the call then, and worker 0 prints.

    Args:
      fetches: the training op; by default what `minimize` or `apply_gradients` made.
      feed_dict: what would be fed: tensor -> an array, or a tf.TensorShape in its place. A batch that stays open counts
        as 32.

    Raises:
      AnnotationError: the graph has no annotated model, or it has no gradients.
      PlanError: the graph cannot be rewritten as asked.
      FeedError: the feeds cannot be divided among replicas and micro batches.
    """
    explanation_report.print_explanation(fetches, feed_dict)


def add_to_collection(tensor_or_list: Union[tf.Tensor, Sequence[tf.Tensor]], graph_key: str) -> None:
    """Has the fetched value of tensors merged over micro batches and replicas, as `graph_key` says.

    Args:
      tensor_or_list: a tensor or a list of them; the list is not changed.
      graph_key: one of `epl.GraphKeys`. `WHOLE_INPUTS` does what `epl.keep_whole` does.

    Raises:
      KeyError: unknown key.
      ValueError: not a tensor, or a tensor that is in another collection already.
    """
    if graph_key == GraphKeys.WHOLE_INPUTS:
        keep_whole(tensor_or_list)
        return
    tensors = list(tensor_or_list) if isinstance(tensor_or_list, (list, tuple)) else [tensor_or_list]
    for tensor in tensors:
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(f"Expected tf.Tensor in epl.add_to_collection, got {tensor!r}.")
    graph = Graph.get(may_create=True)
    assert graph is not None
    graph.add_to_collection(tensors, graph_key)


def keep_whole(tensor_or_list: Any) -> None:
    """Has every replica and micro batch get all of what comes into the model by a tensor: it holds no rows of a batch.

    Without it, what is fed is cut by rows (docs/data_parallelism.md, "What is fed"), unless the graph shows that the
    first dimension counts no rows. Call it before the first `Session.run`.

    Args:
      tensor_or_list: a tf.Tensor or tf.SparseTensor, or a nested structure of them: placeholders, for example.

    Raises:
      ValueError: something else.
    """
    tensors = tf.nest.flatten(tensor_or_list, expand_composites=True)
    for tensor in tensors:
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(f"Expected tf.Tensor or tf.SparseTensor in epl.keep_whole, got {tensor!r}.")
    graph = Graph.get(may_create=True)
    assert graph is not None
    graph.keep_whole(tensors)


def local_rows(global_rows: int) -> int:
    """The rows of this worker, all its replicas together, out of the rows of all replicas of the job.

    With proportions in `auto.balance` each worker has the rows of its replicas, by the largest remainder; otherwise all
    workers have as many, and the first ones one more where they do not divide evenly. A script that calls it makes its
    batches by itself: EPL changes no batch size of the input pipeline, and the devices of a worker divide what it
    reads. Call it after `epl.init`; no model is needed. Not for proportions with stages of a replica on several
    workers.

    Args:
      global_rows: rows of a batch of the whole job.

    Returns:
      Rows of the batch that this worker reads or feeds.

    Raises:
      AnnotationError: before `epl.init`.
      TypeError: `global_rows` is not an integer.
      PlanError: a replica would have no row, or the proportions do not belong to as many replicas on each worker; or
        `auto.balance` is "speed", and the model is not differentiated yet.
    """
    env = Env.get()
    if not env.is_ready or env.cluster is None:
        raise AnnotationError("epl.local_rows was called before epl.init(). Call epl.init() first.")
    given: Any = global_rows
    if isinstance(given, bool) or not isinstance(given, numbers.Integral):
        raise TypeError(f"epl.local_rows expected an integer, the rows of all replicas, got {given!r}.")
    workers = env.cluster.worker_num
    if env.config.auto.balance == "speed":
        raise PlanError(
            'auto.balance is "speed", and EPL shares out the rows when the model is first differentiated by its '
            "variables. Call epl.local_rows after that, as for batches that are fed, or set proportions such as "
            '"5:3:1".'
        )
    shares = asked_for(env.config) or (1,) * workers
    if len(shares) % workers:
        raise PlanError(
            'auto.balance is "{}", proportions for {} replica(s), and the job has {} workers: epl.local_rows needs as '
            "many replicas on each worker. Share out the rows in the script.".format(
                env.config.auto.balance, len(shares), workers
            )
        )
    rows = share_out(max(int(global_rows), 0), shares)
    if ranks_without_rows(rows):
        raise PlanError(
            "epl.local_rows({}) shares out {} row(s) in the proportions {}, and {} of them would get none. {} rows are "
            "enough for all.".format(
                global_rows,
                global_rows,
                ":".join(map(str, shares)),
                len(ranks_without_rows(rows)),
                rows_for_all(shares),
            )
        )
    env.asked_local_rows = True
    own = len(shares) // workers
    return sum(rows[env.cluster.worker_index * own : (env.cluster.worker_index + 1) * own])


def get_collection(graph_key: str) -> List[tf.Tensor]:
    """The tensors of a collection of the default graph, in the order in which they were added.

    Raises:
      KeyError: unknown key.
    """
    graph = Graph.get()
    if graph_key == GraphKeys.WHOLE_INPUTS:
        return [] if graph is None else list(graph.whole_inputs)
    if graph_key not in GraphKeys.ALL_COLLECTION_KEYS:
        raise KeyError(f"Unknown collection {graph_key!r}; the keys are {GraphKeys.ALL_COLLECTION_KEYS}.")
    return [] if graph is None else graph.get_collection(graph_key)


def get_all_collections() -> List[List[tf.Tensor]]:
    """The tensors of all collections, in the order of `GraphKeys.ALL_COLLECTION_KEYS`."""
    return [get_collection(key) for key in GraphKeys.ALL_COLLECTION_KEYS]
