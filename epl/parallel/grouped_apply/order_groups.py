"""Gradients are applied in groups of variables, one group after the other, last to first (`optimizer.num_apply_group`).

    g3 --> update 3 --> w3              g3 --> update 3 --> w3 --> barrier
    g2 --> update 2 --> w2              g2 --> update 2 --> w2 ------^ |
    g1 --> update 1 --> w1      =>      g1 --> update 1 --> w1  <------'
    g0 --> update 0 --> w0              g0 --> update 0 --> w0  <------'

What an update holds in memory besides its variable (intermediate values, gradients that were float16 on the wire) then
exists for one group at a time. An op waits unless an earlier group needs it, too: what updates share (norms, learning
rates, powers of beta) runs when it is ready. Reads run then as well, so that updates see the same values as without.

The gradients of last layers are ready first, so the last variables are the first group. A group has variables of one
stage that are updated in one branch of control flow.

A barrier (`barriers.py`) is fed, which takes it out, in runs that do not
apply all gradients of the call: such a run changes nothing that it would not change without groups.
"""

import logging
from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.gradient_boundary import tensors_of
from epl.ir.graph import ApplyCall
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.grouped_apply import groups as apply_groups
from epl.parallel.grouped_apply.groups import Update
from epl.parallel.plan.stages import stage_of_op
from epl.parallel.rewriting.barriers import build_barrier
from epl.parallel.rewriting.context import Order, RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.utils import tf_compat

logger = logging.getLogger("epl")

# Ops that never wait: they hold no memory, or stand on both sides of a branch.
_NEVER_WAIT = frozenset(
    op_types.VARIABLES
    | op_types.PLACEHOLDERS
    | op_types.SWITCHES
    | op_types.MERGES
    | op_types.ENTERS
    | op_types.EXITS
    | op_types.NEXT_ITERATIONS
    | {"Const"}
)
_LONGEST_LIST = 3  # of names in a message


class UpdateChain(NamedTuple):
    """Updates that are put in order.

    Attributes:
      scope: name for ops and messages.
      stage: of their variables.
      context: the branch in which they run, or None.
      updates: the first one first.
    """

    scope: str
    stage: int
    context: Any
    updates: List[Update]


def run(rewrite: RewriteContext) -> None:
    """Orders the updates of every call of apply_gradients."""
    count = rewrite.config.optimizer.num_apply_group
    if count == 1:
        return
    if not rewrite.graph.apply_calls:
        logger.warning("optimizer.num_apply_group is %d, and no optimizer applies gradients: it has no effect.", count)
        return
    ordering = _Ordering(rewrite, GraphView(rewrite.tf_graph))
    for chain in ordering.chains(count):
        ordering.order(chain, count)


