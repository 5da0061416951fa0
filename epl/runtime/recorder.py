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
from epl.ir.gradient_boundary import boundary, returned_gradients, variable_name
from epl.ir.graph import ApplyCall, GradientCall, Graph, first_tensor
from epl.ir.taskgraph import Phase
from epl.parallel.accumulation import apply as accumulation
from epl.parallel.amp import gradients as amp
from epl.parallel.amp import loss_scale
from epl.parallel.auto_partition.annotate import partition_model
from epl.parallel.plan.stages import stage_devices
from epl.parallel.sharded_variables.slots import watched_slots
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.parallel.split import model as split_model
from epl.parallel.zero import model as zero_model
from epl.runtime.dependencies import behind_one_op
from epl.runtime.loss_reduction import say_who_divides
from epl.strategies import Replicate
from epl.utils import tf_compat
from epl.utils.containers import map_items
from epl.utils.errors import LayoutError, PlanError

logger = logging.getLogger("epl")
# Of this thread: whether it is inside an optimizer's apply_gradients; seeds it made, and what is differentiated.
_inside = threading.local()


@behind_one_op(Phase.BACKWARD)
def recorded_gradients(original: Callable[..., List[Any]], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> List[Any]:
    """`tf.gradients`, recorded; `original` is TensorFlow's implementation."""
    _partition(ys, xs)
    graph = _annotated_graph()
    if graph is None or graph.plan is not None:
        return original(ys, xs, *args, **kwargs)
    _note_virtual_devices(graph)
    mixed, of_user = None, ys
    is_outermost = getattr(_inside, "seeds", None) is None  # not within a gradient
    if is_outermost:
        say_who_divides(graph, ys)
        with graph.building_parts():
            ys, xs = split_model.lower(graph, ys, xs)
        arguments = inspect.signature(original).bind(ys, xs, *args, **kwargs).arguments
        _refuse_stops_in_split(graph, arguments.get("stop_gradients"))
        with split_model.building(graph):
            mixed = amp.begin(graph, arguments)
    with graph.phase(Phase.BACKWARD), _seeds_of_call(mixed) as seeds:
        before = tf_compat.last_op_id(graph.tf_graph)
        if mixed is None:
            gradients = original(ys, xs, *args, **kwargs)
        else:
            ys, gradients = mixed.ys, amp.finish(graph, mixed, original(**mixed.arguments))
        if len(graph.taskgraphs) > 1:
            separate_taskgraphs(tf_compat.ops_since(graph.tf_graph, before))
        config = Env.get().config.communication
        objective = tuple(t for t in _as_list(ys) if isinstance(t, tf.Tensor))
        names = [variable_name(x) for x in _as_list(xs)]
        boundaries = []
        returned = []
        for name, x, gradient in zip(names, _as_list(xs), gradients):
            if name is not None and gradient is not None:
                if isinstance(gradient, tf.IndexedSlices) and config.sparse_as_dense and config.clip_after_allreduce:
                    gradient = tf.convert_to_tensor(gradient)
                if graph.split is not None:
                    gradient = graph.split.reduced(name, gradient)
                gradient = boundary(gradient)
                boundaries.append((name, gradient))
                if graph.split is not None:
                    graph.split.note_gradient(name, gradient)
            elif gradient is not None and graph.split is not None and is_outermost:
                gradient = graph.split.by_tensor(of_user, x, gradient)
            returned.append(gradient)
    graph.gradient_calls.append(GradientCall(objective, tuple(boundaries), tuple(seeds)))
    return returned


def recorded_seeds(original: Callable[..., List[Any]], *args: Any, **kwargs: Any) -> List[Any]:
    """TensorFlow's making of the gradients of the objective itself, recorded."""
    made = original(*args, **kwargs)
    seeds = getattr(_inside, "seeds", None)
    if seeds is not None:
        seeds += [first_tensor(seed) for seed in made if seed is not None]
    return amp.scaled(getattr(_inside, "mixed", None), made)


def recorded_tape(original: Callable[..., Any], tape: tf.GradientTape, *args: Any, **kwargs: Any) -> Any:
    """`tf.GradientTape.gradient`: of its gradients it is known that they are some, not what they are gradients of."""
    within_gradients = getattr(_inside, "seeds", None) is not None  # of a custom gradient, for example
    graph = None if within_gradients else _annotated_graph()
    if graph is None or graph.plan is not None:
        return original(tape, *args, **kwargs)
    if "tape" not in graph.parallel_information:
        graph.parallel_information["tape"] = True
        logger.warning(
            "tf.GradientTape differentiates the model. If an optimizer gets these gradients: a loss that is fetched is "
            "that of one replica, what changes gradients before apply_gradients does so in each run and replica by "
            "itself, nothing is recomputed, and a pipeline is refused. Use tf.gradients, or minimize with a tensor."
        )
    with graph.phase(Phase.BACKWARD):
        return original(tape, *args, **kwargs)


@contextlib.contextmanager
def _seeds_of_call(mixed: Optional[amp.Differentiation]) -> Iterator[List[tf.Tensor]]:
    """The seeds that this thread makes inside; calls of tf.gradients may nest, in custom gradients."""
    outer = getattr(_inside, "seeds", None), getattr(_inside, "mixed", None)
    _inside.seeds, _inside.mixed = [], mixed
    try:
        yield _inside.seeds
    finally:
        _inside.seeds, _inside.mixed = outer


@behind_one_op(Phase.APPLY)
def recorded_apply(original: Callable[..., Any], grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    """`Optimizer.apply_gradients`, recorded; `original` is the optimizer's own bound method."""
    _refuse_function_body()
    graph = _annotated_graph()
    if graph is None or getattr(_inside, "apply", False):
        return original(grads_and_vars, *args, **kwargs)
    _note_virtual_devices(graph)
    steps = accumulation.steps_of(graph)
    _refuse_planned(graph, steps.count)
    _inside.apply = True
    try:
        with graph.phase(Phase.APPLY):
            pairs, changed = _as_applied(graph, grads_and_vars)
            with graph.building_parts():
                zero_model.hold_parts(graph, pairs)

            def apply(pairs: List[Any]) -> Any:
                boundaries = []
                for i, (gradient, variable) in enumerate(pairs):
                    name = variable_name(variable)
                    if gradient is not None and name is not None:
                        gradient = boundary(gradient)
                        boundaries.append((name, gradient))
                        pairs[i] = (gradient, variable)
                graph.apply_calls.append(ApplyCall(tuple(boundaries), changed))
                with graph.building_parts():
                    pairs = zero_model.as_parts(graph, pairs)
                rest, named = args, kwargs
                if graph.zero is not None:
                    rest, named = map_items(zero_model.known_to_optimizers, (args, kwargs))
                sharded = graph.state_of(ShardedVariables)
                if sharded is None:
                    return loss_scale.apply_if_finite(graph, pairs, lambda: original(pairs, *rest, **named))
                with watched_slots() as made:
                    applied = loss_scale.apply_if_finite(graph, pairs, lambda: original(pairs, *rest, **named))
                with graph.building_parts():
                    sharded.adopt_updates(made)
                return applied

            pairs = loss_scale.mark_overflow(graph, pairs, changed)
            if steps.count == 1 or all(gradient is None for gradient, _ in pairs):
                return apply(pairs)
            return accumulation.accumulated_apply(graph, pairs, changed, steps, apply)
    finally:
        _inside.apply = False


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
                gradient = tf.convert_to_tensor(gradient)
        pairs.append((gradient, variable))
    return pairs, changed


def _refuse_planned(graph: Graph, steps: int) -> None:
    """Raises PlanError for a training step that the plan, made before, has no part in."""
    if graph.plan is None:
        return
    config = Env.get().config
    missing = [
        (not graph.plan.is_plain, "replica 0 alone"),
        (steps > 1, "without accumulation"),
        (config.optimizer.num_apply_group > 1, "without groups of updates"),
        (bool(config.gradient_checkpoint.type), "without recomputation"),
        (bool(config.amp.level), "in float32"),
    ]
    without = [words for is_missing, words in missing if is_missing]
    if without:
        devices = len({device for stage in graph.plan.plan.stages for device in stage.devices})
        raise PlanError(
            "apply_gradients was called after the graph was rewritten for {} devices by its first Session.run: what it "
            "adds would train {}. Build the whole training step before the first run, or build it in a new tf.Graph: "
            "call epl.init again, or open one by `with tf.Graph().as_default():`.".format(devices, without[0])
        )


def _refuse_earlier_model(graph: Graph) -> None:
    """Raises PlanError for a model beside one that was rewritten before `epl.init` was called again.

    Its replicas and collectives would be taken for ops of the user.
    """
    if graph.was_trained_before_init:
        raise PlanError(
            "The tf.Graph has a model that was trained before epl.init was called again, with its replicas or parts of "
            "variables; a second model cannot be trained next to it. Build the second one in a tf.Graph of its own: "
            "`with tf.Graph().as_default():` around it, or no `with graph.as_default()` and no `with tf.Session()` "
            "around epl.init, which then begins a new default graph."
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
        _refuse_earlier_model(graph)
        return graph
    if env.config.auto.auto_parallel:
        return None
    features = env.config.training_features()
    if features:
        logger.info("The model has no annotation and %s is set: it is one TaskGraph of epl.replicate(1).", features[0])
        graph.default_strategy = Replicate(1)
        graph.open_taskgraph(graph.default_strategy)
        return graph
    cluster = env.cluster
    assert cluster is not None
    if "unannotated" not in graph.parallel_information and cluster.total_gpu_num > 1:
        graph.parallel_information["unannotated"] = True
        logger.warning(
            "The model has no EPL annotation, and the configuration asks for nothing in training: it stays plain "
            "TensorFlow, so that %d worker(s) train as many separate models, each on one device of %d. Use "
            "epl.set_default_strategy(epl.replicate(1)), or `with epl.replicate(1):` around the model, before "
            "tf.gradients or minimize.", cluster.worker_num, cluster.gpu_num_per_worker,
        )  # fmt: skip
    return None


def _partition(ys: Any, xs: Any) -> None:
    """With `auto.auto_parallel`, annotates the model when it is first differentiated by its variables."""
    env = Env.get()
    tf_graph = tf.get_default_graph()
    if not env.is_ready or tf_compat.is_function_graph(tf_graph) or not env.config.auto.auto_parallel:
        return
    graph = Graph.of(tf_graph, may_create=True)
    assert graph is not None and env.cluster is not None
    trains = any(variable_name(x) is not None for x in _as_list(xs))
    if trains and graph.plan is None and "partitioned" not in graph.parallel_information:
        _refuse_earlier_model(graph)
        graph.parallel_information["partitioned"] = True
        partition_model(graph, ys, env.config.pipeline.num_stages or 1, env.cluster.device_type.lower())


def _refuse_stops_in_split(graph: Graph, tensors: Any) -> None:
    """Tensors of a split are not what is differentiated: TensorFlow would not stop at them, without a word."""
    split = graph.split
    for tensor in _as_list(tensors) if split is not None else ():
        if isinstance(tensor, tf.Tensor) and (split.local(tensor) is not tensor or split.source(tensor) is not tensor):
            raise PlanError(
                "tf.gradients was given {!r} in stop_gradients, which is computed inside of epl.split, or is the value "
                "of a variable of it, and lies on {} devices. Build tf.stop_gradient into the model, inside of "
                "epl.split, where it is taken.".format(tensor.name, split.ranks)
            )


def _refuse_function_body() -> None:
    """Gradients that are applied inside a function cannot be aggregated from outside of it."""
    outer = tf.get_default_graph()
    if not tf_compat.is_function_graph(outer):
        return
    while tf_compat.is_function_graph(outer):
        outer = tf_compat.outer_graph(outer)
    graph = Graph.of(outer)
    if graph is not None and graph.taskgraphs:
        raise PlanError(
            "apply_gradients was called inside a function body (tf.function, or tf.cond with control flow v2). Call it "
            "in the graph itself; tf.disable_control_flow_v2() makes tf.cond part of the graph."
        )


def _as_list(values: Any) -> Sequence[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]
