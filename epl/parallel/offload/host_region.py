"""Which ops run on the host when weights are kept there (`offload.level`).

    host:     w ---> read          l2 = L2Loss(read)        update of w <--- Adam of w <--- slots
                       |            |                             ^
    device:            '--> MatMul  '--> loss --> ... --> gradient

Variables, and what takes one itself; what TensorFlow keeps on the device of these; update rules; initial values; and
what is computed from weights alone by ops that only go over their inputs once: it is cheaper to do so where the weights
are than to move them.
"""

from typing import Set

import tensorflow.compat.v1 as tf

from epl.ir import node_wire, op_types
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView, functions_of
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.rewriting.training_writes import initializers_of
from epl.parallel.weights.regions import WeightRegion
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_APPLY = node_wire.string(Phase.APPLY.encode())


class HostRegion(WeightRegion):
    """The ops of a graph that run on the host: variables are the sources of weights."""

    def __init__(self, tf_graph: tf.Graph, view: GraphView) -> None:
        """Finds them.

        Raises:
          PlanError: a function takes a variable.
        """
        super().__init__(tf_graph, view, view.of_types(op_types.VARIABLES))
        self._tf_graph = tf_graph
        self._view = view
        _refuse_functions(view)
        self.nodes |= self._kept_with(self._bound_to_variables())
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
            for name in node_wire.read_strings(classes) if classes else ():
                anchor = view.index.get(name[5:].decode(), -1) if name[:5] == b"loc:@" else -1
                if anchor >= 0:
                    groups.join(node, anchor)
        held = {groups.of(node) for node in bound}
        free = {groups.of(node) for node, (_, applies) in enumerate(facts) if not applies} - held
        collectives = set(view.of_types(COLLECTIVE_OP_TYPES))
        return {node for node in range(len(view)) if groups.of(node) not in free} - collectives

    def _add_initial_values(self) -> None:
        """What gives a variable its first value, and nothing else anything."""
        view = self._view
        initializers = {view.index[name] for name in initializers_of(self._tf_graph) if name in view.index}
        values = {producer for node in initializers for producer in view.producers[node]}
        consumers = view.consumers()
        for node in sorted(view.ancestors(values, self.nodes.__contains__) - self.nodes, reverse=True):
            if self.nodes.issuperset(consumers[node]):
                self.nodes.add(node)


class _Groups:
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
