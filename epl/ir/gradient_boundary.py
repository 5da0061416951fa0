"""Gradient boundaries: identities after the gradients, whose input the plan replaces by the aggregated gradient."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union, overload

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.gradient import Boundary, Gradient
from epl.ir.graph import ApplyCall, GradientCall, Graph, first_tensor
from epl.ir.view import GraphView
from epl.utils import tf_compat


class Training(NamedTuple):
    """The backward pass for one call of apply_gradients.

    Attributes:
      boundaries: the boundaries of tf.gradients, before the user's own changes to the gradients.
      ys: the tensors that are differentiated.
      seeds: the tensors where the backward pass begins.
    """

    boundaries: Tuple[Boundary, ...]
    ys: Tuple[tf.Tensor, ...]
    seeds: Tuple[tf.Tensor, ...]


def boundary(gradient: Gradient) -> Gradient:
    """The gradient after identities: one, or one for each tensor of a sparse gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.dense_shape
        return tf.IndexedSlices(
            identity(gradient.values), identity(gradient.indices), None if shape is None else identity(shape)
        )
    return identity(gradient)


def identity(tensor: tf.Tensor) -> tf.Tensor:
    """An identity on the device of the tensor's op, in its TaskGraph."""
    graph = tensor.graph
    with in_taskgraph(graph, taskgraph_index(tensor.op)), graph.colocate_with(tensor.op, ignore_existing=True):
        return tf.identity(tensor, name="epl_boundary")


@overload
def source_of(bound: tf.Tensor) -> tf.Tensor: ...


@overload
def source_of(bound: tf.IndexedSlices) -> tf.IndexedSlices: ...


def source_of(bound: Gradient) -> Gradient:
    """The gradient that the identities of a boundary read."""
    if isinstance(bound, tf.IndexedSlices):
        shape = bound.dense_shape
        return tf.IndexedSlices(
            bound.values.op.inputs[0], bound.indices.op.inputs[0], None if shape is None else shape.op.inputs[0]
        )
    return bound.op.inputs[0]


def inputs_for(bound: Gradient, source: Gradient) -> List[Tuple[tf.Operation, tf.Tensor]]:
    """(Identity of a boundary, new input from `source`) for each identity; the dense shape stays."""
    if isinstance(bound, tf.IndexedSlices):
        assert isinstance(source, tf.IndexedSlices), source
        return [(bound.values.op, source.values), (bound.indices.op, source.indices)]
    assert not isinstance(source, tf.IndexedSlices), source
    return [(bound.op, source)]


def times(gradient: Gradient, factor: Union[float, tf.Tensor]) -> Gradient:
    """A gradient times a factor, which has its dtype if it is a tensor; a sparse gradient stays sparse."""
    product = first_tensor(gradient) * factor
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(product, gradient.indices, gradient.dense_shape)
    return product


def scaled(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """A floating-point gradient times a factor, computed on its device; another gradient stays as it is."""
    values = first_tensor(gradient)
    if not values.dtype.is_floating:
        return gradient
    with in_taskgraph(values.graph, taskgraph_index(values.op)):
        with values.graph.colocate_with(values.op, ignore_existing=True):
            return times(gradient, tf.cast(factor, values.dtype))


def readiness(gradient: Gradient) -> int:
    """Creation number of the op that computes a gradient: backward ops are created in the order in which they run."""
    op = first_tensor(gradient).op
    while op.type == "Identity":
        op = op.inputs[0].op
    return tf_compat.op_id(op)


def variable_name(x: Any) -> Optional[str]:
    """The name of the variable op of an argument of tf.gradients or an optimizer, or None."""
    handle = getattr(x, "handle", None)
    tensor = handle if isinstance(handle, tf.Tensor) else x
    op = getattr(tensor, "op", None)
    return op.name if op is not None and op.type in op_types.VARIABLES else None


def tensors_of(gradient: Gradient) -> List[tf.Tensor]:
    """The gradient itself, or the tensors of a sparse one."""
    if isinstance(gradient, tf.IndexedSlices):
        return [t for t in (gradient.values, gradient.indices, gradient.dense_shape) if t is not None]
    return [gradient]


def upstream(returned: Dict[str, Boundary], ops: Sequence[tf.Operation]) -> Dict[str, Boundary]:
    """The boundaries of `returned` that `ops` are computed from, by the names of their ops."""
    names = {op.name for op in walk_up(ops, returned)[0]}
    return {name: boundary for name, boundary in returned.items() if name in names}


def walk_up(
    ops: Sequence[tf.Operation], returned: Dict[str, Boundary]
) -> Tuple[Set[tf.Operation], Dict[tf.Operation, List[tf.Operation]]]:
    """The ops of `returned` that `ops` are computed from; and the consumers of every op on the way."""
    first_id = min([tf_compat.op_id(first_tensor(gradient).op) for _, gradient in returned.values()] or [0])
    consumers: Dict[tf.Operation, List[tf.Operation]] = {}
    found: Set[tf.Operation] = set()
    seen: Set[tf.Operation] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op in seen or tf_compat.op_id(op) < first_id:  # no older op is a boundary
            continue
        seen.add(op)
        if op.name in returned:
            found.add(op)
            continue
        for tensor in op.inputs:
            consumers.setdefault(tensor.op, []).append(op)
            stack.append(tensor.op)
    return found, consumers


def boundary_nodes(view: GraphView, calls: Iterable[Union[Training, GradientCall, ApplyCall]]) -> Set[int]:
    """The nodes of the identities of all boundaries."""
    return identity_nodes(view, [boundary for call in calls for boundary in call.boundaries])


def identity_nodes(view: GraphView, boundaries: Iterable[Boundary]) -> Set[int]:
    """The nodes of the identities of boundaries."""
    return {view.index[tensor.op.name] for _, gradient in boundaries for tensor in tensors_of(gradient)}


def returned_gradients(graph: Graph) -> Dict[str, Boundary]:
    """The boundaries that tf.gradients has returned to the user, by the name of the gradient's op."""
    found = {first_tensor(bound[1]).op.name: bound for call in graph.gradient_calls for bound in call.boundaries}
    found = {name: bound for name, bound in found.items() if name not in graph.inner_boundaries}
    return {**found, **graph.moved_boundaries}


def variables_by_gradient(graph: Graph) -> Dict[str, str]:
    """The variable of each gradient, by the name of the tensor that tf.gradients computed."""
    bounds = [bound for call in graph.gradient_calls for bound in call.boundaries]
    bounds += graph.moved_boundaries.values()
    return {tensor.op.inputs[0].name: variable for variable, bound in bounds for tensor in tensors_of(bound)}
