"""Which ops run on the host when weights are kept there (`offload.level`).

    host:     w ---> read          l2 = L2Loss(read)        update of w <--- Adam of w <--- slots
                       |            |                             ^
    device:            '--> MatMul  '--> loss --> ... --> gradient

Variables, and what takes one itself; what TensorFlow keeps on the device of these; update rules; initial values; and
what is computed from weights alone by ops that only go over their inputs once: it is cheaper to do so where the weights
are than to move them.
"""

from typing import Dict, FrozenSet, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types, wire
from epl.ir.control_flow import depths_of, run_order
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView, functions_of
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.recompute import SHAPE_OPS, batch_nodes, data_inputs
from epl.parallel.training_writes import initializers_of
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_APPLY = wire.string(Phase.APPLY.encode())

# Ops that go over what they take once. One that takes weights and constants alone runs where the weights are.
_CHEAP = frozenset(
    [
        "Abs", "Add", "AddN", "AddV2", "Cast", "ConcatV2", "ExpandDims", "GatherV2", "Identity", "L2Loss", "Maximum",
        "Mean", "Minimum", "Mul", "Neg", "Pack", "Prod", "RealDiv", "Reshape", "Rsqrt", "Sign", "Slice", "Split",
        "SplitV", "Sqrt", "Square", "Squeeze", "StopGradient", "StridedSlice", "Sub", "Sum", "Transpose",
    ]  # fmt: skip
)  # fmt: skip


class HostRegion(object):
    """The ops of a graph that run on the host.

    Attributes:
      nodes: all of them.
      weights: of these, what gives variables or what is computed from them alone, outside of loops and branches, with
        the variables that it is computed from.
      moving: nodes of the whole graph that depend on the data of a step.
      of_step: these, and what only waits for them or knows no more than their shape.
      depths: of loops and branches, per node.
      order: all nodes, each after its producers.
    """

    def __init__(self, tf_graph: tf.Graph, view: GraphView) -> None:
        """Finds them.

        Raises:
          PlanError: a function takes a variable.
        """
        self._tf_graph = tf_graph
        self._view = view
        self.depths = depths_of(view)
        self.order = run_order(view)
        stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(tf_graph, op_type)}
        self.moving = batch_nodes(tf_graph, view, stateful)
        self.of_step = view.descendants(self.moving)
        _refuse_functions(view)
        self.nodes = self._kept_with(self._bound_to_variables())
        self.weights: Dict[int, FrozenSet[int]] = {}
        self._add_what_weights_give()
        self._add_initial_values()

    def _bound_to_variables(self) -> Set[int]:
        """Variables, and the ops that TensorFlow lets run on the device of their variable alone; reads, too."""
        view = self._view
        found = set(view.of_types(op_types.VARIABLES))
        references = set(view.of_types(op_types.REF_VARIABLES))
        consumers = view.consumers()
        stack = list(found)
        while stack:
            node = stack.pop()
            for consumer in consumers[node]:
                if consumer in found or not view.takes_data(consumer, node):
                    continue
                if node in references and not self._is_bound(consumer):
                    continue  # it takes the value
                found.add(consumer)
                if view.passes_on(consumer):
                    stack.append(consumer)
                    if node in references:
                        references.add(consumer)
        return found

    def _is_bound(self, node: int) -> bool:
        """Whether an op that takes a reference needs it, not only its value."""
        op_type = self._view.types[node]
        takes = tf_compat.op_def(self._tf_graph, op_type).input_arg
        return op_type in op_types.READS or any(argument.is_ref for argument in takes)

    def _kept_with(self, bound: Set[int]) -> Set[int]:
        """With the given nodes those that are colocated with them; and update rules that are not kept elsewhere."""
        view = self._view
        groups = _Groups(len(view))
        facts = view.of_attrs(lambda attrs: (attrs.serialized("_class"), attrs.serialized(PHASE_ATTR) == _APPLY))
        for node, (classes, _) in enumerate(facts):
            for name in wire.read_strings(classes) if classes else ():
                anchor = view.index.get(name[5:].decode(), -1) if name[:5] == b"loc:@" else -1
                if anchor >= 0:
                    groups.join(node, anchor)
        held = {groups.of(node) for node in bound}
        free = {groups.of(node) for node, (_, applies) in enumerate(facts) if not applies} - held
        collectives = set(view.of_types(COLLECTIVE_OP_TYPES))
        return {node for node in range(len(view)) if groups.of(node) not in free} - collectives

    def _add_what_weights_give(self) -> None:
        view = self._view
        variables = set(view.of_types(op_types.VARIABLES))
        for node in self.order:
            if node in variables:
                self.weights[node] = frozenset([node])
            elif self.depths[node] == (0, 0) and node not in self.of_step:
                if view.types[node] in SHAPE_OPS and not self.weights.keys().isdisjoint(view.producers[node]):
                    self.nodes.add(node)
                elif view.types[node] in op_types.READS or view.types[node] in _CHEAP:
                    producers = [producer for producer, _ in data_inputs(view, node)]
                    own = frozenset().union(*[self.weights.get(producer, frozenset()) for producer in producers])
                    if own:
                        self.weights[node] = own
                        self.nodes.add(node)

    def _add_initial_values(self) -> None:
        """What gives a variable its first value, and nothing else anything."""
        view = self._view
        initializers = {view.index[name] for name in initializers_of(self._tf_graph) if name in view.index}
        values = {producer for node in initializers for producer in view.producers[node]}
        consumers = view.consumers()
        for node in sorted(view.ancestors(values, self.nodes.__contains__) - self.nodes, reverse=True):
            if self.nodes.issuperset(consumers[node]):
                self.nodes.add(node)


class _Groups(object):
    """Sets of nodes that are joined (union-find)."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def of(self, node: int) -> int:
        """The node that stands for the set of a node."""
        parents = self._parents
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def join(self, node: int, other: int) -> None:
        """Makes one set of two."""
        self._parents[self.of(node)] = self.of(other)


def _refuse_functions(view: GraphView) -> None:
    library = {function.signature.name for function in view.graph_def.library.function}
    if not library:
        return
    for node, proto in enumerate(view.nodes):
        if not library.isdisjoint(functions_of(proto)):
            variables = view.variable_inputs(node)
            if variables:
                raise PlanError(
                    "{!r} ({}) calls a function that takes the variable {!r}. With offload.level the variable is in "
                    "host memory, and all of the function would run there. Call the function without tf.function, "
                    "tf.cond and tf.while_loop as control flow v1 (tf.disable_control_flow_v2), or set offload.level "
                    'to "".'.format(proto.name, proto.op, view.nodes[variables[0]].name)
                )
