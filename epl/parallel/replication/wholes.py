"""Builds the values that one device has of the rows of all replicas, as `row_lowering.py` has decided them.

    rows of the replicas --> put together --> rows of all replicas
    sums or means over rows --> added up --> sum or mean over all rows
    op that takes wholes --> copy of it on wholes

A value is built from those of some replicas: in a list, by replica. Who builds says how values of these replicas are
added up, averaged and put together: by collectives, for replica 0 and its copies (`lower_writes.py`); by markers in the
user's graph, in place of which collectives come (`epl/parallel/whole_batch/objective.py`); or by plain ops over the
replicas of a process (`merge_scalars.py`).
"""

import abc
from typing import Callable, Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import copy_op
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.sharding.forward_shapes import ASKS_SHAPE
from epl.parallel.sharding.row_flow import COUNT, PARTIAL_SUM, ROWS, Output
from epl.parallel.sharding.row_lowering import RowLowering, Taken

Values = Sequence[tf.Tensor]  # by replica


class Wholes(abc.ABC):
    """Builds the wholes of values, each once.

    The tensors that take the place of an output now are given next to it: ZeRO and offload give each use of a weight a
    read of its own, and the one that the view knows may hold nothing.
    """

    def __init__(
        self, tf_graph: tf.Graph, view: GraphView, lowering: RowLowering, prefixes: Sequence[str] = ("",)
    ) -> None:
        """Builds nothing yet.

        Args:
          tf_graph: the graph.
          view: of it, as the lowering knows it.
          lowering: what is to be built.
          prefixes: of the names of the replicas' ops.
        """
        self._tf_graph = tf_graph
        self._view = view
        self._lowering = lowering
        self._prefixes = prefixes
        self._own: Dict[int, List[Values]] = {}  # of a copied node, by output
        self._wholes: Dict[Output, tf.Tensor] = {}
        self._counts: Dict[Tuple[Output, int], tf.Tensor] = {}

    @abc.abstractmethod
    def _sum(self, values: Values) -> tf.Tensor:
        """The sum of the values of all replicas."""

    @abc.abstractmethod
    def _mean(self, values: Values, rows: Values) -> tf.Tensor:
        """The mean of means, each of so many rows."""

    @abc.abstractmethod
    def _concat(self, values: Values, dim: int) -> tf.Tensor:
        """The rows of all replicas, in their order."""

    def _rows_of_gradients(self) -> Values:
        """The numbers of rows, by replica, of which gradients are means."""
        raise NotImplementedError("These wholes are computed from no gradients.")

    @abc.abstractmethod
    def _first(self, values: Values) -> tf.Tensor:
        """Random numbers of the first replica."""

    def _copy(self, op: tf.Operation, inputs: Sequence[tf.Tensor], replica: int) -> List[tf.Tensor]:
        """The outputs of a copy of an op of a replica, which waits for what the op waits for."""
        del replica
        with tf.control_dependencies(list(op.control_inputs)):
            return list(copy_op(op, inputs, {}).outputs)

    def whole(self, output: Output, now: Values) -> tf.Tensor:
        """The value of one device."""
        flow = self._lowering.of(output)
        if flow.is_same:
            return self.of_replicas(output, now)[0]
        if output not in self._wholes:
            if flow.kind == COUNT:
                self._wholes[output] = self._whole_count(output, now)
            elif flow.kind == ROWS:
                self._wholes[output] = self._concat(self.of_replicas(output, now), flow.dim)
            else:
                self._wholes[output] = self._summed(output, now)
        return self._wholes[output]

    def _taken(self, taken: Taken, now: Values) -> Values:
        if taken.is_whole:
            return [self.whole(taken.output, now)] * len(self._prefixes)
        return self.of_replicas(taken.output, now)

    def of_replicas(self, output: Output, now: Values) -> Values:
        """An output in the forms of the replicas."""
        node, at = output
        lowered = self._lowering.found.get(node)
        if lowered is None or lowered.inputs is None:
            return now
        if node not in self._own:
            taken = [self._taken(*pair) for pair in zip(lowered.inputs, self._inputs(node))]
            are_equal = all(flow.is_same for flow in lowered.flows)
            copies = self._copies(node, taken, 1 if are_equal else len(self._prefixes))
            if lowered.is_drawn:
                copies = [[self._first(values)] for values in copies]
            self._own[node] = [list(values) * (len(self._prefixes) // len(values)) for values in copies]
        return self._own[node][at]

    def _summed(self, output: Output, now: Values) -> tf.Tensor:
        """The sum over the replicas; of a mean, the mean of all rows."""
        values = self.of_replicas(output, now)
        if self._lowering.of(output).degree:
            return self._sum(values)
        return self._mean(values, self._rows_averaged(output[0]))

    def _rows_averaged(self, node: int) -> Values:
        """The numbers of the replicas' rows of which a node gives the mean, or what is linear in it."""
        takes = list(zip(self._lowering.inputs_of(node), self._inputs(node)))
        for one, now in takes:
            flow = self._lowering.of(one.output)
            if flow.kind == ROWS and not one.is_whole:
                return [tf.shape(rows)[flow.dim] for rows in self._taken(one, now)]
        for one, _ in takes:
            if self._lowering.of(one.output).kind == PARTIAL_SUM and not one.is_whole:
                return self._rows_averaged(one.output[0])
        return self._rows_of_gradients()

    def _whole_count(self, output: Output, now: Values) -> tf.Tensor:
        """A number that the model computes from the sizes of the batch, for the batch of all replicas."""
        node, at = output
        taken = list(zip(data_inputs(self._view, node), self._inputs(node)))
        if self._view.types[node] in ASKS_SHAPE:
            one, tensors = taken[at if len(taken) > 1 else 0]
            flow = self._lowering.of(one)
            if flow.kind == ROWS:
                own, rows = self.of_replicas(output, now), self.of_replicas(one, tensors)[0]
                if self._view.types[node] == "Size":
                    return self._sum(own)
                more = self._count(one, tensors, flow.dim) - tf.shape(rows, out_type=tf.int64)[flow.dim]
                return own[0] + tf.cast(more, own[0].dtype) * tf.one_hot(flow.dim, rows.shape.ndims, dtype=own[0].dtype)
        copies = self._copies(node, [[self.whole(one, tensors)] for one, tensors in taken], 1)
        return copies[at][0]

    def _count(self, rows: Output, now: Values, dim: int) -> tf.Tensor:
        """The rows of all replicas, int64 []."""
        if (rows, dim) not in self._counts:
            own = [tf.shape(one, out_type=tf.int64)[dim] for one in self.of_replicas(rows, now)]
            self._counts[rows, dim] = self._sum(own)
        return self._counts[rows, dim]

    # ---- Ops.

    def _copies(self, node: int, inputs: Sequence[Values], number: int) -> List[Values]:
        """By output, copies of an op for the first replicas."""
        ops = self._ops(node)[:number]
        found = [self._copy(op, [values[at] for values in inputs], at) for at, op in enumerate(ops)]
        return [list(values) for values in zip(*found)]

    def _inputs(self, node: int) -> List[Values]:
        """The inputs of an op, each by replica."""
        return [list(values) for values in zip(*[op.inputs for op in self._ops(node)])]

    def _ops(self, node: int) -> List[tf.Operation]:
        name = self._view.nodes[node].name
        return [self._tf_graph.get_operation_by_name(prefix + name) for prefix in self._prefixes]


def gathered(rows: tf.Tensor, dim: int, gather: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """The rows of all replicas, by what gathers along the first dimension."""
    if not dim:
        return gather(rows)
    dims = range(len(rows.shape.as_list()))
    order = [dim, *(other for other in dims if other != dim)]
    whole = tf.transpose(gather(tf.transpose(rows, order)), [order.index(place) for place in dims])
    whole.set_shape(rows.shape)
    return whole
