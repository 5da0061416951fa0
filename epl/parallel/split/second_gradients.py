"""Refuses to differentiate gradients of shards of variables; all other gradients can be differentiated again.

A value that the user computes with the gradient of a shard, such as its norm, is completed over the ranks only when the
whole graph is built: after the backward pass that would need it.
"""

from typing import Any, Container, Dict

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph, first_tensor
from epl.utils.errors import PlanError

_NO_GRADIENT = frozenset(["StopGradient", "PreventGradient"])


def refuse_gradients_of_parts(graph: Graph, ys: Any, held: Container[str], ranks: int) -> None:
    """Raises PlanError if a tensor to differentiate is computed with the gradient of a shard of a variable.

    Args:
      graph: the annotated model.
      ys: as given to tf.gradients.
      held: names of the ops of the variables that are shards.
      ranks: devices in a group.
    """
    parts: Dict[tf.Tensor, str] = {}
    for call in graph.gradient_calls:
        parts.update({first_tensor(gradient): name for name, gradient in call.boundaries if name in held})
    if not parts:
        return
    for y in tf.nest.flatten(ys):
        stack, seen = [y] if isinstance(y, tf.Tensor) else [], set()
        while stack:
            tensor = stack.pop()
            if tensor in parts:
                raise PlanError(
                    "tf.gradients was asked to differentiate {!r}, which is computed with the gradient of {!r}: each "
                    "of the {} devices of epl.split has a part of that, which cannot be differentiated again. "
                    "Differentiate gradients by tensors, such as inputs or layers, put tf.stop_gradient around this "
                    "one, or keep the variable out of epl.split.".format(y.name, parts[tensor], ranks)
                )
            if tensor.op not in seen and tensor.op.type not in _NO_GRADIENT and tensor.dtype.is_floating:
                seen.add(tensor.op)
                stack += list(tensor.op.inputs)
