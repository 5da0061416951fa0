"""The gradients of one owner's shards, followed from tf.gradients into the variables that they update.

gradient of a shard --> clipping, a norm --> update of the shard, of its slots
(given)                 (the user's ops)     (added to the registry)
"""

from typing import ContextManager, Dict, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Gradient
from epl.ir.graph import Graph
from epl.parallel.sharded_variables.slots import adopt_slots, follow_initial_values, slot_placements
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.shard_owner import NewVariable, ShardOwner
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.parallel.sharding.sparse_rows import LOCAL_ROWS, LocalRows
from epl.parallel.sharding.updates import Updates, trace_updates
from epl.utils import tf_compat


class ShardedGradients:
    """The gradients of one owner's shards.

    Attributes:
      own_ops: EPL's ops: they compute with shards, or replace ops of the user.
      traced_after: number of the last op that is too old to belong to an update.
      rows: values and indices of sparse gradients with local rows -> placement of their variable.
      row_shapes: the `dense_shape` of all sparse gradients, likewise.
    """

    def __init__(self, graph: Graph, variables: ShardedVariables, owner: ShardOwner) -> None:
        """Knows of no gradient yet."""
        self._graph = graph
        self._variables = variables
        self._owner = owner
        self.own_ops: Set[tf.Operation] = set()
        self.traced_after = tf_compat.last_op_id(graph.tf_graph)
        self.rows: Dict[tf.Tensor, Placement] = {}
        self.row_shapes: Dict[tf.Tensor, Placement] = {}
        self._placements: Dict[tf.Tensor, Placement] = {}
        self._slots: Dict[str, Placement] = {}
        self._slots_of_rows: Dict[str, Placement] = {}
        self._traced: Optional[Tuple[Tuple[int, ...], Updates]] = None  # the last trace, and what it depends on

    def building(self) -> ContextManager[None]:
        """Ops that are made inside are noted as EPL's."""
        return tf_compat.noting_ops(self._graph.tf_graph, self.own_ops.update)

    def note(self, gradient: Gradient, placement: Placement) -> None:
        """Notes a gradient of a shard, which has the placement `placement`.

        A sparse gradient has local rows, or the rank's columns of all rows.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            self._placements[gradient] = placement
            return
        if gradient.dense_shape is not None:
            self.row_shapes[gradient.dense_shape] = placement
        if placement.dim > 0:
            self._placements[gradient.values] = placement
            return
        rows = (gradient.values, gradient.indices)
        self._placements.update(dict.fromkeys(rows, LOCAL_ROWS))
        self.rows.update(dict.fromkeys(rows, placement))

    def adopt_updates(self, made: Sequence[NewVariable] = ()) -> None:
        """Adds variables that updates write to the registry; `made` are the new ones of an apply_gradients."""
        likely = slot_placements(made, self._variables.shards_of(self._owner.setting))
        self._slots.update(likely.parts)
        self._slots_of_rows.update(likely.of_rows)
        slots = adopt_slots(self.trace().variables, self._owner.resharder, self._owner.setting)
        self._variables.add_slots(slots, self._owner)
        follow_initial_values()

    def is_own(self, op: tf.Operation) -> bool:
        """Whether an op is EPL's: one that computes with shards, or replaces an op of the user."""
        return op in self.own_ops or op in self._graph.own_ops

    def trace(self) -> Updates:
        """How the gradients flow through the ops that exist now."""
        placements = {name: info.placement for name, info in self._variables.of(self._owner.setting).items()}
        variables = {**self._slots, **placements}
        tf_graph = self._graph.tf_graph
        sizes = (len(self._placements), len(self.row_shapes), len(self._slots_of_rows))
        facts = (tf_compat.last_op_id(tf_graph), self.traced_after, *sizes)
        if self._traced is not None and self._traced[0] == facts:
            updates = self._traced[1]
            if variables.items() <= updates.variables.items():  # what it found was added to the registry since
                return updates
        updates = trace_updates(
            tf_graph,
            self._placements,
            variables,
            self._owner.ranks,
            self.traced_after,
            self.own_ops | self._graph.own_ops,
            self._graph.common_branches,
            LocalRows(self.row_shapes, self._slots_of_rows),
        )
        self._traced = (facts, updates)
        return updates
