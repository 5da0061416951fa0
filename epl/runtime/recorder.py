"""Records what the user builds: calls of tf.gradients and of apply_gradients, and where their gradients pass.

Each gradient of a variable is returned through an identity, the *boundary*. The plan may later give it another source
(the mean over replicas), and then everything that the user built from it computes with that.
"""

import contextlib
import functools
import inspect
import logging
import threading
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.colocation import separate_taskgraphs
from epl.ir.gradient import Boundary, Gradient
from epl.ir.gradient_boundary import boundary, returned_gradients, scaled, variable_name
from epl.ir.graph import ApplyCall, GradientCall, Graph, first_tensor
from epl.ir.inserted_ops import THE_USER, OpOrigin
from epl.ir.taskgraph import Phase
from epl.parallel import features, later_training
from epl.parallel.feature import Apply, ApplyRequest, Feature, GradientsRequest
from epl.parallel.plan import agreement
from epl.parallel.plan.stages import stage_devices
from epl.parallel.plan.strategy import Strategy, strategy_key
from epl.runtime import foreign_training
from epl.runtime.dependencies import behind_one_op
from epl.runtime.loss_reduction import say_who_divides
from epl.strategies import Replicate
from epl.utils import tf_compat
from epl.utils.containers import as_list
from epl.utils.errors import LayoutError, PlanError

logger = logging.getLogger("epl")
# What ops follow from that are made here.
_BOUNDARY = OpOrigin("replicas", "gradient boundaries")
_DENSE = OpOrigin("communication.sparse_as_dense", "dense gradients")
_OPTIMIZER = OpOrigin(THE_USER, "the optimizer")
# Of this thread: whether it is inside an optimizer's apply_gradients; seeds it made, and what is differentiated.
_inside = threading.local()


