"""Which ops of a model compute in half precision, and what is converted for them.

The function that converts a model for real decides it, on the graph as it was before.
"""

from typing import Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.view import GraphView
from epl.parallel.amp.op_selection import choose, type_attr
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.forward_nodes import ForwardNodes
from epl.parallel.costs.ops import OpWork, RunPair
from epl.parallel.costs.precision import NO_CONVERSIONS, Conversion, Place, Precision, Tensor, find_conversions
from epl.parallel.costs.shapes import Types
from epl.parallel.strategy.record import ForwardPass


def find_precision(tf_graph: tf.Graph, found: ForwardPass) -> Tuple[Optional[Precision], str]:
    """The precision of a recorded forward pass by `amp.level`, and a note for people; None and "" without it.

    Args:
      tf_graph: its graph, which may have been converted since.
      found: the forward pass as it was before.
    """
    env = Env.get()
    if not env.config.amp.level:
        return None, ""
    assert env.cluster is not None
    half, device_type = tf.as_dtype(env.config.amp.dtype), env.cluster.device_type.upper()
    choice = choose(tf_graph, found.view, found.roots, set(found.roots), half, device_type)
    precision = Precision(
        half,
        {node: type_attr(found.view.types[node]) for node in choice.half},
        {node: ports.inputs for node, ports in choice.places.items()},
        {node: ports.outputs for node, ports in choice.places.items()},
        frozenset(choice.weights),
        frozenset(choice.constants),
    )
    note = f"{len(choice.half)} ops compute in {half.name} (amp.level): those that have kernels on a {device_type}"
    return precision, note


class ModelConversions:
    """The conversions of mixed precision in a model, for two numbers of rows; none without it.

    Attributes:
      places: the inputs that take the result of one.
    """

    def __init__(
        self,
        view: GraphView,
        types: Tuple[Types, Types],
        precision: Optional[Precision],
        read: Sequence[ForwardNodes],
        works: Mapping[Signature, OpWork],
    ) -> None:
        """Finds them.

        Args:
          view: the graph.
          types: of its tensors, with mixed precision, for both numbers of rows.
          precision: of its ops; None without mixed precision.
          read: the forward pass, for both.
          works: what its ops compute.
        """
        self._precision = precision
        found = [NO_CONVERSIONS, NO_CONVERSIONS]
        for number, one in enumerate(read if precision is not None else ()):
            assert precision is not None
            of_node = {
                node: OpWork((), ()) if each.signature is None else works[each.signature]
                for node, each in one.of_node.items()
            }  # fmt: skip
            found[number] = find_conversions(view, types[number], precision, of_node, one.flows)
        self._found = found
        self.places = found[0].places

    def before(self, node: int) -> Tuple[Tuple[Conversion, Conversion], ...]:
        """The conversions before a node, each for both numbers of rows."""
        first, second = (each.of_node.get(node, ()) for each in self._found)
        return tuple(zip(first, second))

    def runs(self, node: int) -> Tuple[RunPair, RunPair]:
        """What the conversions before a node run, in the forward and in the backward pass."""
        both = [each.of_node.get(node, ()) for each in self._found]
        first, second = (tuple(run for one in some for run in one.forward) for some in both)
        third, fourth = (tuple(run for one in some for run in one.backward) for some in both)
        return (first, second), (third, fourth)

    def is_half(self, tensor: Tensor) -> bool:
        """Whether a tensor that is float32 in the script is computed in half precision."""
        return self._precision is not None and self._precision.is_half(tensor)

    def is_sent_in_half(self, tensor: Tensor, place: Place) -> bool:
        """Whether a tensor of float32 is converted for an input where it is made, not where it is taken."""
        return (
            self._precision is not None
            and place[1] in self._precision.inputs.get(place[0], ())
            and tensor[0] not in self._precision.weights
            and not self._precision.is_half(tensor)
        )
