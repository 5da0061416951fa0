"""Resharding of a tensor from one placement to another, for one rank of a split group; gradients as in placements.py.

| from -> to | forward | backward |
| --- | --- | --- |
| shard -> REPLICATED | all-gather | cut |
| shard -> REPLICATED, entered | all-gather | reduce-scatter |
| REPLICATED -> REPLICATED, entered | nothing | all-reduce |
| REPLICATED -> shard | cut | all-gather |
| PARTIAL -> REPLICATED | all-reduce | nothing |
| PARTIAL -> REPLICATED, entered | all-reduce | all-reduce |
| PARTIAL -> shard | reduce-scatter | all-gather |
| shard(a) -> shard(b) | all-to-all | all-to-all |
| shard -> shard with halos of its neighbours | all-to-all of the halos | all-to-all of the halos |

"Entered": an op that computes a shard takes the REPLICATED tensor, so each rank has a partial sum of its gradient.

The native collectives move rows (dimension 0). Equal shards of another dimension are sent as blocks of rows: splits and
concatenations copy long runs, in 8% to 20% of the time of transposes (2 shards of 1024 x 128 floats). Shards of
different sizes have their dimension transposed to the front, and back.

Only `own` makes constants that differ between ranks, and static shapes do not show them: a dimension whose size differs
between ranks has an unknown static size, so that neither TensorFlow nor its gradient functions write one rank's size
into a constant.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import DEFAULT_ATTR, RANK_0_ATTR
from epl.ops.communicator import Communicator
from epl.ops.compression import agreed_scale, compress, decompress
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.sharding.batch_weights import BatchWeights
from epl.parallel.sharding.placements import Placement, balanced_sizes, offsets, shard
from epl.parallel.sharding.replicated_rows import ReplicatedRows
from epl.parallel.sharding.slices import known_ndims, pad_along, slice_along
from epl.utils import tf_compat

_GRADIENT = "EplSplitConversion"
_FUNCTIONS = ("epl_split_gradients",)  # a collection whose key is no string is not exported

Gradient = Callable[[Any], Any]
Factor = Union[float, tf.Tensor]


class Owned(NamedTuple):
    """A constant that differs between ranks.

    Attributes:
      values: by rank.
      dtype: of the constant.
    """

    values: Tuple[np.ndarray, ...]
    dtype: tf.DType


class CollectiveStream:
    """Collectives that run one after the other, in a communicator of their own.

    Attributes:
      communicator: of the group.
      collectives: their ops, in the order in which they run.
      built: how many collectives were built; it numbers their keys.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.collectives: List[tf.Operation] = []
        self.built = 0


