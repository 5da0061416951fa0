"""The stage of what an optimizer makes without saying on which device: that of the variable that it updates.

gradient --+
m -> read -+-> next m -+-> next w -> Assign w      next w, next m and m in the stage of w
rate (all variables) --'                           the rate where it was
"""

from typing import Dict, List, Mapping, Sequence, Set

from epl.ir import op_types
from epl.ir.view import GraphView


def stages_of_updates(
    view: GraphView, stages: Sequence[int], free: Set[int], applying: Set[int], known: Mapping[int, int]
) -> Dict[int, int]:
    """The stages of ops made by apply_gradients, variables among them, from which updates of one stage are computed.

    Args:
      view: the graph.
      stages: of its nodes, as far as they are known.
      free: the nodes that TensorFlow keeps with no other.
      applying: the nodes made by apply_gradients.
      known: nodes and their stages, from a call before; what updates the variables among them is followed now.
    """
    made = free & applying
    unknown = made.difference(known)
    starts: Dict[int, List[int]] = {}
    for node in view.of_types(op_types.WRITES):
        if made and node in applying and unknown.isdisjoint(view.variable_inputs(node)):
            starts.setdefault(stages[node], []).append(node)
    found: Dict[int, Set[int]] = {}
    for stage, writes in starts.items():
        for node in _computed_from(view, writes, applying) & made:
            found.setdefault(node, set()).add(stage)
    result = {node: of.pop() for node, of in found.items() if len(of) == 1}
    result.update(known)
    return result


def _computed_from(view: GraphView, writes: List[int], applying: Set[int]) -> Set[int]:
    """The writes and those of `applying` that they take, directly or not; control edges left out."""
    seen = set(writes)
    stack = list(writes)
    while stack:
        node = stack.pop()
        for name, producer in zip(view.nodes[node].input, view.producers[node]):
            if name[0] != "^" and producer not in seen and producer in applying:
                seen.add(producer)
                stack.append(producer)
    return seen
