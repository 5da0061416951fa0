"""Automatic mixed precision (`amp.level`) while the user builds the model: conversion, and scaling of gradients.

When the model is first differentiated by its variables, the ops of its forward pass get half copies
(`epl.parallel.amp.half_ops`); TensorFlow then differentiates those. A later call of tf.gradients also converts the ops
that only it needs. The gradients of the objective are multiplied by the loss scale, and the returned gradients are
divided by it, so the user gets true gradients. `epl.parallel.amp.loss_scale` skips steps whose gradients overflow.
"""

import logging
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import scaled, variable_name
from epl.ir.graph import Graph, first_tensor
from epl.ir.view import GraphView
from epl.parallel.amp import half_ops, op_selection, section
from epl.parallel.amp.loss_scale import loss_scale_of
from epl.parallel.feature import GradientsRequest
from epl.utils import tf_compat
from epl.utils.containers import as_list
from epl.utils.errors import FeedError

logger = logging.getLogger("epl")


class ConvertedModel(NamedTuple):
    """State of a model with half copies.

    Attributes:
      weight_casts: the conversions of weights in the forward pass.
      seen: names of the ops that were considered so far.
    """

    weight_casts: List[tf.Operation]
    seen: Set[str]


def begin(graph: Graph, request: GradientsRequest) -> GradientsRequest:
    """Makes half copies for a call of tf.gradients; none without `amp.level`, or before a call by variables.

    Args:
      graph: the annotated model.
      request: the call.
    """
    if not Env.get().config.amp.level:
        return request
    ys, xs, stop = (as_list(request.arguments.get(name)) for name in ("ys", "xs", "stop_gradients"))
    state = graph.state_of(ConvertedModel)
    if state is None:
        if all(variable_name(x) is None for x in xs):
            return request
        state = graph.keep(ConvertedModel, ConvertedModel([], set()))
    half_ops.use_half_copies(graph)
    ys = [graph.restored(y) if isinstance(y, tf.Tensor) else y for y in ys]
    _convert(graph, state, ys, xs + stop)
    with in_taskgraph(graph.tf_graph, graph.taskgraphs[0].index):
        scale = loss_scale_of(graph).read()
    halves = [_half(graph, x) for x in xs]
    dtypes = [None if half is x else x.dtype for half, x in zip(halves, xs)]
    given = dict(request.arguments, ys=ys, xs=halves, stop_gradients=[_half(graph, tensor) for tensor in stop])
    return request._replace(arguments=given, dtypes=dtypes, seed_scale=scale)


def _convert(graph: Graph, state: ConvertedModel, ys: Sequence[Any], named: Sequence[Any]) -> None:
    """Makes half copies of ops that `ys` need and no earlier call did; tensors that the call names keep their type."""
    config = Env.get().config
    cluster = Env.get().cluster
    assert cluster is not None
    half = tf.as_dtype(config.amp.dtype)
    view = GraphView(graph.tf_graph)
    roots = [view.index[y.op.name] for y in ys if isinstance(y, tf.Tensor)]
    replaced = {one.original.op.name for one in graph.replacements.values() if not one.is_half}
    kept = {view.index[name] for name in state.seen | replaced if name in view.index}
    kept.update(roots)
    kept.update(view.index[t.op.name] for t in named if isinstance(t, tf.Tensor))
    choice = op_selection.choose(graph.tf_graph, view, roots, kept, half, cluster.device_type.upper())
    state.seen.update(view.nodes[node].name for node in view.ancestors(roots))
    section.note(graph, [view.types[node] for node in choice.half])
    state.weight_casts.extend(half_ops.make_half_copies(graph, view, choice, half))
    logger.info("%s", op_selection.describe(view, choice, half))
    if config.amp.debug_log:
        logger.info("%s", op_selection.describe_rest(view, choice, roots))


def finish(
    graph: Graph, request: GradientsRequest, gradients: Sequence[Optional[Gradient]]
) -> List[Optional[Gradient]]:
    """The gradients for the user: divided by the loss scale, each in the type of its `x`."""
    result: List[Any] = list(gradients)
    state = graph.state_of(ConvertedModel)
    if state is None:
        return result
    half_ops.use_half_copies(graph)
    half_ops.convert_again(state.weight_casts, request.last_op)
    inverse = None
    if request.seed_scale is not None:
        with in_taskgraph(graph.tf_graph, taskgraph_index(request.seed_scale.op)):
            inverse = 1.0 / request.seed_scale
    made = [i for i, gradient in enumerate(result) if gradient is not None]
    # In the order of the backward pass, in which gradients are all-reduced.
    for i in sorted(made, key=lambda i: tf_compat.op_id(first_tensor(result[i]).op)):
        dtype = request.dtypes[i]
        if dtype is not None:
            result[i] = tf.cast(result[i], dtype)
        if inverse is not None:
            result[i] = scaled(result[i], inverse)
    return result


def fetched(graph: Graph, fetches: Sequence[tf.Tensor], feeds: Iterable[tf.Tensor]) -> List[tf.Tensor]:
    """The tensors to fetch for the user's fetches: values of half copies, in the user's types.

    Raises:
      FeedError: a tensor with a half copy is fed.
    """
    if not graph.replacements:
        return list(fetches)
    for tensor in feeds if graph.state_of(ConvertedModel) is not None else ():
        if tensor.name in graph.replacements:
            raise FeedError(
                "{!r} is fed, and computed in half precision (amp.level): what takes it takes that. Feed a "
                "tf.placeholder_with_default in its place, or leave amp.level out.".format(tensor.name)
            )
    return [graph.restored(tensor) for tensor in fetches]


def _half(graph: Graph, tensor: Any) -> Any:
    copy = graph.replacements.get(tensor.name) if isinstance(tensor, tf.Tensor) else None
    return tensor if copy is None else copy.computed
