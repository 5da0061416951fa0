"""What gives weights to those who compute with the data of a step: variables, or wholes that are gathered from parts.

    w ---> read ---> Cast ---> MatMul <--- x           the region: w, read, Cast; MatMul takes a weight

With the weights go the ops that are computed from them alone and only go over their inputs once: doing that again costs
less than keeping, or moving, what it gives.
"""

from typing import Dict, FrozenSet, Iterable, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.control_flow import depths_of, run_order
from epl.ir.dataflow import SHAPE_OPS, batch_nodes, data_inputs
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.utils import tf_compat

# Ops that go over what they take once. One that takes weights and constants alone belongs to the weights.
_CHEAP = frozenset(
    [
        "Abs", "Add", "AddN", "AddV2", "Cast", "ConcatV2", "ExpandDims", "GatherV2", "Identity", "L2Loss", "Maximum",
        "Mean", "Minimum", "Mul", "Neg", "Pack", "Pad", "Prod", "RealDiv", "Reshape", "Rsqrt", "Sign", "Slice", "Split",
        "SplitV", "Sqrt", "Square", "Squeeze", "StopGradient", "StridedSlice", "Sub", "Sum", "Transpose",
    ]  # fmt: skip
)  # fmt: skip
# By which wholes are gathered from parts: "PlaceholderWithDefault" hides the size of a part.
_GATHERS = frozenset(["EplAllGather", "IdentityN", "PlaceholderWithDefault"])


class WeightRegion:
    """The ops of a graph that give weights.

    Attributes:
      nodes: all of them.
      weights: of these, what gives weights or what is computed from them alone, outside of loops and branches, with
        the sources (variables, wholes) that it is computed from.
      moving: nodes of the whole graph that depend on the data of a step.
      of_step: these, and what only waits for them or knows no more than their shape.
      depths: of loops and branches, per node.
      order: all nodes, each after its producers.
    """

    def __init__(self, tf_graph: tf.Graph, view: GraphView, sources: Iterable[int]) -> None:
        """Finds them.

        Args:
          tf_graph: the graph.
          view: of it.
          sources: what gives weights.
        """
        self.depths = depths_of(view)
        self.order = run_order(view)
        stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
        stateful -= COLLECTIVE_OP_TYPES.keys()  # they give the same for the same
        self.moving = batch_nodes(view, stateful)
        self.of_step = view.descendants(self.moving)
        self.weights: Dict[int, FrozenSet[int]] = {}
        self.nodes: Set[int] = set()
        self._add_what_they_give(view, frozenset(sources))

    def _add_what_they_give(self, view: GraphView, sources: FrozenSet[int]) -> None:
        for node in self.order:
            if node in sources:
                self.weights[node] = frozenset([node])
                self.nodes.add(node)
            elif self.depths[node] == (0, 0) and node not in self.of_step:
                if view.types[node] in SHAPE_OPS and not self.weights.keys().isdisjoint(view.producers[node]):
                    self.nodes.add(node)
                elif view.types[node] in op_types.READS | _CHEAP | _GATHERS:
                    producers = [producer for producer, _ in data_inputs(view, node)]
                    own = frozenset().union(*[self.weights.get(producer, frozenset()) for producer in producers])
                    if own:
                        self.weights[node] = own
                        self.nodes.add(node)
