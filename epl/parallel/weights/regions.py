"""The weight region of a graph: the variables (or gathered weights), and cheap ops that are computed from them alone.

    w ---> read ---> Cast ---> MatMul <--- x           the region: w, read, Cast; MatMul uses a weight

A cheap op goes over its inputs once: to run it again costs less than to keep, or to move, its output.
"""

from typing import Dict, FrozenSet, Iterable, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.control_flow import depths_of, run_order
from epl.ir.dataflow import SHAPE_OPS, batch_nodes, data_inputs
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.utils import tf_compat

# Ops that go over their inputs once. One that reads only weights and constants belongs to the region.
_CHEAP = frozenset(
    [
        "Abs", "Add", "AddN", "AddV2", "Cast", "ConcatV2", "ExpandDims", "GatherV2", "Identity", "L2Loss", "Maximum",
        "Mean", "Minimum", "Mul", "Neg", "Pack", "Pad", "Prod", "RealDiv", "Reshape", "Rsqrt", "Sign", "Slice", "Split",
        "SplitV", "Sqrt", "Square", "Squeeze", "StopGradient", "StridedSlice", "Sub", "Sum", "Transpose",
    ]  # fmt: skip
)  # fmt: skip
# Ops of the gather of a sharded weight: "PlaceholderWithDefault" hides the size of a shard.
_GATHERS = frozenset(["EplAllGather", "IdentityN", "PlaceholderWithDefault"])


class WeightRegion:
    """The weight region of a graph.

    Attributes:
      nodes: the nodes of the region.
      weights: those that are weights or computed from weights alone, outside of loops and branches -> the sources
        (variables, gathered weights) that they are computed from.
      moving: all nodes of the graph that depend on the data of a step.
      of_step: these, and the nodes that depend on them only by control inputs or by their shape.
      depths: depth in loops and branches, per node.
      order: all nodes, each after its producers.
    """

    def __init__(self, tf_graph: tf.Graph, view: GraphView, sources: Iterable[int]) -> None:
        """Finds the region.

        Args:
          tf_graph: the graph.
          view: its view.
          sources: the nodes of the variables, or of the gathered weights.
        """
        self.depths = depths_of(view)
        self.order = run_order(view)
        stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
        stateful -= COLLECTIVE_OP_TYPES.keys()  # equal inputs give equal outputs
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
