"""Automatic mixed precision (`amp.level`) while the user builds the model: conversion, and scaling of gradients.

When the model is first differentiated by its variables, the ops of its forward pass get twins in half precision
(`epl.parallel.amp.half_ops`); TensorFlow then differentiates those. A later call of tf.gradients converts what it needs
besides. The gradients of the objective are multiplied by the loss scale, all that is returned is divided by it, so that
the user sees true gradients. What becomes of a step whose gradients overflow is `epl.parallel.amp.loss_scale`'s.
"""

import logging
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.accumulation import Gradient
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.gradient_boundary import times, variable_name
from epl.ir.graph import Graph, first_tensor
from epl.ir.view import GraphView
from epl.parallel.amp import half_ops, op_selection
from epl.parallel.amp.loss_scale import loss_scale_of
from epl.utils import tf_compat
from epl.utils.errors import FeedError

logger = logging.getLogger("epl")

_STATE = "amp"  # the key in Graph.parallel_information


class State(NamedTuple):
    """What is known of a model that was converted.

    Attributes:
      weight_casts: the conversions of weights in the forward pass.
      seen: names of the ops about which it is decided.
    """

    weight_casts: List[tf.Operation]
    seen: Set[str]


class Differentiation(NamedTuple):
    """A call of tf.gradients in a converted model.

    Attributes:
      ys: what is differentiated.
      arguments: of the call, twins in place of what they stand for.
      types: by gradient, its type if TensorFlow gives another one, else None.
      scale: the loss scale, None if it is 1.
      last: number of the last op of the forward pass.
    """

    ys: List[Any]
    arguments: Dict[str, Any]
    types: List[Any]
    scale: Any
    last: int


def begin(graph: Graph, arguments: Dict[str, Any]) -> Optional[Differentiation]:
    """Converts what a call of tf.gradients needs; None without `amp.level`, or before the model is trained.

    Args:
      graph: the annotated model.
      arguments: of the call, by name.
    """
    if not Env.get().config.amp.level:
        return None
    ys, xs, stop = (_as_list(arguments.get(name)) for name in ("ys", "xs", "stop_gradients"))
    if _STATE not in graph.parallel_information and all(variable_name(x) is None for x in xs):
        return None
    state = graph.parallel_information.setdefault(_STATE, State([], set()))
    half_ops.use_twins(graph)
    ys = [graph.shown(y) if isinstance(y, tf.Tensor) else y for y in ys]
    _convert(graph, state, ys, xs + stop)
    with in_taskgraph(graph.tf_graph, graph.taskgraphs[0].index):
        scale = loss_scale_of(graph).read()
    halves = [_half(graph, x) for x in xs]
    types = [None if half is x else x.dtype for half, x in zip(halves, xs)]
    given = dict(arguments, ys=ys, xs=halves, stop_gradients=[_half(graph, tensor) for tensor in stop])
    return Differentiation(ys, given, types, scale, tf_compat.last_op_id(graph.tf_graph))


def _convert(graph: Graph, state: State, ys: Sequence[Any], named: Sequence[Any]) -> None:
    """Gives twins to what `ys` need and was not seen before; tensors that the call names keep their type."""
    config = Env.get().config
    cluster = Env.get().cluster
    assert cluster is not None
    half = tf.as_dtype(config.amp.dtype)
    view = GraphView(graph.tf_graph)
    roots = [view.index[y.op.name] for y in ys if isinstance(y, tf.Tensor)]
    kept = {view.index[name] for name in state.seen if name in view.index}
    kept.update(roots)
    kept.update(view.index[t.op.name] for t in named if isinstance(t, tf.Tensor))
    choice = op_selection.choose(graph.tf_graph, view, roots, kept, half, cluster.device_type.upper())
    state.seen.update(view.nodes[node].name for node in view.ancestors(roots))
    state.weight_casts.extend(half_ops.make_twins(graph, view, choice, half))
    logger.info("%s", op_selection.describe(view, choice, half))
    if config.amp.debug_log:
        logger.info("%s", op_selection.describe_rest(view, choice, roots))


def scaled(differentiation: Optional[Differentiation], seeds: List[Any]) -> List[Any]:
    """The gradients of the objective itself, multiplied by the loss scale."""
    if differentiation is None or differentiation.scale is None:
        return seeds
    return [seed if seed is None else _times(seed, differentiation.scale) for seed in seeds]


def finish(graph: Graph, differentiation: Differentiation, gradients: Sequence[Optional[Gradient]]) -> List[Any]:
    """The gradients as the user asked for them: true, and of the type of what they are the gradients of."""
    state: State = graph.parallel_information[_STATE]
    half_ops.use_twins(graph)
    half_ops.convert_again(state.weight_casts, differentiation.last)
    result: List[Any] = list(gradients)
    inverse = None
    if differentiation.scale is not None:
        with in_taskgraph(graph.tf_graph, taskgraph_index(differentiation.scale.op)):
            inverse = 1.0 / differentiation.scale
    made = [i for i, gradient in enumerate(result) if gradient is not None]
    # In the order of the backward pass, which is that in which gradients are sent.
    for i in sorted(made, key=lambda i: tf_compat.op_id(first_tensor(result[i]).op)):
        if differentiation.types[i] is not None:
            result[i] = tf.cast(result[i], differentiation.types[i])
        if inverse is not None:
            result[i] = _times(result[i], inverse)
    return result


def fetched(tf_graph: tf.Graph, fetches: Sequence[tf.Tensor], feeds: Iterable[tf.Tensor]) -> List[tf.Tensor]:
    """What a run gives for what the user asks for: values that are computed, in the type that they were to have.

    Raises:
      FeedError: what is fed has a twin.
    """
    graph = Graph.of(tf_graph)
    if graph is None or not graph.twins:
        return list(fetches)
    for tensor in feeds:
        if tensor.name in graph.twins:
            raise FeedError(
                "{!r} is fed, and computed in half precision (amp.level): what takes it takes that. Feed a "
                "tf.placeholder_with_default in its place, or leave amp.level out.".format(tensor.name)
            )
    return [graph.shown(tensor) for tensor in fetches]


def _times(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """The product, where the gradient is."""
    values = first_tensor(gradient)
    if not values.dtype.is_floating:
        return gradient
    with in_taskgraph(values.graph, taskgraph_index(values.op)):
        with values.graph.colocate_with(values.op, ignore_existing=True):
            return times(gradient, tf.cast(factor, values.dtype))


def _half(graph: Graph, tensor: Any) -> Any:
    twin = graph.twins.get(tensor.name) if isinstance(tensor, tf.Tensor) else None
    return tensor if twin is None else twin.half


def _as_list(values: Any) -> List[Any]:
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple)) else [values]
