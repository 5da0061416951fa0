"""When a segment is recomputed: just before the backward pass reads it.

    loss --> b4 --> b3 --> b2 --> b1        b2 and b1 read the recomputed f2' and f1'
                     `----> wait --> f1' --> f2'

TensorFlow runs an op as soon as its inputs exist, so without waits all segments would be recomputed at once and held in
memory, as without recomputation. A segment waits for the backward inputs of its first users, and for the users of the
following segment, whose memory is free then. A wait that would close a cycle is left out.
"""

from typing import Collection, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from epl.ir.view import GraphView
from epl.parallel.recompute.segments import BackwardPass, Segment


def find_waits(
    view: GraphView,
    backward: BackwardPass,
    segments: Sequence[Segment],
    moving: Set[int],
    depths: Sequence[Tuple[int, int]],
    stages: Sequence[int],
) -> List[List[int]]:
    """For each segment, the nodes that it waits for.

    Args:
      view: the graph.
      backward: the backward pass, with its forward pass.
      segments: the segments, in the order of the forward pass.
      moving: nodes that depend on the data of the step; all others can run at its beginning.
      depths: depth in loops and branches, per node: no segment waits for an op in a branch, which may never run.
      stages: the stage of each node.
    """
    users = [{use.consumer for use in segment.uses} for segment in segments]
    waiting: Dict[int, List[int]] = {}  # node -> the segments that wait for it
    waits: List[List[int]] = [[] for _ in segments]
    for number in range(len(segments) - 1, -1, -1):
        stage = segments[number].place[0]
        after = _after(view, backward.nodes, users[number], users, waiting)
        first = users[number] - after
        wanted = {p for node in first for p in view.producers[node] if p in backward.nodes}
        if number + 1 < len(segments) and segments[number + 1].place[0] == stage:
            wanted |= users[number + 1]
        allowed = {
            node
            for node in wanted - after - users[number]
            if node in moving and depths[node] == (0, 0) and stages[node] >= stage
        }
        if not allowed:  # the gradient does not depend on the data yet: wait for the end of the forward pass
            allowed = {node for node in backward.ys if depths[node] == (0, 0) and stages[node] >= stage}
        waits[number] = sorted(allowed)
        for node in allowed:
            waiting.setdefault(node, []).append(number)
    return waits


def late_reads(
    view: GraphView,
    backward: BackwardPass,
    segments: Sequence[Segment],
    waits: Sequence[Sequence[int]],
    gradients: Mapping[int, Collection[int]],
    viewed: Mapping[int, Collection[int]],
) -> Dict[int, List[int]]:
    """The recomputed nodes that must read a variable before the optimizer writes it.

    Args:
      view: the graph.
      backward: the backward pass, with its forward pass.
      segments: the segments, in the order of the forward pass.
      waits: the nodes that each segment waits for.
      gradients: variable -> the nodes that compute its gradient.
      viewed: node whose output may be memory of variables -> the variables.

    Returns:
      Node that computes a gradient -> nodes whose copies run before it.
    """
    users = [{use.consumer for use in segment.uses} for segment in segments]
    waiting: Dict[int, List[int]] = {}
    for number, nodes in enumerate(waits):
        for node in nodes:
            waiting.setdefault(node, []).append(number)
    readers: Dict[int, Dict[int, int]] = {}  # gradient -> the copies, with their segments
    for number, segment in enumerate(segments):
        for node in segment.nodes:
            for producer in view.producers[node]:
                for gradient in {g for variable in viewed.get(producer, ()) for g in gradients.get(variable, ())}:
                    readers.setdefault(gradient, {})[node] = number
    found: Dict[int, List[int]] = {}
    for gradient, copies in readers.items():
        after = _after(view, backward.nodes, [gradient], users, waiting) | {gradient}
        later = {number for number in set(copies.values()) if not after.isdisjoint(waits[number])}
        found[gradient] = sorted(node for node, number in copies.items() if number not in later)
    return found


def _after(
    view: GraphView,
    backward: Set[int],
    starts: Iterable[int],
    users: Sequence[Set[int]],
    waiting: Dict[int, List[int]],
) -> Set[int]:
    """The nodes after `starts` in the backward pass, also those reached through segments that wait."""
    consumers = view.consumers()
    seen: Set[int] = set()
    stack = list(starts)
    while stack:
        node = stack.pop()
        following = [consumer for consumer in consumers[node] if consumer in backward]
        for segment in waiting.get(node, ()):
            following.extend(users[segment])
        for other in following:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen
