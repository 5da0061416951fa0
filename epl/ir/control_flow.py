"""Loops and branches of a graph (control flow v1), found by its control-flow ops.

    x -> Enter -> Merge -> Switch -> body -> NextIteration -+      pred, x -> Switch -> branch -> Merge
                    ^        '----> Exit                    |                   '-----> branch -----^
                    '---------------------------------------+

Enter and Switch lead in, Exit and Merge out. The back edge of a loop, from NextIteration to Merge, is not followed.
"""

from typing import Dict, List, Sequence, Tuple

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.ir.walks import topological_order


def data_order(view: GraphView) -> Sequence[int]:
    """All nodes, each after its producers, otherwise in creation order.

    Creation order is not enough where there is control flow: the Switch or Enter of an outer value is created after the
    op that reads it.
    """
    return run_order(view) if view.of_types(op_types.SWITCHES | op_types.ENTERS) else range(len(view))


def run_order(view: GraphView) -> List[int]:
    """The same, also if passes have given ops producers that were created later."""
    back_edges = set(view.of_types(op_types.NEXT_ITERATIONS))
    consumers = view.consumers()
    waiting = [sum(p not in back_edges for p in producers) for producers in view.producers]
    return topological_order(dict(enumerate(waiting)), lambda node: () if node in back_edges else consumers[node])


def loops_of(view: GraphView) -> Dict[int, int]:
    """The outermost loop of each node in a loop or at its exit; a loop is named by one of its Enter nodes."""
    if not view.of_types(op_types.ENTERS):
        return {}
    frames: Dict[Tuple[int, bytes], int] = {}
    stacks: Dict[int, Tuple[int, ...]] = {}  # node -> its loops, outermost first
    loops: Dict[int, int] = {}
    for node in data_order(view):
        stack: Tuple[int, ...] = ()
        for producer in view.producers[node]:
            if producer in stacks and view.types[producer] not in op_types.NEXT_ITERATIONS:
                stack = max(stack, stacks[producer], key=len)
        if view.types[node] in op_types.ENTERS:
            frame = (len(stack), view.nodes[node].attr["frame_name"].s)
            stack += (frames.setdefault(frame, node),)
        if stack:
            loops[node] = stack[0]
        if view.types[node] in op_types.EXITS:
            stack = stack[:-1]
        if stack:
            stacks[node] = stack
    return loops


def depths_of(view: GraphView) -> List[Tuple[int, int]]:
    """Per node, the number of loops around it, and of branches around it that may not be taken."""
    depths = [(0, 0)] * len(view)
    if not view.of_types(op_types.SWITCHES | op_types.ENTERS):
        return depths
    for node in data_order(view):
        op_type = view.types[node]
        is_merge = op_type in op_types.MERGES
        producers = view.producers[node]
        before = [depths[p] for p in producers if not (is_merge and view.types[p] in op_types.NEXT_ITERATIONS)]
        loops = max([depth[0] for depth in before] or [0])
        branches = max([depth[1] for depth in before] or [0])
        if op_type in op_types.ENTERS:
            loops += 1
        elif op_type in op_types.EXITS:
            loops, branches = loops - 1, branches - 1
        elif op_type in op_types.SWITCHES:
            branches += 1
        elif is_merge and not is_loop_merge(view, node):
            branches -= 1
        depths[node] = (max(loops, 0), max(branches, 0))
    return depths


def is_loop_merge(view: GraphView, node: int) -> bool:
    """Whether a Merge joins the entry and the back edge of a loop, not the branches of a cond."""
    return any(
        view.types[p] in op_types.ENTERS or view.types[p] in op_types.NEXT_ITERATIONS for p in view.producers[node]
    )


def ends_of(view: GraphView, node: int, depths: Sequence[Tuple[int, int]]) -> List[int]:
    """The first nodes after a node that always run, and once; the node itself if it is in no branch or loop."""
    if depths[node] == (0, 0):
        return [node]
    consumers = view.consumers()
    found = set()
    seen = {node}
    stack = [node]
    while stack:
        for consumer in consumers[stack.pop()]:
            if consumer not in seen:
                seen.add(consumer)
                if depths[consumer] == (0, 0):
                    found.add(consumer)
                else:
                    stack.append(consumer)
    return sorted(found)
