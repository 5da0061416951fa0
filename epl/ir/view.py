"""A read-only view of a graph for analysis: the GraphDef read once, with producers as integers.

TensorFlow's accessors of an op (`node_def`, `inputs`, `consumers`) cost 6-25 us a call; one GraphDef costs 7 us a node
and has all of this.
"""

from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Set, TypeVar, Union

import tensorflow.compat.v1 as tf

from epl.ir import node_wire, op_types, replacements
from epl.ir.graph import Graph
from epl.ir.taskgraph import DEFAULT_ATTR
from epl.utils import tf_compat

_RESOURCE = tf.resource.as_datatype_enum
_T = TypeVar("_T")


class GraphView:
    """Nodes of a tf.Graph in creation order, with their producers and consumers.

    Attributes:
      graph_def: functions and versions, without the nodes.
      nodes: nodes by index; passes may change their inputs and devices together with the graph.
      index: node name -> index.
      producers: for every node, the indices of its producers of data or control.
    """

    def __init__(
        self, tf_graph: tf.Graph, earlier: Optional["GraphView"] = None, left_out: FrozenSet[str] = frozenset()
    ) -> None:
        """Reads the graph.

        Args:
          tf_graph: the graph.
          earlier: a view whose nodes come first, as they were then; None: all nodes are read.
          left_out: names of the ops that are in neither view, now and in `followed`.
        """
        self._num_functions = tf_compat.num_functions(tf_graph)
        self._left_out = left_out
        nodes, self.graph_def = node_wire.read_graph(tf_compat.serialized_graph_def(tf_graph))
        graph = Graph.of(tf_graph)
        if graph is not None and graph.replacements:
            nodes = replacements.in_order(nodes)
        self.nodes: List[node_wire.Node] = []
        self.types: List[str] = []
        self.index: Dict[str, int] = {}
        self.producers: List[List[int]] = []
        self._by_type: Dict[str, List[int]] = {}
        self._consumers: Optional[List[List[int]]] = None
        self._copies: Set[str] = set()
        if earlier is not None:
            later = [node for node in nodes if node.name not in earlier.index and node.name not in left_out]
            nodes = earlier.nodes + later
        self._append(nodes)

    def followed(
        self, tf_graph: tf.Graph, changed: Iterable[str], copies: Iterable[node_wire.Node] = ()
    ) -> "GraphView":
        """The view of the graph as it is now; it reads only new and changed ops, in a fifth of the time of a new view.

        Args:
          tf_graph: the graph of this view.
          changed: names of ops whose inputs, attributes or device were changed since they were read.
          copies: ops that were cloned since then, as they were added; a copy that was changed later is read again.

        Returns:
          This view, with added ops at the end; or a new one if there are new functions.
        """
        if tf_compat.num_functions(tf_graph) != self._num_functions:
            if not self._left_out:
                return GraphView(tf_graph)
            self._num_functions = tf_compat.num_functions(tf_graph)
            _, self.graph_def = node_wire.read_graph(tf_compat.serialized_graph_def(tf_graph))
        added = list(copies)
        self._copies.update(node.name for node in added)
        known = (self.index, self._copies, self._left_out)
        added += _read_nodes(tf_graph, tf_compat.op_names(tf_graph).difference(*known))
        self._append(added)
        for node in _read_nodes(tf_graph, self._copies.difference(tf_compat.untouched_names(tf_graph)).union(changed)):
            i = self.index[node.name]
            self.nodes[i], self.producers[i] = node, self._producers_of(node)
        self._consumers = None
        return self

    def _append(self, nodes: List[node_wire.Node]) -> None:
        first = len(self.nodes)
        self.nodes += nodes
        self.types += [node.op for node in nodes]
        for i, node in enumerate(nodes, first):
            self.index[node.name] = i
            self._by_type.setdefault(node.op, []).append(i)
        self.producers += [self._producers_of(node) for node in nodes]

    def _producers_of(self, node: node_wire.Node) -> List[int]:
        index = self.index
        return [index[name if name in index else _producer_name(name)] for name in node.input]

    def ancestors(self, roots: Iterable[int], stop: Optional[Callable[[int], bool]] = None) -> Set[int]:
        """The roots and all nodes that they need; the search does not go beyond nodes for which `stop` is true."""
        seen = set(roots)
        stack = list(seen)
        producers = self.producers
        while stack:
            node = stack.pop()
            if stop is not None and stop(node):
                continue
            for producer in producers[node]:
                if producer not in seen:
                    seen.add(producer)
                    stack.append(producer)
        return seen

    def descendants(self, roots: Iterable[int], stop: Optional[Callable[[int], bool]] = None) -> Set[int]:
        """The roots and all nodes that need them; the search does not go beyond nodes for which `stop` is true."""
        consumers = self.consumers()
        seen = set(roots)
        stack = list(seen)
        while stack:
            node = stack.pop()
            if stop is not None and stop(node):
                continue
            for consumer in consumers[node]:
                if consumer not in seen:
                    seen.add(consumer)
                    stack.append(consumer)
        return seen

    def consumers(self) -> List[List[int]]:
        """For every node, the indices of its consumers of data or control."""
        if self._consumers is None:
            self._consumers = [[] for _ in self.producers]
            for node, producers in enumerate(self.producers):
                for producer in producers:
                    self._consumers[producer].append(node)
        return self._consumers

    def of_types(self, types: Iterable[str]) -> List[int]:
        """The nodes of the given op types, in creation order."""
        by_type = self._by_type
        return sorted(i for op_type in set(types) if op_type in by_type for i in by_type[op_type])

    def user_placeholders(self) -> List[int]:
        """The placeholders that a user may feed, in creation order; not EPL's, which only hide a static value."""
        return [node for node in self.of_types(op_types.PLACEHOLDERS) if DEFAULT_ATTR not in self.nodes[node].attr]

    def of_attrs(self, read: Callable[[node_wire.Attributes], _T]) -> List[_T]:
        """`read` of the attributes of each node; it is called once for all nodes with equal attributes."""
        known: Dict[bytes, _T] = {}
        for node in self.nodes:
            if node.serialized_attrs not in known:
                known[node.serialized_attrs] = read(node.attr)
        return [known[node.serialized_attrs] for node in self.nodes]

    def writes(self) -> List[int]:
        """The nodes that write variables, directly or in a function that they call."""
        writing = _writing_functions(self.graph_def.library)
        return [
            i
            for i, op_type in enumerate(self.types)
            if op_type in op_types.WRITES or (writing and not writing.isdisjoint(functions_of(self.nodes[i])))
        ]

    def variable_inputs(self, node: int) -> List[int]:
        """The variables among the inputs of an op; in a branch or a loop, through its Switch or Enter ops."""
        found = []
        stack = list(reversed(self.producers[node]))
        while stack:
            producer = stack.pop()
            if self.types[producer] in op_types.VARIABLES:
                found.append(producer)
            elif self.passes_on(producer):
                stack.extend(reversed(self.producers[producer]))
        return found

    def passes_on(self, node: int) -> bool:
        """Whether an op passes on a reference or a handle."""
        op_type = self.types[node]
        return op_type in op_types.REFERENCE_FLOW or (
            op_type in op_types.VALUE_FLOW and self.nodes[node].attr["T"].type == _RESOURCE
        )

    def takes_data(self, node: int, producer: int) -> bool:
        """Whether a node reads a tensor of another one, not only control."""
        for name, other in zip(self.nodes[node].input, self.producers[node]):
            if name[0] == "^":  # control inputs come last
                return False
            if other == producer:
                return True
        return False

    def __len__(self) -> int:
        return len(self.nodes)

    def names(self, nodes: Iterable[int]) -> Dict[str, int]:
        """Name -> index of the given nodes."""
        return {self.nodes[i].name: i for i in nodes}


