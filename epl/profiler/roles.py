"""The role of an op in a traced step: replica, stage, micro batch, pass, communicator.

The role follows from the marks in the op's NodeDef, and from the prefixes that the rewriting gave to copies. Ops that
TensorFlow makes when it optimizes a graph have no marks, but their prefix still shows the replica and the micro batch.
A graph without a plan has one replica; its passes are known where EPL recorded them.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR, Phase
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.plan.stages import stage_of_taskgraph
from epl.parallel.rewriting.context import PLAN_SCOPE, RewriteContext


class RoleKind:
    """What an op does in a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"  # an activation that the backward pass computes a second time
    UPDATE = "update"
    COLLECTIVE = "collective"
    PLAN = "plan"  # other ops that the rewriting added: sums of gradients, barriers of the schedule
    TRANSFER = "transfer"  # between processes
    OTHER = "other"  # made by TensorFlow, or in a graph that EPL did not record


class Role(NamedTuple):
    """The role of an op.

    Attributes:
      kind: a constant of Kind.
      replica: index among the replicas of this process; 0 is the user's own graph.
      stage: None in a model of one stage, and if it is not known.
      micro_batch: None for what runs once per step.
      communicator: of a collective, else "".
      key: of a collective, the same on each of its ranks, else "".
    """

    kind: str
    replica: int
    stage: Optional[int]
    micro_batch: Optional[int]
    communicator: str
    key: str = ""


_PHASES = {Phase.BACKWARD.encode(): RoleKind.BACKWARD, Phase.APPLY.encode(): RoleKind.UPDATE}


class Roles:
    """The roles of the ops of one graph."""

    def __init__(self, tf_graph: tf.Graph) -> None:
        """Reads the graph as it is now, rewritten or not."""
        graph = Graph.of(tf_graph)
        self.rewrite: Optional[RewriteContext] = None if graph is None else graph.rewritten
        self._recorded = graph is not None and bool(graph.gradient_calls)
        self._view = GraphView(tf_graph)
        self._known: Dict[Tuple[str, str], Role] = {}
        self._recomputed = set()
        self._replicas: List[Tuple[str, int]] = []
        self._micro_batches: List[Tuple[str, int]] = []
        self._places: Dict[str, Tuple[int, List[int]]] = {}
        rewrite = self.rewrite
        if rewrite is not None:
            self._recomputed = {copy for copies in rewrite.recomputed.values() for copy in copies}
            self._replicas = [(rewrite.prefix(i), i) for i in range(1, rewrite.local_replicas)]
            self._micro_batches = [(rewrite.micro_prefix(m), m) for m in range(1, rewrite.plan.num_micro_batch)]
            self._stage_of_taskgraph = stage_of_taskgraph(rewrite.plan.stages)
            for replica in range(rewrite.local_replicas):
                for stage in range(len(rewrite.plan.stages)):
                    self._places.setdefault(rewrite.device(stage, replica), (replica, []))[1].append(stage)

    def of(self, op: str, device: str, op_type: str = "") -> Role:
        """The role of an op.

        Args:
          op: its name, as in a trace.
          device: the device on which it ran.
          op_type: its type, if the trace has it.
        """
        key = (op, device)
        if key not in self._known:
            self._known[key] = self._find(op, device, op_type)
        return self._known[key]

    def place(self, device: str) -> Optional[Tuple[int, List[int]]]:
        """The replica and the stages that the plan puts on a device; None if there are none."""
        for name, place in self._places.items():
            if device.endswith(name):
                return place
        return None

    def _find(self, op: str, device: str, op_type: str) -> Role:
        replica, in_replica = _without_prefix(op, self._replicas)
        copy, name = _without_prefix(in_replica, self._micro_batches)
        stage = self._stage(in_replica, device)
        if op_type == "RecvTensor":
            return Role(RoleKind.TRANSFER, replica, stage, None, "")
        node = self._view.nodes[self._view.index[op]] if op in self._view.index else None
        communicator = key = ""
        if node is not None and node.op in COLLECTIVE_OP_TYPES:
            communicator, key = (node.attr[name].s.decode() for name in ("communicator", "key"))
        varies = self.rewrite is not None and (name in self.rewrite.micro_batched or copy > 0)
        kind = RoleKind.COLLECTIVE if communicator else self._kind(op, name)
        return Role(kind, replica, stage, copy if varies else None, communicator, key)

    def _kind(self, op: str, name: str) -> str:
        if name in self._recomputed:
            return RoleKind.RECOMPUTE
        if self.rewrite is not None and name in self.rewrite.added:
            return RoleKind.PLAN
        if op not in self._view.index and self.rewrite is not None:
            return RoleKind.PLAN if PLAN_SCOPE in name.split("/") else RoleKind.OTHER
        if not self._recorded or op not in self._view.index:
            return RoleKind.OTHER
        attrs = self._view.nodes[self._view.index[op]].attr
        return _PHASES.get(attrs[PHASE_ATTR].s, RoleKind.FORWARD) if PHASE_ATTR in attrs else RoleKind.FORWARD

    def _stage(self, in_replica: str, device: str) -> Optional[int]:
        rewrite = self.rewrite
        if rewrite is None or len(rewrite.plan.stages) == 1:
            return None
        if in_replica in rewrite.stage_of:
            return rewrite.stage_of[in_replica]
        if in_replica in self._view.index:
            attrs = self._view.nodes[self._view.index[in_replica]].attr
            if TASKGRAPH_ATTR in attrs:
                return self._stage_of_taskgraph.get(attrs[TASKGRAPH_ATTR].i)
        place = self.place(device)
        return place[1][0] if place is not None and len(place[1]) == 1 else None


def _without_prefix(name: str, prefixes: List[Tuple[str, int]]) -> Tuple[int, str]:
    """The copy that a name belongs to, 0 for the original, and the name there.

    TensorFlow puts ops that it adds for another op into a scope of its own, which may come before the prefix.
    """
    for prefix, copy in prefixes:
        scope, found, rest = ("/" + name).partition("/" + prefix)
        if found:
            return copy, f"{scope}/{rest}".lstrip("/")
    return 0, name
