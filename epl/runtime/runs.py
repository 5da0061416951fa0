"""What becomes of one Session.run: the graph is rewritten first, then features and the plan say what runs.

Session.run -> RunRequest -> rewrite_run of each feature -> around_run of each -> RunPlan -> TensorFlow's own run
               fetches       other tensors, in the           checks           which replicas,
               targets       types that were asked for                        what is fed
               feeds
"""

import functools
import threading
from typing import Any, Callable, List, Optional

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph, first_tensor
from epl.parallel import features, inference, later_training, transformation
from epl.parallel.feature import RunRequest
from epl.parallel.plan import agreement
from epl.parallel.sharded_variables.checkpoints import Checkpoints
from epl.runtime import foreign_training, server
from epl.runtime.session import GraphRunner
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.slow import told_when_slow

_FIRST_NAMES = 3  # of what a run fetches, in messages
_transform_lock = threading.RLock()  # of sessions in several threads, one rewrites the graph

_Explain = Callable[[tf.Graph], None]
_explain: List[_Explain] = []  # one or none
_FIRST_RUN = "first run"  # what `Graph.says_first` calls it


def set_explain(explain: Optional[_Explain]) -> None:
    """Sets what tells the plan of a graph before its first run."""
    _explain[:] = [] if explain is None else [explain]


def rewritten(session: Any, original_run: Callable[[], Callable[..., Any]]) -> Optional[GraphRunner]:
    """Rewrites the session's graph if that is due; the runner of a graph whose runs are changed, else None.

    What was built after the rewriting gets what it needs of shards here: before anything asks what a run needs.

    Args:
      session: the session.
      original_run: gives TensorFlow's own `BaseSession._do_run`.
    """
    graph = Graph.of(session.graph)
    if graph is None:
        return None
    if transformation.needs_transform(graph):
        with _transform_lock:
            if transformation.needs_transform(graph):
                _refuse_shipped(session, graph)
                cluster = Env.get().cluster
                worker = 0 if cluster is None else cluster.worker_index
                with told_when_slow("rewriting the graph, together with all workers", worker):
                    transformation.transform(session.graph)
    if later_training.needs_rewriting(graph):
        with _transform_lock:
            later_training.rewrite_again(session)
    rewrite = graph.rewritten
    if rewrite is not None and graph.says_first(_FIRST_RUN):
        for explain in _explain:
            explain(session.graph)
    if rewrite is None or rewrite.runs_as_it_is:
        return None
    checkpoints = graph.state_of(Checkpoints)
    if checkpoints is not None:
        checkpoints.extend()
    if graph.runner is None:
        if rewrite.spans_processes and not server.is_connected(session) and not agreement.is_imagined():
            agreement.refuse_local_session()
        graph.runner = GraphRunner(rewrite, functools.partial(_guarded, original_run()))
    graph.runner.refuse_fork()
    return graph.runner


def refuse_unfollowed(session: Any, wanted: Optional[List[Any]] = None) -> None:
    """Raises PlanError for a run, of anything by default, that trains what EPL cannot follow."""
    graph = Graph.of(session.graph)
    if graph is not None:
        foreign_training.refuse_unfollowed(graph, wanted)


def _refuse_shipped(session: Any, graph: Graph) -> None:
    """The rewriting changes gradients and what applies them; a session does not see changes of ops that it has."""
    shipped = getattr(session, "_epl_shipped", 0)
    for call in list(graph.gradient_calls) + list(graph.apply_calls):
        for name, gradient in call.boundaries:
            tensor = first_tensor(gradient)
            if tf_compat.op_id(tensor.op) <= shipped:
                raise PlanError(
                    "The session ran before the graph could be rewritten for {} (its gradient {!r} is in it already). "
                    "Build the whole training step first, or open a new session.".format(name, tensor.name)
                )


def place(session: Any) -> None:
    """A graph without gradients is placed by stage, before the session gets its ops."""
    graph, env = Graph.of(session.graph), Env.get()
    if graph is not None and env.is_ready and env.cluster is not None:
        inference.place(
            graph,
            env.cluster,
            env.config,
            lambda device: any(one.name.endswith(device) for one in session.list_devices()),
        )


def run(
    do_run: Callable[..., Any],
    session: Any,
    handle: Any,
    targets: Any,
    fetches: Any,
    feeds: Any,
    options: Any,
    metadata: Any,
) -> Any:
    """Runs what a session was asked for; `do_run` is TensorFlow's own `BaseSession._do_run`."""
    refuse_unfollowed(session, [*fetches, *targets])
    runner = rewritten(session, lambda: do_run)

    def execute(request: RunRequest) -> List[Any]:
        if runner is None:
            own = request.targets, request.fetches, request.feeds
            return _guarded(do_run, session, handle, *own, options, metadata)
        return runner.run(session, request.targets, request.fetches, request.feeds, options, metadata)

    def read(tensors: Any) -> List[Any]:
        if runner is not None:
            runner.take_values_of_rank_0(session)
        return _guarded(do_run, session, handle, [], tensors, {}, None, None)

    request = RunRequest(session, list(fetches), list(targets), feeds, read)
    graph, trial = Graph.of(session.graph), Env.get().trial
    if graph is None:
        return execute(request)
    step = functools.partial(features.run, graph, request, execute)
    return step() if trial is None else trial.run(graph, [*fetches, *targets], step)


def are_changed(session: Any) -> bool:
    """Whether a feature looks at the runs of a session, also where one replica on one device runs as it is."""
    graph = Graph.of(session.graph)
    return graph is not None and any(feature.changes_runs(graph) for feature in features.FEATURES)


def _guarded(do_run: Callable[..., Any], session: Any, handle: Any, targets: Any, fetches: Any, *args: Any) -> Any:
    def what() -> str:
        names = [one.name for one in [*targets, *fetches]]
        return "Session.run of {}{}".format(", ".join(names[:_FIRST_NAMES]), ", ..." if names[_FIRST_NAMES:] else "")

    return server.guarded(session, what, do_run, session, handle, targets, fetches, *args)