def _read_nodes(tf_graph: tf.Graph, names: Iterable[str]) -> List[node_wire.Node]:
    """The named ops, in the order of their names."""
    return [node_wire.read_node(data) for data in tf_compat.serialized_nodes(tf_graph, sorted(names))]


def ancestor_ops(ops: Iterable[tf.Operation]) -> Set[tf.Operation]:
    """The ops and all ops that they need, without a view: for few ops, or a graph that is being changed."""
    seen = set(ops)
    stack = list(seen)
    while stack:
        op = stack.pop()
        for other in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


def functions_of(node: Union[tf.NodeDef, node_wire.Node]) -> Set[str]:
    """Names of the functions that a node calls."""
    names = {value.func.name for value in node.attr.values() if value.HasField("func")}
    names.update(f.name for value in node.attr.values() if value.HasField("list") for f in value.list.func)
    names.add(node.op)  # a function called by its name
    return names


def _writing_functions(library: Any) -> Set[str]:
    """The functions that write variables, directly or through functions that they call."""
    calls = {f.signature.name: set().union(*[functions_of(n) for n in f.node_def]) for f in library.function}
    writing = {name for name, called in calls.items() if called & op_types.WRITES}
    while True:
        more = {name for name, called in calls.items() if called & writing} - writing
        if not more:
            return writing
        writing |= more


def _producer_name(name: str) -> str:
    if name[0] == "^":
        return name[1:]
    return name.partition(":")[0]


def variable_bytes(view: GraphView, variable: int) -> Optional[int]:
    """Bytes of a variable; None if its shape is not known."""
    attrs = view.nodes[variable].attr
    elements = tf.TensorShape(attrs["shape"].shape).num_elements()
    return None if elements is None else elements * tf.as_dtype(attrs["dtype"].type).size
