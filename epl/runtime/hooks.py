"""The only module that replaces TensorFlow attributes.

| replaced | so that |
| --- | --- |
| Graph.__init__ | a new graph begins with the default strategy (an Estimator builds in its own) |
| gradients_util._GradientsHelper | calls of tf.gradients are recorded |
| gradients_util._DefaultGradYs | it is known where the backward pass begins |
| GradientTape.gradient | gradients that are not recorded get a warning |
| gradients_util._maybe_colocate_with | backward ops carry their forward op's TaskGraph |
| ControlFlowState.AddWhileContext | so do those of loops |
| GradLoopState.GetRealValue | no copies of weights in half precision are kept in loops |
| tf.nn.moments | those over the rows of a batch are known, or are of all rows |
| tf.assign | a variable in parts takes a whole value, as its method does |
| tf.nn.fused_batch_norm | its statistics of a batch may be of all rows |
| _VariableStore._get_single_variable | variables in parts are not shared as if they were whole |
| Optimizer.__init__ (TensorFlow's and Keras') | calls of apply_gradients are recorded, overridden ones too |
| Optimizer.apply, apply_gradients (Keras 3, newer Keras 2) | they are refused: EPL does not know their updates |
| convert_to_legacy_optimizer (newer Keras 2) | the same, where a model gets such an optimizer |
| Trainer.compile, fit, train_on_batch (Keras 3) | its models are refused: they train in functions of their own |
| Optimizer.get_slot (both) | the slot of a variable in parts is found by the user's variable |
| BaseSession.__init__, close | the session has the devices of the plan, those of other workers too; or it serves them |
| BaseSession._extend_graph | an annotated graph is rewritten before it runs first |
| BaseSession.run, _do_run, partial_run_setup | a run means what the user means |
| BaseSession.make_callable, _make_callable_from_options | the same |
| FileWriter.__init__ | the trial of a plan leaves no events |
| Saver.save | worker 0 writes checkpoints, and each worker the positions of its input |
| Saver.restore | each worker goes on at the positions of its own input |
| SavedModelBuilder.add_meta_graph, add_meta_graph_and_variables | parts of variables are in no saved model |
| Graph.as_graph_def | what is written or exported is the user's graph, which plain TensorFlow can import |
| MonitoredTrainingSession | every worker initializes its own session, and worker 0 alone writes |
| ChiefSessionCreator.create_session | the session begins with worker 0's values |
| WorkerSessionCreator.create_session | it is refused instead of waiting for ever |
| RunConfig.__init__ | an Estimator trains locally in each worker |
| Strategy.scope (tf.distribute) | it is refused on several devices: both would replicate the model |
| configure_callbacks (Keras) | callbacks of all workers decide by the same logs, and worker 0 alone writes |
| _TrainingExecutor.run_local | tf.estimator.train_and_evaluate has a result in every worker |

`install` is called by epl.init and does it once; `remove` takes everything back.
"""

import contextlib
import functools
from typing import Any, Callable, Iterator, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.taskgraph import TASKGRAPH_ATTR
from epl.parallel.amp import half_ops
from epl.parallel.batch_norm.fused import fused_batch_norm
from epl.parallel.batch_norm.moments import batch_moments
from epl.parallel.sharded_variables.variables import assigned, refuse_reuse
from epl.parallel.zero import model as zero
from epl.runtime import (
    foreign_training,
    keras_callbacks,
    monitored,
    positions,
    recorder,
    runs,
    saver,
    server,
    trial,
    xla_clustering,
)
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_installed: List[Tuple[Any, str, Any]] = []


