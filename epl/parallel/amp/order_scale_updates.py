"""Orders the updates of the loss scale by several optimizers: in one run, they follow the order of their creation.

    read --> update 0 --> write --> barrier --> read --> update 1 --> write

Otherwise replicas could compute different scales. Runs without both updates feed the barrier.
"""

from epl.ir.control_flow import depths_of, ends_of
from epl.ir.view import GraphView
from epl.parallel.amp.loss_scale import LossScale
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import Order, RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat


def run(rewrite: RewriteContext) -> None:
    """Puts each update of the loss scale after all earlier ones."""
    scale = rewrite.graph.state_of(LossScale)
    updates = [] if scale is None else scale.updates
    if len(updates) < 2:
        return
    view = GraphView(rewrite.tf_graph)
    depths = depths_of(view)
    ends = [sorted({end for name in one.writes for end in ends_of(view, view.index[name], depths)}) for one in updates]
    for number, update in enumerate(updates):
        for before in range(number):
            with rewrite.building(f"loss_scale/order{before}_{number}"):
                name, barrier = build_barrier([rewrite.operation(view.nodes[end].name) for end in ends[before]])
            for read in update.reads:
                tf_compat.add_control_inputs(rewrite.remember(rewrite.operation(read)), [barrier])
            rewrite.orders.append(Order((name,), frozenset(updates[before].writes + update.writes)))


PASS = Pass(
    "order_scale_updates",
    run,
    "amp.level",
    adds=names("orders"),
    after=names("group_apply"),
    plain=True,
)
