"""How often an op inside tf.while_loop runs: the frames of nodes, and the trip counts that the graph shows.

forward loop     counts a variable up to a bound, which the graph shows
its gradient     counts the turns of the forward loop down: it runs as often
"""

from typing import Collection, Dict, Iterable, List, Optional, Tuple

from epl.ir.view import GraphView
from epl.parallel.costs.folding import Folding, Number

Frames = Dict[int, Tuple[str, ...]]  # node -> names of the loops it runs in, outermost first; absent: none

_ENTERS = frozenset(["Enter", "RefEnter"])
_EXITS = frozenset(["Exit", "RefExit"])
_NAMED = 2  # loops that a note names


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
    conditions = {
        frames[node][-1]: folding.data_inputs(node)[0][0] for node in view.of_types(["LoopCond"]) if node in frames
    }
    for name, condition in conditions.items():
        counts[name] = _limit(view, folding, condition)
    for name, condition in conditions.items():
        if counts[name] is None:
            forward = _counted_down(view, folding, condition)
            counts[name] = None if forward is None else counts.get(frames[forward][-1])
    return counts


def unbounded_notes(names: Iterable[str]) -> List[str]:
    """What is assumed of loops whose number of turns is not known, in a sentence for all of them; [] if there is none.

    Args:
      names: of the loops.
    """
    loops = list(dict.fromkeys(names))
    if len(loops) < 2:
        return [f"loop {name}: the number of its iterations is not known and counts as 1" for name in loops]
    more = f" and {len(loops) - _NAMED} more" if len(loops) > _NAMED else ""
    return [f"loops {', '.join(loops[:_NAMED])}{more}: the number of their iterations is not known and counts as 1"]


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


def _counted_down(view: GraphView, folding: Folding, condition: int) -> Optional[int]:
    """The Exit of the counter of a forward loop that the condition of its gradient counts down from; None: of none."""
    if view.types[condition] != "GreaterEqual":
        return None
    merge = folding.data_inputs(condition)[0][0]
    if view.types[merge] != "Merge":
        return None
    enter, back = [producer for producer, _ in folding.data_inputs(merge)]
    if view.types[enter] not in _ENTERS or view.types[folding.data_inputs(back)[0][0]] != "Sub":
        return None
    start = folding.data_inputs(enter)[0][0]
    if view.types[start] not in _EXITS:
        return None
    counter = folding.data_inputs(folding.data_inputs(start)[0][0])[0][0]  # Exit <- Switch <- Merge
    return start if _counter(view, folding, counter) == (0, 1) else None


def _frame_name(view: GraphView, node: int) -> str:
    return view.nodes[node].attr["frame_name"].s.decode()
