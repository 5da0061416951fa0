"""The cheapest resharding of a tensor from its existing forms to the form in which an op takes it, and the cost.

The search and the lowering both call `route`, so the lowering builds what the search has counted.
"""

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import PARTIAL, REPLICATED, Placement, shares
from epl.parallel.split.program import Value, num_bytes
from epl.planner.machine import presets


class Form(NamedTuple):
    """How a rank holds a tensor.

    Attributes:
      placement: of the tensor on the ranks.
      entered: whether it is REPLICATED, for an op that computes on shards: its gradient is a partial sum on each rank.
    """

    placement: Placement
    entered: bool


class Resharding(NamedTuple):
    """One resharding of a tensor.

    Attributes:
      kind: a key of _COLLECTIVES.
      source, target: the form before and after.
      forward, backward: bytes that a rank sends; with uneven shards, the rank that sends most.
    """

    kind: str
    source: Form
    target: Form
    forward: float
    backward: float


class Link(NamedTuple):
    """The connection between the devices of a group.

    Attributes:
      latency: seconds of an empty collective.
      bandwidth: bytes per second that a rank sends.
    """

    latency: float
    bandwidth: float


# By device type. CPU: ranks of one machine; GPU: PCIe 3.0 x16. Assumed, not measured.
_SHM = presets.LINKS["shm"]
LINKS = {"cpu": Link(_SHM.latency, _SHM.bandwidth.reached), "gpu": Link(20e-6, 10e9)}

# Kind -> collective forward, collective backward; "" for none.
_COLLECTIVES: Dict[str, Tuple[str, str]] = {
    "gather": ("all-gather", ""),
    "gather entered": ("all-gather", "reduce-scatter"),
    "enter": ("", "all-reduce"),
    "cut": ("", "all-gather"),
    "sum": ("all-reduce", ""),
    "scatter": ("reduce-scatter", "all-gather"),
    "move": ("all-to-all", "all-to-all"),
}

_Step = Callable[[str, Form, Form], Resharding]

PLAIN = Form(REPLICATED, False)


def collectives(kind: str, trained: bool) -> Tuple[str, str]:
    """Names of the collectives of a resharding, forward and backward; "" for none."""
    forward, backward = _COLLECTIVES[kind]
    return forward, backward if trained else ""


def wanted_form(value: Value, placement: Placement, of_part: bool) -> Form:
    """The form in which an op takes an input; `of_part`: the op computes on shards."""
    return Form(placement, of_part and placement == REPLICATED and value.differentiable)


def route(value: Value, ranks: int, forms: Sequence[Form], wanted: Form) -> Optional[List[Resharding]]:
    """The cheapest reshardings to `wanted`: the first from one of `forms`, each other from the one before it.

    Args:
      value: the tensor.
      ranks: devices in the group.
      forms: its existing forms, the oldest first.
      wanted: the form to make.

    Returns:
      The reshardings, [] if the form exists; None if it cannot be made.
    """
    if wanted in forms:
        return []
    best: Optional[List[Resharding]] = None
    for source in forms:
        for path in _paths(value, ranks, source, wanted):
            if best is None or total_bytes(path) < total_bytes(best):
                best = path
    return best


def total_bytes(path: Sequence[Resharding]) -> float:
    """Bytes that a rank sends in these reshardings, forward and backward."""
    return sum(step.forward + step.backward for step in path)


def count_collectives(path: Sequence[Resharding], trained: bool) -> int:
    """The number of collectives of these reshardings, forward and backward."""
    return sum(len([name for name in collectives(step.kind, trained) if name]) for step in path)


def _paths(value: Value, ranks: int, source: Form, wanted: Form) -> List[List[Resharding]]:
    def step(kind: str, before: Form, after: Form) -> Resharding:
        cut = [form.placement for form in (before, after) if form.placement.is_shard]
        sent = [_size(name, value) * _sent(name, cut, ranks) for name in collectives(kind, value.trained)]
        return Resharding(kind, before, after, sent[0], sent[1])

    # An entered tensor is no source: its gradient is a partial sum.
    if source.entered or wanted.placement == PARTIAL:
        return []
    if wanted.placement == REPLICATED:
        return _paths_to_full(step, source, wanted)
    if wanted.placement.sizes is None and wanted.placement.dim != value.info.batch:
        return []
    if source.placement == REPLICATED:
        return [[step("cut", source, wanted)]]
    if source.placement == PARTIAL:
        return [[step("scatter", source, wanted)]]
    if source.placement.dim != wanted.placement.dim:
        return [[step("move", source, wanted)]]
    return [[step("gather", source, PLAIN), step("cut", PLAIN, wanted)]]


def _paths_to_full(step: _Step, source: Form, wanted: Form) -> List[List[Resharding]]:
    if source.placement == REPLICATED:
        return [[step("enter", source, wanted)]]
    plain = step("gather" if source.placement.is_shard else "sum", source, PLAIN)
    if not wanted.entered:
        return [[plain]]
    then = [plain, step("enter", PLAIN, wanted)]
    return [[step("gather entered", source, wanted)], then] if source.placement.is_shard else [then]


def is_half(collective: str, value: Value) -> bool:
    """Whether a collective sends a tensor as float16."""
    return value.in_half and collective == "all-to-all"


def _size(collective: str, value: Value) -> float:
    """Bytes of the full tensor as a collective sends it."""
    return num_bytes(value) * (tf.float16.size / value.info.dtype.size if is_half(collective, value) else 1.0)


def _sent(collective: str, cut: Sequence[Placement], ranks: int) -> float:
    """The fraction of the full tensor that a rank sends in a collective, by the algorithm that sends least.

    Args:
      collective: its name.
      cut: the placements before and after it that are shards.
      ranks: devices in the group.
    """
    if collective == "all-to-all":
        both = zip(*[shares(placement, ranks) for placement in cut])
        return max(before * (1 - after) for one in both for before, after in (one, one[::-1]))
    # In a ring a rank passes on all shards but one.
    share = 1 - min(shares(cut[0], ranks)) if cut else (ranks - 1) / ranks
    return {"": 0.0, "all-gather": share, "reduce-scatter": share, "all-reduce": 2 * share}[collective]
