"""ZeRO v2: gathers of later blocks wait for the reduction of earlier gradients, so few gradients are alive at a time.

    gather w3 --> backward of layer 4 --> gradient 4 --> reduce-scatter 4 --> barrier
                                      '-> backward of layer 3 --> ...            '--> gather w1

Otherwise a backward pass does not wait for the collectives of its gradients: on a busy machine or a slow network, all
gradients of a step are in memory at a time, as many bytes as all weights.

A gather waits for collectives of gradients that need only weights of at least `_LAG` blocks before: so no edge closes a
cycle, and there is work to do meanwhile. A gather waits for the one training that needs it; a gather that several
trainings need waits for none, as they may run separately, on different data. Runs without updates feed the barriers, so
they compute no gradient that was not asked for.
"""

from typing import Dict, Iterable, List, Sequence, Set, Tuple

from epl.ir.control_flow import depths_of, run_order
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import Order, RewriteContext, ScheduledGather
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.weights.prefetch import Needed
from epl.parallel.zero.model import zero_of
from epl.utils import tf_compat

# Blocks. The gradients of a block are complete when the next block begins; they are reduced while that block and the
# following one are computed. So the gradients of at most four blocks are alive, if a bucket holds the gradients of one
# block. With 3, steps of 40 small layers took 4% longer.
_LAG = 4


def run(rewrite: RewriteContext) -> None:
    """Orders the gathers of each stream."""
    for number, stream in enumerate(rewrite.gather_streams):
        _order(rewrite, stream, number)


def _order(rewrite: RewriteContext, stream: Sequence[ScheduledGather], number: int) -> None:
    """Orders one stream. The view is built for each stream, so it contains the edges added for those before."""
    view = GraphView(rewrite.tf_graph)
    blocks = {view.index[gather.op]: gather.block for gather in stream}
    zero = zero_of(rewrite.graph)
    placeholders = [] if zero is None else zero.placeholders
    updates = {view.index[op.name] for one in placeholders for op in one.variable.updates()}
    waiting: Dict[int, Dict[int, Set[int]]] = {}  # gather -> reduction that it waits for -> updates after that
    for reductions, own in _trainings(rewrite, view, blocks):
        for reduction, block in _last_blocks(view, blocks, reductions).items():
            later = [gather for gather in own if blocks[gather] >= block + _LAG]
            writes = view.descendants([reduction]) & updates if later else set()
            if writes:  # the later gathers of the stream wait for the first one
                waiting.setdefault(later[0], {})[reduction] = writes
    for place, (gather, waits) in enumerate(sorted(waiting.items())):
        with rewrite.building(f"gather_per_use/stream{number}_{place}"):
            name, barrier = build_barrier([rewrite.operation(view.nodes[node].name) for node in sorted(waits)])
        tf_compat.add_control_inputs(rewrite.operation(view.nodes[gather].name), [barrier])
        writes = set().union(*waits.values())
        rewrite.orders.append(Order((name,), frozenset(view.nodes[write].name for write in writes)))


def _trainings(rewrite: RewriteContext, view: GraphView, gathers: Iterable[int]) -> List[Tuple[List[int], List[int]]]:
    """By training, the collectives of gradients that each of its steps runs; and the gathers that only it needs."""
    depths = depths_of(view)
    gradients: Dict[str, Set[int]] = {}  # by gate: groups that share one belong to one training
    for gate in rewrite.gates:
        gradients.setdefault(gate.op.name, set()).update(view.index[name] for name in gate.gradients)
    needed = [view.ancestors(nodes) for nodes in gradients.values()]
    alone = [gather for gather in gathers if sum(gather in nodes for nodes in needed) == 1]
    return [
        (
            sorted(node for node in nodes if view.types[node] in COLLECTIVE_OP_TYPES and depths[node] == (0, 0)),
            [gather for gather in alone if gather in before],
        )
        for nodes, before in zip(gradients.values(), needed)
    ]


def _last_blocks(view: GraphView, blocks: Dict[int, int], nodes: Sequence[int]) -> Dict[int, int]:
    """By node, the last block whose gathers it needs; nodes that need no gather are left out."""
    needed = Needed(view, run_order(view), set(blocks))
    found = {node: [block for gather, block in blocks.items() if needed.by(node, [gather])] for node in nodes}
    return {node: max(of_node) for node, of_node in found.items() if of_node}


PASS = Pass(
    "order_gathers",
    run,
    "zero.level",
    adds=names("orders"),
    requires=names("gather_streams gates"),
    optional=True,
)