def install(explain: Optional[Callable[[tf.Graph], None]] = None) -> None:
    """Replaces the attributes listed above; a second call does nothing.

    Args:
      explain: tells what a graph became, if the user asks for it; called once for a graph, before its first run.
    """
    if _installed:
        return
    runs.set_explain(explain)
    gradients_util = tf_compat.gradients_util_module
    _wrap(tf.Graph, "__init__", _graph_init)
    _wrap(gradients_util, "_GradientsHelper", _gradients)
    _wrap(gradients_util, "_DefaultGradYs", recorder.recorded_seeds)
    _wrap(tf.GradientTape, "gradient", recorder.recorded_tape)
    _wrap(gradients_util, "_maybe_colocate_with", _differentiate)
    _wrap(tf_compat.ControlFlowState, "AddWhileContext", _add_while_context)
    _wrap(tf_compat.GradLoopState, "GetRealValue", half_ops.weight_in_gradient_loop)
    _wrap(tf_compat.VariableStore, "_get_single_variable", _get_variable)
    for module in tf_compat.NN_MODULES:
        _wrap(module, "moments", batch_moments)
        _wrap(module, "fused_batch_norm", fused_batch_norm)
    for module in tf_compat.ASSIGN_MODULES:
        _wrap(module, "assign", assigned)
    for optimizer in (tf.train.Optimizer, *tf_compat.KERAS_OPTIMIZERS):
        _wrap(optimizer, "__init__", _optimizer_init)
        _wrap(optimizer, "get_slot", _get_slot)
    _refuse_unknown_keras()
    session = tf_compat.BaseSession
    _wrap(session, "__init__", _session_init)
    _wrap(session, "_extend_graph", _extend_graph)
    _wrap(session, "close", _close)
    _wrap(session, "run", _run)
    _wrap(session, "_do_run", _do_run)
    _wrap(session, "make_callable", _make_callable)
    _wrap(session, "_make_callable_from_options", _make_callable_from_options)
    _wrap(session, "partial_run_setup", _partial_run_setup)
    _wrap(tf.summary.FileWriter, "__init__", trial.summary_writer)
    _wrap(tf.train.Saver, "save", saver.save)
    _wrap(tf.train.Saver, "restore", _restore)
    for builder in tf_compat.SAVED_MODEL_BUILDERS:
        _wrap(builder, "add_meta_graph", saver.add_meta_graph)
        _wrap(builder, "add_meta_graph_and_variables", saver.add_meta_graph)
    _wrap(tf.Graph, "as_graph_def", saver.user_graph_def)
    for module in tf_compat.TRAIN_MODULES:
        _wrap(module, "MonitoredTrainingSession", monitored.training_session)
    _wrap(tf.train.ChiefSessionCreator, "create_session", _chief_session)
    _wrap(tf.train.WorkerSessionCreator, "create_session", _worker_session)
    for run_config in tf_compat.RUN_CONFIGS:
        _wrap(run_config, "__init__", monitored.run_config)
    for module in tf_compat.CALLBACK_MODULES:
        _wrap(module, "configure_callbacks", keras_callbacks.configure)
    for executor in tf_compat.TRAINING_EXECUTORS:
        _wrap(executor, "run_local", monitored.train_and_evaluate)
    _wrap(tf_compat.DISTRIBUTION_STRATEGY, "scope", _strategy_scope)


def _refuse_unknown_keras() -> None:
    """Replaces what trains in a Keras that EPL does not know, in modules that are imported."""
    replaced = {(owner, name) for owner, name, _ in _installed}
    for owner, name in tf_compat.unknown_keras():
        if (owner, name) not in replaced:
            _wrap(owner, name, _unknown_keras)


def remove() -> None:
    """Gives TensorFlow its attributes back."""
    while _installed:
        owner, name, original = _installed.pop()
        tf_compat.replace_function(owner, name, original)


