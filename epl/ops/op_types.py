"""Which op types are collectives, and how to read one in a graph: a table for code that orders, checks or counts them.

Every op of these types has the attributes `communicator`, `rank` and `key`. `collectives.py` builds them.
"""

from typing import Dict, NamedTuple


class CollectiveOpType(NamedTuple):
    kind: str
    first_tensor: int
    fused: bool
    reduces: bool


COLLECTIVE_OP_TYPES: Dict[str, CollectiveOpType] = {
    "EplAllReduce": CollectiveOpType("all_reduce", first_tensor=1, fused=True, reduces=True),
    "EplReduce": CollectiveOpType("reduce", first_tensor=1, fused=True, reduces=True),
    "EplBroadcast": CollectiveOpType("broadcast", first_tensor=0, fused=True, reduces=False),
    "EplAllGather": CollectiveOpType("all_gather", first_tensor=0, fused=False, reduces=False),
    "EplReduceScatter": CollectiveOpType("reduce_scatter", first_tensor=1, fused=False, reduces=True),
    "EplAllToAll": CollectiveOpType("all_to_all", first_tensor=0, fused=False, reduces=False),
    "EplAllToAllV": CollectiveOpType("all_to_all", first_tensor=0, fused=False, reduces=False),
}