class _Ordering:
    """Orders updates in one graph."""

    def __init__(self, rewrite: RewriteContext, view: GraphView) -> None:
        self._rewrite = rewrite
        self._view = view
        self._phases: Dict[bytes, bytes] = {}  # attributes -> phase: most nodes share theirs

    def chains(self, count: int) -> List[UpdateChain]:
        """The updates of each call, to be put into `count` groups; those of each stage and branch by themselves."""
        gradients = [self._gradients_of(call) for call in self._rewrite.graph.apply_calls]
        everything: Set[int] = set().union(*gradients)
        result: List[UpdateChain] = []
        left_out: List[int] = []
        for number, own in enumerate(gradients):
            found = apply_groups.find_updates(self._view, own, everything - set(own), self._is_own)
            left_out += found.left_out
            chains: Dict[Tuple[int, int], UpdateChain] = {}
            for update in reversed(found.of_call):
                stage, context = self._stage(update), self._context(update.writes[0])
                scope = f"apply{number}/order{len(chains)}"
                chains.setdefault((stage, id(context)), UpdateChain(scope, stage, context, [])).updates.append(update)
            result += [chain for chain in chains.values() if len(chain.updates) > 1]
            left_out += [chain.updates[0].variable for chain in chains.values() if len(chain.updates) == 1]
        if left_out:
            logger.warning(
                "optimizer.num_apply_group is %d; %d variable(s) are in no group, as what updates them was not found, "
                "updates several, or is alone in its stage or branch: %s.",
                count,
                len(left_out),
                self._names(left_out),
            )
        return result

    def order(self, chain: UpdateChain, count: int) -> None:
        """Puts a chain in order, in at most `count` groups."""
        indices = apply_groups.balanced_groups([update.bytes for update in chain.updates], count)
        groups = [[chain.updates[i] for i in group] for group in indices]
        logger.info(
            "%s: %d variables of stage %d are updated in %d groups of %s bytes",
            chain.scope,
            len(chain.updates),
            chain.stage,
            len(groups),
            ", ".join(str(sum(update.bytes or 0 for update in group)) for group in groups),
        )
        writes = [self._writes(group, chain.context) for group in groups]
        barriers = self._barriers(chain, writes[:-1])
        upstream: Set[int] = set()
        for before, group, (_, barrier) in zip(writes, groups[1:], barriers):
            upstream |= self._view.ancestors(before, upstream.__contains__)
            for node in self._starts(group, upstream, chain.context):
                tf_compat.add_control_inputs(self._rewrite.remember(self._operation(node)), [barrier])
                self._view.producers[node].extend(before)  # the barrier is not in the view: as if there were none
        names = frozenset(self._view.nodes[write].name for update in chain.updates for write in update.writes)
        self._rewrite.orders.append(Order(tuple(name for name, _ in barriers), names))

    def _barriers(self, chain: UpdateChain, writes: Sequence[Sequence[int]]) -> List[Tuple[str, tf.Operation]]:
        """Behind each group but the last, the barrier at which the next one waits."""
        rewrite = self._rewrite
        with rewrite.building(chain.scope, chain.stage):
            with tf_compat.control_flow_context(rewrite.tf_graph, chain.context):
                return [build_barrier([self._operation(write) for write in group]) for group in writes]

    def _starts(self, group: Sequence[Update], upstream: Set[int], context: Any) -> List[int]:
        """The first ops of the updates of a group, but for those that earlier groups need (`upstream`)."""
        view = self._view
        own = {variable for update in group for write in update.writes for variable in view.variable_inputs(write)}
        ops: Set[int] = set().union(*[update.ops for update in group])
        waiting = {
            node
            for node in ops - upstream
            if self._is_own(node)
            and view.types[node] not in _NEVER_WAIT
            and not apply_groups.is_read(view, node)
            and own.issuperset(view.variable_inputs(node))
            and self._context(node) is context
        }
        return sorted(node for node in waiting if waiting.isdisjoint(view.producers[node]))

    def _writes(self, group: Sequence[Update], context: Any) -> List[int]:
        """What a barrier can wait for: an op in another branch might never run."""
        return [write for update in group for write in update.writes if self._context(write) is context]

    def _is_own(self, node: int) -> bool:
        """Whether a node was built by apply_gradients, or by the plan in front of it, after the collectives."""
        proto = self._view.nodes[node]
        attrs = proto.serialized_attrs
        if attrs not in self._phases:
            self._phases[attrs] = proto.attr[PHASE_ATTR].s
        phase = self._phases[attrs]
        if phase:
            return phase == Phase.APPLY.encode()
        return proto.name in self._rewrite.built and self._view.types[node] not in COLLECTIVE_OP_TYPES

    def _gradients_of(self, call: ApplyCall) -> Dict[int, int]:
        index = self._view.index
        return {
            index[tensor.op.name]: index[self._rewrite.shard_of(variable)]
            for variable, gradient in call.boundaries
            for tensor in tensors_of(gradient)
        }

    def _stage(self, update: Update) -> int:
        return stage_of_op(self._operation(update.variable), self._rewrite.plan.stages)

    def _context(self, node: int) -> Any:
        return tf_compat.control_flow_context_of(self._operation(node))

    def _operation(self, node: int) -> tf.Operation:
        return self._rewrite.operation(self._view.nodes[node].name)

    def _names(self, nodes: Sequence[int]) -> str:
        names = [self._view.nodes[node].name for node in nodes]
        return ", ".join(names[:_LONGEST_LIST]) + (", ..." if len(names) > _LONGEST_LIST else "")


PASS = Pass(
    "group_apply",
    run,
    "optimizer.num_apply_group",
    adds=names("orders"),
    after=names("aggregate_gradients order_gathers"),
    plain=True,
    optional=True,
)
