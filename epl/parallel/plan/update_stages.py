"""The stages of an optimizer's ops that are not colocated with a variable: that of the variable that they update.

gradient --+
m -> read -+-> next m -+-> next w -> Assign w      next w, next m and m: in the stage of w
rate (all variables) --'                           rate: stays in its stage
"""

from typing import Dict, List, Mapping, Sequence, Set

from epl.ir import op_types
from epl.ir.view import GraphView


def stages_of_updates(
    view: GraphView, stages: Sequence[int], free: Set[int], applying: Set[int], known: Mapping[int, int]
) -> Dict[int, int]:
    """The stages of ops and variables of apply_gradients that only updates of one stage depend on.

    Args:
      view: the graph.
      stages: the stage of each node, as far as it is known.
      free: the nodes that are not tied to another one.
      applying: the nodes created by apply_gradients.
      known: nodes and their stages, from an earlier call; now the updates of the variables among them are followed.
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
    """The writes, and the nodes of `applying` that they are computed from, along data edges."""
    seen = set(writes)
    stack = list(writes)
    while stack:
        node = stack.pop()
        for name, producer in zip(view.nodes[node].input, view.producers[node]):
            if name[0] != "^" and producer not in seen and producer in applying:
                seen.add(producer)
                stack.append(producer)
    return seen
