"""The algorithms of collectives, by transport and kind: the one table that plans and simulations ask.

transport      named as in the core (csrc/comm/transport.cc)
auto           direct: each process exchanges with each other one (csrc/comm/program.cc)
hierarchical   in each machine, then between the processes of equal place; small broadcasts are direct
               (csrc/comm/program_hierarchical.cc)
nccl           rings, and a tree over machines for all-reduce; all-to-all is a group of messages (csrc/comm/nccl.cc)
"""

from typing import Dict, Tuple

FLAT, HIERARCHICAL, NCCL = "auto", "hierarchical", "nccl"

# Memory in which each rank of an NCCL communicator packs small tensors (kPackBytes of csrc/comm/nccl.cc).
NCCL_PACK_BYTES = 8 << 20

# Up to here a hierarchical broadcast is flat (kFlatBroadcastBytes of csrc/comm/program_hierarchical.cc).
FLAT_BROADCAST_BYTES = 4 << 10

RING, TREE, DIRECT, BY_MACHINES = "ring", "tree", "direct", "hierarchical"

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all")

ALGORITHMS: Dict[str, Dict[str, Tuple[str, ...]]] = {
    FLAT: dict.fromkeys(KINDS, (DIRECT,)),
    HIERARCHICAL: {**dict.fromkeys(KINDS, (BY_MACHINES,)), "broadcast": (BY_MACHINES, DIRECT), "all-to-all": (DIRECT,)},
    NCCL: {
        "all-reduce": (RING, TREE, BY_MACHINES),
        "reduce-scatter": (RING,),
        "all-gather": (RING,),
        "broadcast": (RING,),
        "all-to-all": (DIRECT,),
    },
}


def transport_between(device_type: str, hierarchical: bool) -> str:
    """The transport between devices of a type, "CPU" or "GPU".

    Args:
      device_type: of the devices whose memory has the tensors.
      hierarchical: whether the plan found hierarchical collectives faster (`communication.hierarchy`).
    """
    if device_type == "GPU":
        return NCCL  # it finds machines by itself
    return HIERARCHICAL if hierarchical else FLAT


def may_be_hierarchical(device_type: str) -> bool:
    """Whether the core has a hierarchical transport between devices of a type."""
    return transport_between(device_type, True) == HIERARCHICAL
