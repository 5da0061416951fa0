"""The tensors that a forward pass keeps for the backward pass: each counts once, where its memory was allocated.

MatMul --> Reshape --> Tanh          MatMul's gradient reads x and w, Tanh's its own output: kept are x and Tanh
x, w -^                              w is a variable, which is there anyway
"""

from typing import Collection, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.forward_nodes import ForwardNode, Tensor, is_free
from epl.parallel.costs.kernels import aliased_input
from epl.parallel.costs.ops import OpWork
from epl.parallel.costs.precision import Place
from epl.parallel.costs.shapes import Types

_PERSISTENT = op_types.VARIABLES | {"Const"}


def kept_tensors(
    view: GraphView,
    homes: "Homes",
    nodes: Mapping[int, ForwardNode],
    works: Mapping[Signature, OpWork],
    converted: Collection[Place] = (),
    others: Collection[Tensor] = (),
) -> Dict[Tensor, int]:
    """(Node, output) of each tensor that is kept -> how many of them a loop makes; 1 outside of loops.

    Args:
      view: the graph.
      homes: where the memory of its tensors was allocated.
      nodes: the forward pass.
      works: what its ops compute and keep.
      converted: inputs that take the result of a conversion, which is kept in place of the tensor.
      others: further tensors that the backward pass reads.
    """
    found: Dict[Tensor, int] = {}
    for tensor in others:
        home = homes.of(tensor)
        if home is not None:
            found[home] = nodes[home[0]].runs if home[0] in nodes else 1
    for node, positions, outputs in _read_by_gradients(nodes, works, converted):
        inputs = data_inputs(view, node)
        for tensor in [inputs[at] for at in positions] + outputs:
            home = homes.of(tensor)
            if home is not None:
                found[home] = nodes[home[0]].runs if home[0] in nodes else 1
    return found


def read_inputs(
    view: GraphView,
    homes: "Homes",
    nodes: Mapping[int, ForwardNode],
    works: Mapping[Signature, OpWork],
    converted: Collection[Place] = (),
    others: Collection[Tensor] = (),
) -> Dict[int, Set[int]]:
    """By node, the positions of the data inputs that the backward pass reads: as they are, or as views of them.

    Args: as for `kept_tensors`.
    """
    found: Dict[int, Set[int]] = {node: set() for node in nodes}
    read = list(others)
    for node, positions, outputs in _read_by_gradients(nodes, works, converted):
        inputs = data_inputs(view, node)
        found[node].update(positions)
        read += [inputs[at] for at in positions] + outputs
    while read:
        node, output = read.pop()
        at = homes.alias(node, output) if node in nodes else -1
        if at >= 0 and at not in found[node]:
            found[node].add(at)
            read.append(data_inputs(view, node)[at])
    return found


def _read_by_gradients(
    nodes: Mapping[int, ForwardNode], works: Mapping[Signature, OpWork], converted: Collection[Place]
) -> Iterator[Tuple[int, List[int], List[Tensor]]]:
    """Of each node that computes: the node, the positions of the inputs that its gradient reads, and its outputs so."""
    for node, one in nodes.items():
        if one.signature is not None:
            work = works[one.signature]
            positions = [at for at in work.kept_inputs if (node, at) not in converted]
            yield node, positions, [(node, output) for output in work.kept_outputs]


class Homes:
    """Where the memory of tensors was allocated."""

    def __init__(self, view: GraphView, types: Types, nodes: Mapping[int, ForwardNode]) -> None:
        """Args: the graph, types of its nodes and of their producers, and the forward pass."""
        self._view = view
        self._types = types
        self._nodes = nodes
        self._known: Dict[Tensor, Optional[Tensor]] = {}

    def of(self, tensor: Tensor) -> Optional[Tensor]:
        """The tensor that was allocated for a tensor; None for a variable or a constant, which are there anyway."""
        if tensor not in self._known:
            self._known[tensor] = self._find(tensor)
        return self._known[tensor]

    def is_own(self, node: int, output: int) -> bool:
        """Whether an op allocates an output."""
        return self.of((node, output)) == (node, output)

    def _find(self, tensor: Tensor) -> Optional[Tensor]:
        view = self._view
        passed: Set[int] = set()
        while view.types[tensor[0]] not in _PERSISTENT:
            node, output = tensor
            inputs = data_inputs(view, node)
            turns = [one for one in inputs if view.types[one[0]] in op_types.NEXT_ITERATIONS]
            if turns and node not in passed:
                passed.add(node)  # what a turn of a loop has made; if it made nothing new, what came into the loop
                tensor = turns[0]
                continue
            at = self.alias(node, output)
            if at < 0:
                return tensor
            tensor = inputs[at]
        return None

    def alias(self, node: int, output: int) -> int:
        """The position of the data input of which an output is a view; -1 if the op allocates it."""
        types, view = self._types, self._view
        read = self._nodes.get(node)
        if read is not None and read.signature is not None and is_free(read.signature):
            return 0
        if any(producer not in types for producer, _ in data_inputs(view, node)):
            return -1
        inputs = [types[producer][position] for producer, position in data_inputs(view, node)]
        return aliased_input(view.types[node], output, inputs, types[node])
