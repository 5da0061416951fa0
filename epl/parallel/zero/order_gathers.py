"""ZeRO v2: gradients are on their way before many more weights are gathered, so that few of them are there at a time.

    gather w3 --> backward of layer 4 --> gradient 4 --> reduce-scatter 4 --> barrier
                                      '-> backward of layer 3 --> ...            '--> gather w1

Without it nothing lets a backward pass wait for the collectives of its gradients: on a busy machine, or a slow network,
all gradients of a step wait for them at a time, as many bytes as all weights.

What a collective of gradients needs is gathered `_LAG` blocks before what waits for it: so no edge closes a circle, and
there is something to compute meanwhile. A gather waits for the one training that needs it; one that several need waits
for none, as they may run apart, with data of their own. The barriers are fed in runs that do not make the updates: such
a run computes no gradient that nobody asked for.
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

# Blocks. The gradients of one are there when the next begins; they are reduced while that and the one behind it are
# computed. So those of four blocks are alive at most, where a bucket has the gradients of one block. With 3, steps of
# 40 small layers took 4% longer.
_LAG = 4


def run(rewrite: RewriteContext) -> None:
    """Lets gathers wait."""
    for number, stream in enumerate(rewrite.gather_streams):
        _order(rewrite, stream, number)


def _order(rewrite: RewriteContext, stream: Sequence[ScheduledGather], number: int) -> None:
    """Orders one stream. Another is ordered in the graph that has the edges of this one."""
    view = GraphView(rewrite.tf_graph)
    blocks = {view.index[gather.op]: gather.block for gather in stream}
    zero = zero_of(rewrite.graph)
    placeholders = [] if zero is None else zero.placeholders
    updates = {view.index[op.name] for one in placeholders for op in one.variable.updates()}
    waiting: Dict[int, Dict[int, Set[int]]] = {}  # gather -> what it waits for -> the updates behind that
    for reductions, own in _trainings(rewrite, view, blocks):
        for reduction, block in _last_blocks(view, blocks, reductions).items():
            later = [gather for gather in own if blocks[gather] >= block + _LAG]
            writes = view.descendants([reduction]) & updates if later else set()
            if writes:  # the gathers behind the first one in the stream wait for it
                waiting.setdefault(later[0], {})[reduction] = writes
    for place, (gather, waits) in enumerate(sorted(waiting.items())):
        with rewrite.building(f"regather/stream{number}_{place}"):
            name, barrier = build_barrier([rewrite.operation(view.nodes[node].name) for node in sorted(waits)])
        tf_compat.add_control_inputs(rewrite.operation(view.nodes[gather].name), [barrier])
        writes = set().union(*waits.values())
        rewrite.orders.append(Order((name,), frozenset(view.nodes[write].name for write in writes)))


def _trainings(rewrite: RewriteContext, view: GraphView, gathers: Iterable[int]) -> List[Tuple[List[int], List[int]]]:
    """By training, the collectives of gradients that each of its steps runs; and the gathers that it alone needs."""
    depths = depths_of(view)
    gradients: Dict[str, Set[int]] = {}  # groups that count together are of one training
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
    """The last block that each node needs a gather of; those that need none are left out."""
    needed = Needed(view, run_order(view), set(blocks))
    found = {node: [block for gather, block in blocks.items() if needed.by(node, [gather])] for node in nodes}
    return {node: max(of_node) for node, of_node in found.items() if of_node}


PASS = Pass(
    "order_gathers",
    run,
    adds=names("orders"),
    requires=names("gather_streams gates"),
    optional=True,
)
