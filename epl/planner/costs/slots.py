"""The slots of optimizers: variables named after the variable that they belong to.

w, w/Adam, w/Adam_1        slots {"Adam": 1.0, "Adam_1": 1.0}
"""

from typing import Collection, Dict

from epl.ir import op_types
from epl.ir.view import GraphView, variable_bytes


def find_slots(view: GraphView, trained: Collection[str]) -> Dict[str, float]:
    """Name of each slot -> its bytes for one byte of the trained variables; {} before gradients are applied.

    Args:
      view: the graph.
      trained: names of the variables.
    """
    sizes = {view.nodes[node].name: variable_bytes(view, node) or 0 for node in view.of_types(op_types.VARIABLES)}
    total = sum(sizes.get(name, 0) for name in trained)
    found: Dict[str, int] = {}
    known = frozenset(trained)
    for name, size in sizes.items():
        owner, _, slot = name.rpartition("/")
        if name not in known and _ends_with(owner, known):
            found[slot] = found.get(slot, 0) + size
    return {slot: size / total for slot, size in found.items() if size} if total else {}


def _ends_with(name: str, known: Collection[str]) -> bool:
    """Whether a name is a known one, in some scope."""
    while name and name not in known:
        name = name.partition("/")[2]
    return bool(name)
