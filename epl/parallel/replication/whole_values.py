"""Builds the wholes of values that depend on rows, as `epl/parallel/sharding/row_lowering.py` has decided.

    rows of the replica --> gathered --> rows of all replicas
    sum or mean over rows --> added up --> sum or mean over all rows
    op that takes wholes --> copy of it on wholes

How rows are gathered and sums added up is another matter: by collectives, or by markers that a later pass replaces.
"""

from typing import Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import copy_op
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.sharding.forward_shapes import ASKS_SHAPE
from epl.parallel.sharding.row_flow import COUNT, PARTIAL_SUM, ROWS, Output
from epl.parallel.sharding.row_lowering import RowLowering, Taken


class WholeValues:
    """Builds the wholes of values, each once. Subclasses say how.

    `now` is the tensor that takes the place of an output: ZeRO and offload give each use of a weight a read of its own,
    and the one that the view knows may hold nothing.
    """

    def __init__(self, tf_graph: tf.Graph, view: GraphView, lowering: RowLowering) -> None:
        """Builds nothing yet.

        Args:
          tf_graph: the graph.
          view: of it, as the lowering knows it.
          lowering: what is to be built.
        """
        self._tf_graph = tf_graph
        self._view = view
        self._lowering = lowering
        self._own: Dict[int, List[tf.Tensor]] = {}
        self._wholes: Dict[Output, tf.Tensor] = {}
        self._counts: Dict[Tuple[Output, int], tf.Tensor] = {}

    # ---- How.

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows of all replicas, in their order; rows are in the first dimension."""
        raise NotImplementedError

    def add_up(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum of a tensor over all replicas."""
        raise NotImplementedError

    def average(self, tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """The mean of a tensor over all replicas, each weighted by its number of rows."""
        raise NotImplementedError

    def draw(self, tensor: tf.Tensor) -> tf.Tensor:
        """Random numbers that are the same on all replicas."""
        raise NotImplementedError

    # ---- Values.

    def of_replica(self, output: Output, now: tf.Tensor) -> tf.Tensor:
        """An output in the form of the replica."""
        node, at = output
        lowered = self._lowering.found.get(node)
        if lowered is None or lowered.inputs is None:
            return now
        if node not in self._own:
            inputs = zip(lowered.inputs, self._operation(node).inputs)
            copies = self.copy(self._operation(node), [self._taken(one, tensor) for one, tensor in inputs])
            self._own[node] = [self.draw(one) for one in copies] if lowered.is_drawn else copies
        return self._own[node][at]

    def whole(self, output: Output, now: tf.Tensor) -> tf.Tensor:
        """An output as one device has it, of all rows."""
        flow = self._lowering.of(output)
        if flow.is_same:
            return self.of_replica(output, now)
        if output not in self._wholes:
            if flow.kind == COUNT:
                self._wholes[output] = self._whole_count(output, now)
            elif flow.kind == ROWS:
                self._wholes[output] = self._gathered(self.of_replica(output, now), flow.dim)
            elif flow.degree:
                self._wholes[output] = self.add_up(self.of_replica(output, now))
            else:
                self._wholes[output] = self.average(self.of_replica(output, now), self._rows_averaged(output[0]))
        return self._wholes[output]

    def copy(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> List[tf.Tensor]:
        """The outputs of a copy of an op, which waits for what the op waits for."""
        with tf.control_dependencies(list(op.control_inputs)):
            return list(copy_op(op, inputs, {}).outputs)

    def _taken(self, taken: Taken, now: tf.Tensor) -> tf.Tensor:
        return self.whole(taken.output, now) if taken.is_whole else self.of_replica(taken.output, now)

    def _gathered(self, rows: tf.Tensor, dim: int) -> tf.Tensor:
        """The rows of all replicas, in their order."""
        shape = rows.shape
        dims = range(len(shape.as_list()))
        order = [dim, *(other for other in dims if other != dim)]
        if not dim:
            return self.gather(rows)
        gathered = tf.transpose(self.gather(tf.transpose(rows, order)), [order.index(place) for place in dims])
        gathered.set_shape(shape)
        return gathered

    def _rows_averaged(self, node: int) -> tf.Tensor:
        """The number of the replica's rows of which a node gives the mean, or what is linear in it."""
        takes = list(zip(self._lowering.inputs_of(node), self._operation(node).inputs))
        for one, now in takes:
            flow = self._lowering.of(one.output)
            if flow.kind == ROWS and not one.is_whole:
                return tf.shape(self._taken(one, now))[flow.dim]
        for one, _ in takes:
            flow = self._lowering.of(one.output)
            if flow.kind == PARTIAL_SUM and not one.is_whole:
                return self._rows_averaged(one.output[0])
        raise ValueError(f"{self._view.nodes[node].name} takes no rows.")

    def _whole_count(self, output: Output, now: tf.Tensor) -> tf.Tensor:
        """A number that the model computes from the sizes of the batch, for the batch of all replicas."""
        node, at = output
        taken = list(zip(data_inputs(self._view, node), self._operation(node).inputs))
        op_type = self._view.types[node]
        if op_type in ASKS_SHAPE:
            one, tensor = taken[at if len(taken) > 1 else 0]
            flow = self._lowering.of(one)
            if flow.kind == ROWS:
                own, rows = self.of_replica(output, now), self.of_replica(one, tensor)
                if op_type == "Size":
                    return self.add_up(own)
                more = tf.cast(
                    self._count(one, tensor, flow.dim) - tf.shape(rows, out_type=tf.int64)[flow.dim], own.dtype
                )
                return own + more * tf.one_hot(flow.dim, rows.shape.ndims, dtype=own.dtype)
        return self.copy(self._operation(node), [self.whole(one, tensor) for one, tensor in taken])[at]

    def _count(self, rows: Output, now: tf.Tensor, dim: int) -> tf.Tensor:
        """The rows of all replicas, int64 []."""
        if (rows, dim) not in self._counts:
            own = tf.shape(self.of_replica(rows, now), out_type=tf.int64)[dim]
            self._counts[rows, dim] = self.add_up(own)
        return self._counts[rows, dim]

    def _operation(self, node: int) -> tf.Operation:
        return self._tf_graph.get_operation_by_name(self._view.nodes[node].name)