def _wrap(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    original = tf_compat.function_of(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    _installed.append((owner, name, tf_compat.replace_function(owner, name, wrapper)))


def _original_run() -> Callable[..., Any]:
    """What `BaseSession._do_run` was before `install`; it takes feeds by tensor."""
    return tf_compat.feeds_by_reference(next(original for _, name, original in _installed if name == "_do_run"))


# ---- Recording


def _gradients(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _refuse_unknown_keras()  # a script may have imported them after epl.init
    return recorder.recorded_gradients(original, *args, **kwargs)


def _unknown_keras(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
    foreign_training.refuse_keras(owner)
    return original(owner, *args, **kwargs)


def _strategy_scope(original: Callable[..., Any], strategy: Any, *args: Any, **kwargs: Any) -> Any:
    foreign_training.refuse_strategy(strategy)
    return original(strategy, *args, **kwargs)


def _graph_init(original: Callable[..., None], graph: tf.Graph, *args: Any, **kwargs: Any) -> None:
    original(graph, *args, **kwargs)
    _refuse_unknown_keras()  # a model of Keras 3 makes graphs of functions before it is compiled
    if Env.get().is_ready and not tf_compat.is_function_graph(graph):
        Env.get().strategy_context.annotate(graph)


def _optimizer_init(original: Callable[..., None], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    original(optimizer, *args, **kwargs)
    if "apply_gradients" not in vars(optimizer):
        recorder.record_optimizer(optimizer)


def _get_variable(original: Callable[..., Any], store: Any, name: str, shape: Any = None, **kwargs: Any) -> Any:
    refuse_reuse(store._vars.get(name), shape)
    return original(store, name, shape=shape, **kwargs)


def _get_slot(original: Callable[..., Any], optimizer: Any, var: Any, *args: Any, **kwargs: Any) -> Any:
    return original(optimizer, zero.known_to_optimizers(var), *args, **kwargs)


@contextlib.contextmanager
def _differentiate(original: Callable[..., Any], op: tf.Operation, *args: Any, **kwargs: Any) -> Iterator[None]:
    with _taskgraph_of(op), original(op, *args, **kwargs):
        yield


def _add_while_context(original: Callable[..., Any], state: Any, op: tf.Operation, *args: Any, **kwargs: Any) -> Any:
    with _taskgraph_of(op):
        return original(state, op, *args, **kwargs)


@contextlib.contextmanager
def _taskgraph_of(op: tf.Operation) -> Iterator[None]:
    """Ops created inside belong to the TaskGraph of `op`."""
    if Graph.of(op.graph) is None:
        yield
        return
    try:
        mark = tf.AttrValue(i=op.get_attr(TASKGRAPH_ATTR))
    except ValueError:
        mark = None
    before = tf_compat.set_attr_scope(op.graph, TASKGRAPH_ATTR, mark)
    try:
        yield
    finally:
        tf_compat.set_attr_scope(op.graph, TASKGRAPH_ATTR, before)


# ---- Sessions


def _session_init(
    original: Callable[..., None], session: Any, target: Any = "", graph: Optional[tf.Graph] = None, config: Any = None
) -> None:
    env = Env.get()
    if not env.is_ready or env.cluster is None:
        original(session, target, graph, config)
        return
    session._session = None  # what BaseSession.__del__ asks for, if the rest fails
    if target:
        raise ValueError(
            "The session has the target {!r}: EPL trains in a local session of each worker. Leave the target out, "
            "and remove the tf.train.Server.".format(target)
        )
    graph = graph or tf.get_default_graph()
    with xla_clustering.left_out(graph, config):
        config = tf_compat.default_session_config() if config is None else config
        local = env.cluster.config_proto(config)
        connection = server.connect(graph, config)
        if connection is None:
            original(session, target, graph, local)
            return
        process_server, config = connection
        original(session, process_server.target, graph, config)
        process_server.adopt(session)


def _extend_graph(original: Callable[..., Any], session: Any) -> Any:
    runs.rewritten(session, _original_run)
    runs.place(session)
    if not hasattr(session, "_epl_shipped"):
        xla_clustering.warn_if_too_late(session)
    session._epl_shipped = tf_compat.last_op_id(session.graph)
    return server.guarded(session, lambda: "the sending of the graph", original, session)


def _close(original: Callable[..., None], session: Any) -> None:
    graph = Graph.of(session.graph)
    if graph is not None and graph.runner is not None:
        graph.runner.closing(session)
    server.close(original, session)


def _run(
    original: Callable[..., Any],
    session: Any,
    fetches: Any,
    feed_dict: Any = None,
    options: Any = None,
    run_metadata: Any = None,
) -> Any:
    runner = runs.rewritten(session, _original_run)
    if runner is not None and feed_dict:
        feed_dict = runner.feeds.cut_ahead(feed_dict)
    return original(session, fetches, feed_dict, options, run_metadata)


def _do_run(
    original: Callable[..., Any], session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, *args: Any
) -> Any:
    run = tf_compat.feeds_by_reference(original)
    return runs.run(run, session, handle, targets, fetches, tf_compat.feeds_by_tensor(feeds), *args)


def _make_callable(
    original: Callable[..., Any],
    session: Any,
    fetches: Any,
    feed_list: Optional[List[Any]] = None,
    accept_options: bool = False,
) -> Any:
    runs.refuse_unfollowed(session)
    if runs.rewritten(session, _original_run) is None and not runs.are_changed(session):
        return original(session, fetches, feed_list, accept_options)
    feed_list = list(feed_list or [])

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) != len(feed_list):
            raise TypeError(f"Expected {len(feed_list)} values, one for each of {feed_list}, got {len(args)}.")
        return session.run(fetches, dict(zip(feed_list, args)), **kwargs)

    return call


def _make_callable_from_options(original: Callable[..., Any], session: Any, callable_options: Any) -> Any:
    runs.refuse_unfollowed(session)
    runner = runs.rewritten(session, _original_run)
    if runner is None and not runs.are_changed(session):
        return original(session, callable_options)
    by_name = session.graph.get_tensor_by_name
    data = [by_name(connection.from_tensor) for connection in callable_options.tensor_connection]
    feeds = [*callable_options.feed, *[connection.to_tensor for connection in callable_options.tensor_connection]]
    fetches = list(callable_options.fetch)
    targets = list(callable_options.target)
    if runner is not None:
        runner.say_whose_metrics(fetches, targets, feeds)

    def call(*args: Any, **kwargs: Any) -> List[Any]:
        """Values of a dataset are read first, so that they are cut by rows as arrays are."""
        given = dict(kwargs, options=callable_options.run_options)
        read = functools.partial(session.run, data)
        values = runner.batch_of(read, fetches, targets, feeds) if data and runner is not None else read()
        return session.run((fetches, targets), dict(zip(feeds, [*args, *values])), **given)[0]

    return call


def _partial_run_setup(original: Callable[..., Any], session: Any, *args: Any, **kwargs: Any) -> Any:
    if runs.rewritten(session, _original_run) is not None:
        raise PlanError(
            "Session.partial_run cannot feed several replicas bit by bit. Use Session.run with all feeds at once."
        )
    return original(session, *args, **kwargs)


def _restore(original: Callable[..., None], saver_object: Any, session: Any, save_path: Any) -> None:
    if isinstance(session, tf_compat.BaseSession) and save_path is None:
        saver.refuse_no_path(session)
    if isinstance(session, tf_compat.BaseSession) and save_path is not None:
        runs.rewritten(session, _original_run)  # what is built late is in no comparison of graphs
        positions.restore(original, saver_object, session, save_path)
    else:
        original(saver_object, session, save_path)


# ---- Monitored sessions


def _chief_session(original: Callable[..., Any], creator: Any) -> Any:
    """Hooks of the session may read what only worker 0 has restored, such as the global step."""
    session = original(creator)
    runner = runs.rewritten(session, _original_run)
    if runner is not None:
        runner.begin(session, functools.partial(monitored.restore_parts, runner.rewrite.graph, creator, session))
    return session


def _worker_session(original: Callable[..., Any], creator: Any) -> Any:
    graph = Graph.get()
    if graph is not None and graph.taskgraphs:
        raise PlanError(
            "tf.train.WorkerSessionCreator waits for a chief in a session that all share; under EPL each worker "
            "has its own. Use tf.train.ChiefSessionCreator or tf.train.MonitoredTrainingSession in every worker."
        )
    return original(creator)
