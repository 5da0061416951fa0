"""The slots of optimizers: variables named after the variable that they belong to.

w, w/Adam, w/Adam_1        slots {"Adam": 1.0, "Adam_1": 1.0}
"""

from typing import Collection, Dict, Optional

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.parallel.costs.costs import parameter_bytes
from epl.parallel.costs.shapes import TensorType, num_bytes
from epl.parallel.sharding.sharded_variables import ShardedVariables


def find_slots(
    view: GraphView, trained: Collection[str], sharded: Optional[ShardedVariables] = None
) -> Dict[str, float]:
    """Name of each slot -> its bytes for one byte of the trained variables; {} before gradients are applied.

    Copies of a variable, such as those of replicas, are in scopes of their own: each variable counts once.

    Args:
      view: the graph.
      trained: names of the variables.
      sharded: the variables that the graph has in shards, slots among them; they count in full.
    """
    sizes = {view.nodes[node].name: parameter_bytes(view, node) for node in view.of_types(op_types.VARIABLES)}
    for name, shard in sharded.variables.items() if sharded is not None else ():
        if name in sizes:
            dtype = tf.as_dtype(view.nodes[view.index[name]].attr["dtype"].type)
            sizes[name] = num_bytes(TensorType(tuple(shard.full_shape), dtype))
    known = frozenset(trained)
    total = sum(sizes.get(name, 0) for name in known)
    found: Dict[str, Dict[str, int]] = {}
    for name, size in sizes.items():
        scope, _, slot = name.rpartition("/")
        owner = _without_scope(scope, known)
        if owner and name not in known and not _without_scope(name, known):
            found.setdefault(slot, {}).setdefault(owner, size)
    sums = {slot: sum(each.values()) for slot, each in found.items()}
    return {slot: size / total for slot, size in sums.items() if size} if total else {}


def _without_scope(name: str, known: Collection[str]) -> str:
    """The known name that a name is, in some scope; "" if it is none."""
    while name and name not in known:
        name = name.partition("/")[2]
    return name
