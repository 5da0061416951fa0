"""How often an op inside tf.while_loop runs: the frames of nodes, and the trip counts that the graph shows."""

from typing import Collection, Dict, Optional, Tuple

from epl.ir.view import GraphView
from epl.parallel.costs.folding import Folding, Number

Frames = Dict[int, Tuple[str, ...]]  # node -> names of the loops it runs in, outermost first; absent: none

_ENTERS = frozenset(["Enter", "RefEnter"])
_EXITS = frozenset(["Exit", "RefExit"])


def loop_frames(view: GraphView) -> Frames:
    """The loops that each node runs in, found as TensorFlow's executor does: from Enter to Exit."""
    if not view.of_types(_ENTERS):
        return {}
    consumers = view.consumers()
    frames: Frames = {node: () for node, producers in enumerate(view.producers) if not producers}
    stack = list(frames)
    while stack:
        node = stack.pop()
        frame = frames[node][:-1] if view.types[node] in _EXITS else frames[node]
        for consumer in consumers[node]:
            if consumer not in frames:
                entered = view.types[consumer] in _ENTERS
                frames[consumer] = frame + (_frame_name(view, consumer),) if entered else frame
                stack.append(consumer)
    return {node: frame for node, frame in frames.items() if frame}


def trip_counts(view: GraphView, folding: Folding, frames: Frames) -> Dict[str, Optional[int]]:
    """How often the body of each loop runs, None if the graph does not show it."""
    counts: Dict[str, Optional[int]] = {}
    for node in view.of_types(["LoopCond"]):
        if node in frames:
            counts[frames[node][-1]] = _limit(view, folding, folding.data_inputs(node)[0][0])
    return counts


def runs(frames: Frames, counts: Dict[str, Optional[int]], nodes: Collection[int]) -> Dict[int, int]:
    """How often each of the nodes that are in loops runs; a loop of unknown length counts once."""
    result = {}
    for node in nodes:
        if node in frames:
            times = 1
            for name in frames[node]:
                times *= counts.get(name) or 1
            result[node] = times
    return result


def _limit(view: GraphView, folding: Folding, condition: int) -> Optional[int]:
    """How often a loop with this condition runs at most, if it counts a variable up to a bound."""
    op_type = view.types[condition]
    inputs = [producer for producer, _ in folding.data_inputs(condition)]
    if op_type == "LogicalAnd":
        known = [limit for limit in (_limit(view, folding, node) for node in inputs) if limit is not None]
        return min(known) if known else None
    if op_type in ("Greater", "GreaterEqual"):
        inputs.reverse()
    elif op_type not in ("Less", "LessEqual"):
        return None
    return trips(op_type, *_counter(view, folding, inputs[0]), folding.scalar(inputs[1]))


def trips(compared: str, start: Number, step: Number, bound: Number) -> Optional[int]:
    """How often a loop runs that counts from `start` in steps up to a bound; None if one of them is not known.

    Args:
      compared: op type of the comparison: less or greater than the bound, or equal to it, too.
      start, step, bound: the numbers.
    """
    if bound is None or start is None or step is None or step <= 0:
        return None
    found = (bound - start) // step + 1 if compared.endswith("Equal") else -((start - bound) // step)
    return max(0, int(found))


def _counter(view: GraphView, folding: Folding, node: int) -> Tuple[Optional[float], Optional[float]]:
    """(first value, step) of a loop variable to which each iteration adds a constant."""
    if view.types[node] != "Merge":
        return None, None
    enter, back = [producer for producer, _ in folding.data_inputs(node)]
    added = folding.data_inputs(back)[0][0]
    if view.types[back] != "NextIteration" or view.types[added] not in ("Add", "AddV2"):
        return None, None
    steps = [folding.scalar(producer) for producer, _ in folding.data_inputs(added)]
    known = [step for step in steps if step is not None]
    return folding.scalar(enter), known[0] if len(known) == 1 else None


def _frame_name(view: GraphView, node: int) -> str:
    return view.nodes[node].attr["frame_name"].s.decode()