class Resharder:
    """Reshards tensors for one rank of a split group, by ops and collectives in the default graph.

    Every rank builds the same ops in the same order; each collective waits for the one before it in its stream. There
    is one stream; a subclass may have more. It is one class because the gradient of each resharding is another of its
    methods: that of `cut` is `gather`, and the other way round.

    Attributes:
      owned: name of a constant op that differs between ranks -> its values.
      replicated_rows: which ranks have copies of the same rows of the batch, if there are runs with copies.
      batch_weights: the weights of the ranks' batches in a mean, if the ranks may have different numbers of rows.
    """

    def __init__(self, communicator: Communicator, rank: int, key: str, fp16_scale: Optional[int] = None) -> None:
        """Starts with no collective.

        Args:
          communicator: of the group.
          rank: the rank in the group whose ops this builds.
          key: unique within the communicator; the prefix of the keys of the collectives.
          fp16_scale: all-to-alls send floats as float16, and scale gradients by it; None sends them as they are.
        """
        self._first_stream = CollectiveStream(communicator)
        self.rank = rank
        self.ranks = communicator.world_size
        self._key = key
        self._fp16_scale = fp16_scale if self.ranks > 1 else None
        self.owned: Dict[str, Owned] = {}
        self.replicated_rows: Optional[ReplicatedRows] = None
        self.batch_weights: Optional[BatchWeights] = None

    @property
    def streams(self) -> List[CollectiveStream]:
        """All streams."""
        return [self._first_stream]

    @property
    def collectives(self) -> List[tf.Operation]:
        """The ops of all collectives so far, stream by stream in the order in which they run."""
        return [op for stream in self.streams for op in stream.collectives]

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """Ops built inside run once per step, not once per micro batch of a pipeline. This class builds no others."""
        yield

    def _stream(self) -> CollectiveStream:
        """The stream of the next collective."""
        return self._first_stream

    # ---- Differences between ranks.

    def own(self, values: Sequence[Any], dtype: tf.DType) -> tf.Tensor:
        """A constant that differs between ranks: `values` by rank. Static shapes do not depend on its value."""
        arrays = tuple(np.asarray(value, dtype.as_numpy_dtype) for value in values)
        constant = tf.constant(arrays[self.rank], dtype, name="own")
        if all(array.shape == arrays[0].shape and (array == arrays[0]).all() for array in arrays):
            return constant
        self.owned[constant.op.name] = Owned(arrays, dtype)
        shape = tf.TensorShape(arrays[0].shape)
        for array in arrays:
            shape = shape.most_specific_compatible_shape(tf.TensorShape(array.shape))
        own = _placeholder(constant, shape)
        tf_compat.set_attr(own.op, RANK_0_ATTR, tf.AttrValue(tensor=tf.make_tensor_proto(arrays[0], dtype)))
        return own

    def hide_size(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """The tensor, with an unknown static size of the cut dimension if the size differs between ranks."""
        if not is_uneven(placement) or tensor.shape.ndims is None or tensor.shape[placement.dim].value is None:
            return tensor
        return with_gradient(tensor, hidden(tensor, placement.dim), lambda grad: grad, keeps_sparse=True)

    # ---- Resharding. The gradient of each method is another of them, so that gradients can be differentiated again.

    def enter(self, tensor: tf.Tensor) -> tf.Tensor:
        """REPLICATED, entered by an op that computes a shard: identity forward, all-reduce backward."""
        return with_gradient(tensor, tensor, self.sum_partial)

    def sum_partial(self, tensor: Any) -> Any:
        """PARTIAL -> REPLICATED; the sum of IndexedSlices is IndexedSlices."""
        if isinstance(tensor, tf.IndexedSlices):
            summed, own = self.all_reduce(tensor, "sum"), tensor.values
            rows = with_gradient(own, summed.values, lambda grad: self.cut(grad, shard(0), self.row_counts(own, 0)))
            return tf.IndexedSlices(rows, summed.indices, summed.dense_shape)
        return with_gradient(tensor, self.all_reduce(tensor, "sum"), self.enter)

    def gather(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """shard -> REPLICATED."""
        full, rows = self._gather(tensor, placement, "gather")
        return with_gradient(tensor, full, lambda grad: self.cut(grad, placement, rows))

    def gather_entered(self, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
        """shard -> REPLICATED, entered by an op that computes a shard: all-gather forward, reduce-scatter backward."""
        full, rows = self._gather(tensor, placement, "gather")
        return with_gradient(tensor, full, lambda grad: self.reduce_scatter(grad, placement, rows))

    def cut(self, tensor: tf.Tensor, placement: Placement, rows: Optional[tf.Tensor] = None) -> tf.Tensor:
        """REPLICATED -> shard.

        Args:
          tensor: REPLICATED.
          placement: of the shards.
          rows: int64, the size of each rank's shard; needed if the placement has no sizes.
        """
        return with_gradient(tensor, self._cut(tensor, placement, rows), lambda grad: self.gather(grad, placement))

    def reduce_scatter(self, tensor: tf.Tensor, placement: Placement, rows: Optional[tf.Tensor] = None) -> tf.Tensor:
        """PARTIAL -> shard; the arguments are those of `cut`."""
        part = self._reduce_scatter(tensor, placement, rows)
        return with_gradient(tensor, part, lambda grad: self.gather_entered(grad, placement))

    def move(
        self,
        tensor: tf.Tensor,
        source: Placement,
        target: Placement,
        rows: Optional[tf.Tensor] = None,
        scale: float = 1.0,
    ) -> tf.Tensor:
        """shard(a) -> shard(b).

        Args:
          tensor: the local shard, in the placement `source`.
          source: the placement that it has.
          target: the placement that it gets, along another dimension.
          rows: int64, the size of each rank's shard in the placement without sizes; needed if there is one.
          scale: multiplies the values that are sent as float16, unless they are too large for it.
        """
        if self._fp16_scale is None:
            moved = self._move(tensor, source, target, rows)
        else:
            fitting = agreed_scale([tensor], scale, 1, lambda largest: self.all_reduce(largest, "scale", "max"))
            sent = compress(tensor, fitting)
            moved = decompress(self._move(sent, source, target, rows), tensor.dtype, fitting)
        backward = self._fp16_scale or 1.0
        return with_gradient(tensor, moved, lambda grad: self.move(grad, target, source, rows, backward))

    def with_halos(self, tensor: tf.Tensor, dim: int, before: int, after: int, value: float = 0.0) -> tf.Tensor:
        """An equal shard along `dim`, between the halos that its neighbours have.

        Args:
          tensor: the local shard, with at least as many rows along `dim` as each halo.
          dim: the dimension that is cut.
          before: how many of the last rows of the rank before to put in front; rows of `value` on the first rank.
          after: how many of the first rows of the next rank to append; rows of `value` on the last rank.
          value: of the rows beyond the whole tensor.
        """
        wide = self._with_halos(tensor, dim, before, after, value)
        return with_gradient(tensor, wide, lambda grad: self.add_halos(grad, dim, before, after))

    def add_halos(self, tensor: tf.Tensor, dim: int, before: int, after: int) -> tf.Tensor:
        """The gradient of `with_halos`: halos go back to where they are from, and are added to the rows there."""
        own = self._add_halos(tensor, dim, before, after)
        return with_gradient(tensor, own, lambda grad: self.with_halos(grad, dim, before, after))

    def all_max(self, tensor: tf.Tensor) -> tf.Tensor:
        """The element-wise maximum over the ranks; no gradient."""
        return tf.stop_gradient(self.all_reduce(tensor, "max", "max"))

    def all_min(self, tensor: tf.Tensor) -> tf.Tensor:
        """The element-wise minimum over the ranks; no gradient."""
        return tf.stop_gradient(self.all_reduce(tensor, "min", "min"))

    def row_counts(self, tensor: tf.Tensor, dim: int) -> tf.Tensor:
        """The size of dimension `dim` of the tensor on each rank: an int64 vector, REPLICATED."""
        own = tf.shape(tensor, out_type=tf.int64)[dim : dim + 1]
        return self._run(lambda to, key: to.all_gather(own, self.rank, key, equal_rows=True), "rows")

    def own_share(self, size: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """The size of this rank's shard if a dimension of `size` is cut in proportion to `rows` (int64, by rank)."""
        counts, whole = tf.cast(rows, size.dtype), tf.cast(self.total_rows(rows), size.dtype)
        return counts[self.own(range(self.ranks), tf.int32)] * size // tf.maximum(whole, 1)

    def share(self, dtype: tf.DType) -> Factor:
        """The weight of this rank's batch in a mean over the ranks."""
        return 1.0 / self.ranks if self.batch_weights is None else self.batch_weights.share(dtype)

    def inverse_share(self, dtype: tf.DType) -> Factor:
        """1 / `share`."""
        return float(self.ranks) if self.batch_weights is None else self.batch_weights.inverse_share(dtype)

    def total_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """The number of rows of the full batch, given the number of rows of each rank (int64, by rank)."""
        return tf.reduce_sum(rows if self.replicated_rows is None else self.replicated_rows.kept(rows))

    def partial_sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """This rank's partial sum over the full batch, given the sum over its rows; zeros if its rows are copies."""
        if self.replicated_rows is None:
            return tensor
        own = self.replicated_rows.of_primary(tensor, self.own(range(self.ranks), tf.int32))
        return with_gradient(tensor, own, lambda grad: grad)

    def broadcast(self, tensors: Any) -> Any:
        """Rank 0's value on every rank, of a tensor or of each of a list; no gradient."""
        made = self._run(lambda to, own: to.broadcast(tensors, self.rank, own), "first")
        return tf.nest.map_structure(tf.stop_gradient, made)

    # ---- The collectives themselves, without gradients.

    def all_reduce(self, value: Any, key: str, reduce_op: str = "sum") -> Any:
        """The sum over all ranks, or another `reduce_op`, of a tensor or of each of several; no gradient."""
        return self._run(lambda to, own: to.all_reduce(value, self.rank, own, reduce_op), key)

    def _gather(self, tensor: tf.Tensor, placement: Placement, key: str) -> Tuple[tf.Tensor, tf.Tensor]:
        """The full tensor; and the number of rows from each rank, which a placement without sizes needs."""
        equal = not is_uneven(placement)
        front = tensor if equal else to_front(tensor, placement.dim)
        full, rows = self._run(lambda to, own: to.all_gather_with_rows(front, self.rank, own, equal), key)
        if placement.sizes is None and self.replicated_rows is not None:
            full = self.replicated_rows.drop(full, 0, rows)
        full = self._from_blocks(full, placement.dim) if equal else from_front(full, placement.dim)
        full.set_shape(_with_size(tensor.shape, placement.dim, placement.size))
        return full, rows

    def _cut(self, tensor: tf.Tensor, placement: Placement, rows: Optional[tf.Tensor]) -> tf.Tensor:
        begin, size = self.own_range(placement, rows)
        part = slice_along(tensor, placement.dim, begin, size)
        part.set_shape(_with_size(tensor.shape, placement.dim, _equal_size(placement)))
        return part

    def own_range(self, placement: Placement, rows: Optional[tf.Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
        """Where this rank's shard begins, and its size; `rows` as in `cut`."""
        if placement.sizes is not None:
            begin = self.own(offsets(placement.sizes), tf.int32)
            return begin, self.own(placement.sizes, tf.int32)
        counts = tf.cast(_required(rows), tf.int32)
        own = self.own(range(self.ranks), tf.int32)
        if self.replicated_rows is not None:
            return tf.cast(self.replicated_rows.begin(_required(rows), own), tf.int32), counts[own]
        return tf.cumsum(counts, exclusive=True)[own], counts[own]

    def _reduce_scatter(self, tensor: tf.Tensor, placement: Placement, rows: Optional[tf.Tensor]) -> tf.Tensor:
        if not is_uneven(placement):
            blocks = self._to_blocks(tensor, placement.dim)
            part = self._run(lambda to, own: to.reduce_scatter(blocks, self.rank, own), "scatter")
            part.set_shape(_with_size(tensor.shape, placement.dim, _equal_size(placement)))
            return part
        front = to_front(tensor, placement.dim)
        if placement.sizes is not None and placement.sizes == balanced_sizes(sum(placement.sizes), self.ranks):
            part = hidden(self._run(lambda to, own: to.reduce_scatter(front, self.rank, own), "scatter"), 0)
        else:
            if placement.sizes is None and self.replicated_rows is not None:
                front = self.replicated_rows.repeat(front, 0, _required(rows))
            # Each rank sends this rank as many rows as this rank keeps.
            parts = self._send(front, _splits(placement, rows), "scatter")
            own = tf.concat([[self.ranks, -1], tf.shape(front)[1:]], axis=0)
            part = tf.reduce_sum(tf.reshape(parts, own), axis=0)
        part.set_shape(_with_size(front.shape, 0, None))
        return from_front(part, placement.dim)

    def _send(self, tensor: tf.Tensor, splits: Optional[tf.Tensor], key: str) -> tf.Tensor:
        """Sends piece r of the rows to rank r, and gives the rows that are received; equal pieces without `splits`."""
        if splits is None:
            return self._run(lambda to, own: to.all_to_all(tensor, self.rank, own), key)
        return self._run(lambda to, own: to.all_to_all(tensor, self.rank, own, splits), key)[0]

    def _move(self, tensor: tf.Tensor, source: Placement, target: Placement, rows: Optional[tf.Tensor]) -> tf.Tensor:
        """All-to-all. One rank is sent one run of rows: blocks of equal shards, or the outer one of two dimensions."""
        a, b = source.dim, target.dim
        shape = _with_size(tensor.shape, a, source.size)
        if target.sizes is None and self.replicated_rows is not None:
            tensor = self.replicated_rows.repeat(tensor, b, _required(rows))
        dims = list(range(known_ndims(tensor)))
        is_in_blocks = not is_uneven(target) and (a == 0 or not is_uneven(source))
        order = dims if is_in_blocks else [a, b] + [dim for dim in dims if dim not in (a, b)]
        outer = _transposed(tensor, order)
        if not is_uneven(target):
            moved = self._move_equal_target(outer, source, order.index(b))
        elif not is_uneven(source):
            moved = self._move_equal_source(outer, target, rows)
        else:
            moved = self._move_pieces(outer, source, target, rows)
        moved = _transposed(moved, [order.index(dim) for dim in dims])
        if source.sizes is None and self.replicated_rows is not None:
            moved = self.replicated_rows.drop(moved, a, _required(rows))
        moved.set_shape(_with_size(shape, b, _equal_size(target)))
        return moved

    def _move_equal_target(self, tensor: tf.Tensor, source: Placement, dim: int) -> tf.Tensor:
        """[..., b, ...] -> [..., b/n, ...]: sends blocks of dimension `dim`; what comes are shards of the source."""
        blocks = self._to_blocks(tensor, dim)
        if not is_uneven(source):
            return self._from_blocks(self._send(blocks, None, "move"), source.dim)
        return self._send(blocks, tf.fill([self.ranks], tf.shape(tensor, out_type=tf.int64)[0]), "move")

    def _move_equal_source(self, tensor: tf.Tensor, target: Placement, rows: Optional[tf.Tensor]) -> tf.Tensor:
        """[a/n, b, ...] -> [a, b/n, ...]: sends rows of b, each [a/n, ...]; all ranks send this one the same rows."""
        swapped = tf.transpose(tensor, [1, 0] + list(range(2, known_ndims(tensor))))
        received = self._send(swapped, _splits(target, rows), "move")
        shape = tf.shape(tensor)
        parts = tf.reshape(received, tf.concat([[self.ranks, -1, shape[0]], shape[2:]], axis=0))
        parts = tf.transpose(parts, [0, 2, 1] + list(range(3, known_ndims(tensor) + 1)))
        part = tf.shape(parts)[2]
        return tf.reshape(parts, tf.concat([[self.ranks * shape[0], part], shape[2:]], axis=0))

    def _move_pieces(
        self, tensor: tf.Tensor, source: Placement, target: Placement, rows: Optional[tf.Tensor]
    ) -> tf.Tensor:
        """[a_r, b, ...] -> [a, b_r, ...] with shards of different sizes on both sides: sends single elements."""
        sizes = _splits(target, rows)
        shape = tf.shape(tensor)
        pieces = tf.split(tensor, sizes, axis=1, num=self.ranks)
        flat = tf.concat([tf.reshape(piece, [-1]) for piece in pieces], axis=0)
        rest = tf.reduce_prod(tf.cast(shape[2:], tf.int64))
        received = self._send(flat, sizes * tf.cast(shape[0], tf.int64) * rest, "move")
        _, part = self.own_range(target, rows)
        # No -1: TensorFlow cannot find the other size of an empty shard.
        full = tf.cast(tf.reduce_sum(_required(rows)), tf.int32) if source.sizes is None else source.size
        return tf.reshape(received, tf.concat([[full, part], shape[2:]], axis=0))

    def _with_halos(self, tensor: tf.Tensor, dim: int, before: int, after: int, value: float) -> tf.Tensor:
        size, ends = tensor.shape[dim].value, self.ranks - 1
        front, back = self._swap_edges(tensor, dim, after, before)
        beyond = np.zeros([self.ranks, known_ndims(tensor), 2], np.int32)
        beyond[0, dim, 0], beyond[ends, dim, 1] = before, after
        wide = tf.concat([front, tensor, back], axis=dim)
        wide = tf.pad(wide, self.own(list(beyond), tf.int32), constant_values=value)
        wide.set_shape(_with_size(tensor.shape, dim, None if size is None else size + before + after))
        return wide

    def _add_halos(self, tensor: tf.Tensor, dim: int, before: int, after: int) -> tf.Tensor:
        wide = tensor.shape[dim].value
        size = tf.shape(tensor)[dim] - before - after
        front, back = self._swap_edges(tensor, dim, before, after)
        own = slice_along(tensor, dim, before, size)
        own += pad_along(front, {dim: (0, size - tf.shape(front)[dim])})
        own += pad_along(back, {dim: (size - tf.shape(back)[dim], 0)})
        own.set_shape(_with_size(tensor.shape, dim, None if wide is None else wide - before - after))
        return own

    def _swap_edges(self, tensor: tf.Tensor, dim: int, first: int, last: int) -> Tuple[tf.Tensor, tf.Tensor]:
        """Sends the `first` rows along `dim` to the rank before and the `last` rows to the next one.

        Returns:
          The rows from the rank before (no rows on the first rank), and those from the next one (none on the last).
        """
        others = self.ranks - 1
        splits = np.zeros([self.ranks, self.ranks], np.int64)  # by rank, the rows for each rank
        for rank in range(others):
            splits[rank, rank + 1], splits[rank + 1, rank] = last, first
        up, down = self.own([0] + [first] * others, tf.int32), self.own([last] * others + [0], tf.int32)
        edges = [slice_along(tensor, dim, 0, up), slice_along(tensor, dim, tf.shape(tensor)[dim] - down, down)]
        sent = to_front(tf.concat(edges, axis=dim), dim)
        above, below = self.own([0] + [last] * others, tf.int32), self.own([first] * others + [0], tf.int32)
        row = tf.shape(sent)[1:]  # of no elements, if no picture is there: elements are sent, which can be counted
        elements = self.own(list(splits), tf.int64) * tf.cast(tf.reduce_prod(row), tf.int64)
        received = self._send(tf.reshape(sent, [-1]), elements, "halos")
        received = from_front(tf.reshape(received, tf.concat([[above + below], row], axis=0)), dim)
        return slice_along(received, dim, 0, above), slice_along(received, dim, above, below)

    def _to_blocks(self, tensor: tf.Tensor, dim: int) -> tf.Tensor:
        """The equal shards of a tensor along a dimension, one after the other as rows."""
        return tensor if dim == 0 else tf.concat(tf.split(tensor, self.ranks, axis=dim), axis=0)

    def _from_blocks(self, blocks: tf.Tensor, dim: int) -> tf.Tensor:
        """The inverse of `_to_blocks`."""
        return blocks if dim == 0 else tf.concat(tf.split(blocks, self.ranks, axis=0), axis=dim)

    def _run(self, build: Callable[[Communicator, str], Any], key: str) -> Any:
        """Builds a collective with a key of its own, after the one before it in the stream."""
        stream = self._stream()
        own = f"{self._key}/{stream.built}/{key}"
        stream.built += 1
        graph = tf.get_default_graph()
        last = tf_compat.last_op_id(graph)
        with tf.control_dependencies(stream.collectives[-1:]):
            result = build(stream.communicator, own)
        stream.collectives += [op for op in tf_compat.ops_since(graph, last) if op.type in COLLECTIVE_OP_TYPES]
        return result


Resharders = Tuple[Resharder, Optional[Resharder]]  # within a group, and between groups


def is_uneven(placement: Placement) -> bool:
    """Whether the sizes of the shards differ between ranks, or may differ."""
    return placement.is_shard and (placement.sizes is None or len(set(placement.sizes)) > 1)


@tf.RegisterGradient(_GRADIENT)
def _conversion_grad(op: tf.Operation, *grads: Any) -> List[Any]:
    function, keeps_sparse = op.graph.get_collection_ref(_FUNCTIONS)[0][op.name]
    grad = grads[0]
    if not isinstance(grad, tf.IndexedSlices) or not keeps_sparse:
        grad = tf.convert_to_tensor(grad)
        grad.set_shape(op.outputs[0].shape)
    with tf.device(op.device):
        return [None] * (len(op.inputs) - 1) + [function(grad)]


def with_gradient(tensor: tf.Tensor, result: tf.Tensor, gradient: Gradient, keeps_sparse: bool = False) -> tf.Tensor:
    """`result`, as a function of `tensor` with the given gradient.

    Args:
      tensor: the gradient is with respect to it.
      result: the value; it may be `tensor`.
      gradient: gives the gradient of `tensor` from that of the result.
      keeps_sparse: whether `gradient` takes IndexedSlices as they are; it always does if `result` is `tensor`.
    """
    if not tensor.dtype.is_floating and not tensor.dtype.is_complex:
        return result
    graph = tf.get_default_graph()
    tensors = [tensor] if result is tensor else [result, tensor]
    with graph.gradient_override_map({"IdentityN": _GRADIENT}):
        output = tf.identity_n(tensors)[0]
    functions = graph.get_collection_ref(_FUNCTIONS)
    if not functions:
        functions.append({})
    functions[0][output.op.name] = (gradient, keeps_sparse or result is tensor)
    return output


def hidden(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """The tensor, with an unknown static size of dimension `dim`."""
    return _placeholder(tensor, _with_size(tensor.shape, dim, None))


def _placeholder(default: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """The tensor, of which graph construction knows only the shape."""
    hidden = tf.placeholder_with_default(default, shape)
    tf_compat.set_attr(hidden.op, DEFAULT_ATTR, tf.AttrValue(b=True))
    return hidden


def to_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """The tensor with dimension `dim` first."""
    return _transposed(tensor, [dim] + [other for other in range(known_ndims(tensor)) if other != dim])


def from_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """The inverse of `to_front`."""
    return _transposed(tensor, list(range(1, dim + 1)) + [0] + list(range(dim + 1, known_ndims(tensor))))


def _transposed(tensor: tf.Tensor, order: List[int]) -> tf.Tensor:
    return tensor if order == sorted(order) else tf.transpose(tensor, order)


def _with_size(shape: tf.TensorShape, dim: int, size: Optional[int]) -> tf.TensorShape:
    sizes = shape.as_list()
    sizes[dim] = size
    return tf.TensorShape(sizes)


def _equal_size(placement: Placement) -> Optional[int]:
    """The size of each shard; None if the sizes differ."""
    return None if placement.sizes is None or is_uneven(placement) else placement.sizes[0]


def _splits(placement: Placement, rows: Optional[tf.Tensor]) -> tf.Tensor:
    return tf.constant(placement.sizes, tf.int64) if placement.sizes is not None else _required(rows)


def _required(rows: Optional[tf.Tensor]) -> tf.Tensor:
    if rows is None:
        raise ValueError("A batch is cut by how many rows each rank has, which is not given.")
    return rows