@behind_one_op(Phase.BACKWARD)
def recorded_gradients(original: Callable[..., List[Any]], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> List[Any]:
    """`tf.gradients`, recorded; `original` is TensorFlow's implementation."""
    _annotate(ys, xs)
    graph = _annotated_graph()
    if graph is None:
        foreign_training.note_gradients_in_function(as_list(xs))
    if graph is None or not later_training.is_recorded(graph):
        if graph is not None and later_training.has_parts(graph, map(variable_name, as_list(xs))):
            _refuse_planned(graph)  # TensorFlow finds no gradients of a variable in parts
        return original(ys, xs, *args, **kwargs)
    _note_virtual_devices(graph)
    arguments = dict(inspect.signature(original).bind(ys, xs, *args, **kwargs).arguments)
    request = GradientsRequest(ys, as_list(xs), arguments, getattr(_inside, "seeds", None) is None)
    asked = features.FEATURES if request.is_outermost else ()
    if request.is_outermost:
        say_who_divides(graph, ys)
    for feature in asked:
        with graph.inserted.following(feature.origin):
            request = feature.before_gradients(graph, request)
    request = request._replace(last_op=tf_compat.last_op_id(graph.tf_graph))
    with graph.phase(Phase.BACKWARD), _seeds_of_call(request) as seeds:
        gradients = original(**request.arguments)
        for feature in asked:
            with graph.inserted.following(feature.origin):
                gradients = feature.after_gradients(graph, request, gradients)
        if len(graph.taskgraphs) > 1:
            separate_taskgraphs(tf_compat.ops_since(graph.tf_graph, request.last_op))
        returned, boundaries = _through_boundaries(graph, request, gradients)
    objective = tuple(t for t in as_list(request.arguments["ys"]) if isinstance(t, tf.Tensor))
    graph.gradient_calls.append(GradientCall(objective, tuple(boundaries), tuple(seeds)))
    return returned


def _through_boundaries(
    graph: Graph, request: GradientsRequest, gradients: Sequence[Optional[Gradient]]
) -> Tuple[List[Optional[Gradient]], List[Boundary]]:
    """What is given back for each x; and the boundaries that the gradients of variables pass."""
    config = Env.get().config.communication
    returned: List[Optional[Gradient]] = []
    boundaries: List[Boundary] = []
    for x, gradient in zip(request.xs, gradients):
        name = variable_name(x)
        if gradient is not None:
            if name is not None and config.sparse_as_dense and config.clip_after_allreduce:
                with graph.inserted.following(_DENSE):
                    gradient = tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
            for feature in features.FEATURES:
                with graph.inserted.following(feature.origin):
                    gradient = feature.returned_gradient(graph, request, x, gradient)
            if name is not None:
                with graph.inserted.following(_BOUNDARY):
                    gradient = boundary(gradient)
                boundaries.append((name, gradient))
                for feature in features.FEATURES:
                    feature.note_gradient(graph, name, gradient)
        returned.append(gradient)
    return returned, boundaries


def recorded_seeds(original: Callable[..., List[Any]], *args: Any, **kwargs: Any) -> List[Any]:
    """TensorFlow's making of the gradients of the objective itself, recorded."""
    made = original(*args, **kwargs)
    seeds = getattr(_inside, "seeds", None)
    if seeds is not None:
        seeds += [first_tensor(seed) for seed in made if seed is not None]
    request: Optional[GradientsRequest] = getattr(_inside, "request", None)
    scale = None if request is None else request.seed_scale
    return made if scale is None else [None if seed is None else scaled(seed, scale) for seed in made]


def recorded_tape(original: Callable[..., Any], tape: tf.GradientTape, *args: Any, **kwargs: Any) -> Any:
    """`tf.GradientTape.gradient`: of its gradients it is known that they are some, not what they are gradients of."""
    if getattr(_inside, "seeds", None) is not None:  # within tf.gradients: of a custom gradient, for example
        return original(tape, *args, **kwargs)
    sources = inspect.signature(original).bind(tape, *args, **kwargs).arguments["sources"]
    foreign_training.refuse_tape_in_function(sources)
    graph = _annotated_graph()
    is_recorded = graph is not None and later_training.is_recorded(graph)
    if graph is not None and is_recorded and graph.says_first("tape"):
        logger.warning(
            "tf.GradientTape differentiates the model. If an optimizer gets these gradients: a loss that is fetched is "
            "that of one replica, what changes gradients before apply_gradients does so in each run and replica by "
            "itself, nothing is recomputed, and a pipeline is refused. Use tf.gradients, or minimize with a tensor."
        )
    with contextlib.nullcontext() if graph is None or not is_recorded else graph.phase(Phase.BACKWARD):
        gradients = original(tape, *args, **kwargs)
    foreign_training.note_tape(sources, gradients)
    return gradients


@contextlib.contextmanager
def _seeds_of_call(request: GradientsRequest) -> Iterator[List[tf.Tensor]]:
    """The seeds that this thread makes inside; calls of tf.gradients may nest, in custom gradients."""
    outer = getattr(_inside, "seeds", None), getattr(_inside, "request", None)
    _inside.seeds, _inside.request = [], request
    try:
        yield _inside.seeds
    finally:
        _inside.seeds, _inside.request = outer


@behind_one_op(Phase.APPLY)
def recorded_apply(original: Callable[..., Any], grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    """`Optimizer.apply_gradients`, recorded; `original` is the optimizer's own bound method."""
    foreign_training.refuse_apply_in_function()
    _refuse_unused_strategy()
    graph = _annotated_graph()
    if graph is None and agreement.is_imagined():
        _refuse_training_without_plan()
    if graph is None or getattr(_inside, "apply", False):
        return original(grads_and_vars, *args, **kwargs)
    _note_virtual_devices(graph)
    _refuse_planned(graph)

    def optimize(request: ApplyRequest) -> Any:
        with graph.inserted.following(_OPTIMIZER):
            return original(request.pairs, *request.args, **request.kwargs)

    around_optimizer = _chain([_following(one, one.around_optimizer) for one in features.FEATURES], graph, optimize)
    record = functools.partial(_recorded, graph, around_optimizer)
    around_apply = _chain([_following(one, one.around_apply) for one in features.FEATURES], graph, record)
    _inside.apply = True
    try:
        with graph.phase(Phase.APPLY):
            pairs, changed = _as_applied(graph, grads_and_vars)
            return around_apply(ApplyRequest(pairs, changed, args, kwargs))
    finally:
        _inside.apply = False


def _recorded(graph: Graph, apply: Apply, request: ApplyRequest) -> Any:
    """Applies gradients after boundaries, which are recorded."""
    boundaries = []
    pairs = list(request.pairs)
    for i, (gradient, variable) in enumerate(pairs):
        name = variable_name(variable)
        if gradient is not None and name is not None:
            with graph.inserted.following(_BOUNDARY):
                gradient = boundary(gradient)
            boundaries.append((name, gradient))
            pairs[i] = (gradient, variable)
    graph.apply_calls.append(ApplyCall(tuple(boundaries), request.changed))
    return apply(request._replace(pairs=pairs))


def _following(feature: Feature, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper whose own ops follow from what asks for its feature."""

    def call(graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        with graph.inserted.following(feature.origin):
            return wrapper(graph, request, apply=apply)

    return call


def _chain(wrappers: Sequence[Callable[..., Any]], graph: Graph, inner: Apply) -> Apply:
    """Calls the first wrapper, which calls the next, and so on to `inner`."""
    for wrapper in reversed(wrappers):
        inner = functools.partial(wrapper, graph, apply=inner)
    return inner


def _as_applied(graph: Graph, grads_and_vars: Any) -> Tuple[List[Any], bool]:
    """The pairs as the configuration wants them; and whether some gradient is another than tf.gradients returned."""
    sparse_as_dense = Env.get().config.communication.sparse_as_dense
    returned = returned_gradients(graph)
    changed = False
    pairs = []
    for gradient, variable in grads_and_vars:
        if gradient is not None and variable_name(variable) is not None:
            if not isinstance(gradient, tf.IndexedSlices):
                gradient = tf.convert_to_tensor(gradient)
            changed = changed or first_tensor(gradient).op.name not in returned
            if sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
                with graph.inserted.following(_DENSE):
                    gradient = tf.convert_to_tensor(gradient)
        pairs.append((gradient, variable))
    return pairs, changed


def _refuse_planned(graph: Graph) -> None:
    """Raises PlanError for a training step that the plan, made before, has no part in."""
    without = later_training.missing_words(graph)
    if without and graph.rewritten is not None:
        devices = len({device for stage in graph.rewritten.plan.stages for device in stage.devices})
        raise PlanError(
            "A training step was built after the graph was rewritten for {} devices by its first Session.run: what it "
            "adds would train {}. Only data parallelism without other features takes in such a step. Build the whole "
            "training step before the first run, or build it in a new tf.Graph: call epl.init again, or open one by "
            "`with tf.Graph().as_default():`.".format(devices, without[0])
        )


def _note_virtual_devices(graph: Graph) -> None:
    """Lets the cluster show the devices of the model as it is now; what does not fit is an error of the first run."""
    cluster = Env.get().cluster
    assert cluster is not None
    with contextlib.suppress(PlanError, LayoutError):
        stage_devices(graph.taskgraphs, cluster)


def record_optimizer(optimizer: Any) -> None:
    """Sees to it that `optimizer.apply_gradients` is recorded, whatever class overrides it."""
    optimizer.apply_gradients = functools.partial(recorded_apply, optimizer.apply_gradients)


def _annotated_graph() -> Optional[Graph]:
    """The Graph of the default tf.Graph if it is annotated.

    A model without annotation is one TaskGraph of `replicate(1)` where the configuration asks for something in
    training; else it is plain TensorFlow.
    """
    env = Env.get()
    tf_graph = tf.get_default_graph()
    if not env.is_ready or tf_compat.is_function_graph(tf_graph):
        return None
    graph = Graph.of(tf_graph, may_create=True)
    assert graph is not None
    if graph.taskgraphs:
        graph.refuse_earlier_model()
        return graph
    if env.config.auto.auto_parallel or strategy_key(env.config):
        return None  # annotated when it is first differentiated by variables
    asked_for = env.config.training_features()
    if asked_for:
        logger.info("The model has no annotation and %s is set: it is one TaskGraph of epl.replicate(1).", asked_for[0])
        graph.default_strategy = Replicate(1)
        graph.open_taskgraph(graph.default_strategy)
        return graph
    cluster = env.cluster
    assert cluster is not None
    if cluster.total_gpu_num > 1 and graph.says_first("unannotated"):
        logger.warning(
            "The model has no EPL annotation, and the configuration asks for nothing in training: it stays plain "
            "TensorFlow, so that %d worker(s) train as many separate models, each on one device of %d. Use "
            "epl.set_default_strategy(epl.replicate(1)), or `with epl.replicate(1):` around the model, before "
            "tf.gradients or minimize.", cluster.worker_num, cluster.gpu_num_per_worker,
        )  # fmt: skip
    return None


def _annotate(ys: Any, xs: Any) -> None:
    """Lets features annotate the model that is about to be differentiated."""
    if Env.get().is_ready and not tf_compat.is_function_graph(tf.get_default_graph()):
        for feature in features.FEATURES:
            feature.annotate(ys, as_list(xs))


def _refuse_unused_strategy() -> None:
    """A strategy is used where tf.gradients differentiates by variables: without that call it would be ignored."""
    env = Env.get()
    graph = Graph.of(tf.get_default_graph())
    key = strategy_key(env.config)
    if env.is_ready and key and (graph is None or graph.state_of(Strategy) is None):
        raise PlanError(
            "{} is {!r}, and apply_gradients got gradients of a model whose strategy was not used: no call "
            "of tf.gradients has differentiated it by its variables. Use tf.gradients, or minimize with a tensor, in "
            "place of tf.GradientTape or a function; or leave {} out.".format(key, env.config.get(key), key)
        )


def _refuse_training_without_plan() -> None:
    """`epl-plan` must not train, and stops scripts where EPL would change their model: never, without annotation."""
    if not Env.get().is_ready:
        raise PlanError(
            "The script trains a model and has not called epl.init, so that EPL has no part in it: import epl, and "
            "call epl.init() before the model is built."
        )
    raise PlanError(
        "The script trains a model without EPL annotation, and the configuration asks for nothing in training: it "
        "stays plain TensorFlow, and there is nothing to plan. Annotate it, by `with epl.replicate(1):` around the "
        "model, or let the planner decide: epl-plan --search."
    )
