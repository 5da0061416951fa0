"""Building blocks of rules: ops as labelled dimensions, and pieces of the ops that rules emit.

Most rules label the dimensions of an op's tensors, as einsum labels those of a product: dimensions with one label are
cut alike, a tensor without the label is REPLICATED. A label that is summed over leaves partial sums.

    MatMul    [m, k] [k, n] -> [m, n]     m: shard(0), REPLICATED -> shard(0)
                                          n: REPLICATED, shard(1) -> shard(1)
                                          k: shard(1), shard(0) -> PARTIAL
"""

from typing import Any, Callable, Collection, Dict, Hashable, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import PARTIAL, REPLICATED, Placement, offsets, shard
from epl.parallel.sharding.resharding import with_gradient
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, Inside, OpInfo, TensorInfo, shard_choices
from epl.parallel.sharding.slices import known_ndims, slice_along

Labels = Sequence[Optional[Hashable]]  # one for each dimension; None: it is never cut
Emitter = Callable[[Tuple[Placement, ...]], Emit]  # from the placements of the outputs

ASSUMED_SIZE = 32  # the size of an unknown dimension in costs


def labelled(
    op: OpInfo,
    inputs: Sequence[Labels],
    outputs: Sequence[Labels],
    summed: Collection[Hashable] = (),
    emitter: Optional[Emitter] = None,
    created: bool = False,
) -> Iterator[Choice]:
    """The choices of an op whose dimensions are labelled: one for each label and way to cut it.

    Args:
      op: the op.
      inputs, outputs: the labels of each of its tensors.
      summed: labels that the op sums over; all outputs are PARTIAL then.
      emitter: gives the function that builds the op; None: the same op on the local tensors.
      created: whether the emitter can cut dimensions that no input has.
    """
    tensors = list(zip(list(inputs) + list(outputs), op.inputs + op.outputs))
    if not _fit(tensors[: len(op.inputs)]):
        return
    seen: List[Hashable] = []
    for labels, _ in tensors:
        seen += [label for label in labels if label is not None and label not in seen]
    for label in seen:
        is_summed = label in summed
        if any(list(labels).count(label) > 1 for labels, _ in tensors):
            continue
        if not is_summed and not all(label in labels for labels in outputs):
            continue
        if not created and not any(label in labels for labels in inputs):
            continue
        for sizes in _cuts(op, label, tensors):
            into = tuple(_placement(labels, label, sizes) for labels in inputs)
            out = tuple(PARTIAL if is_summed else _placement(labels, label, sizes) for labels in outputs)
            yield Choice(into, out, None if emitter is None else emitter(out))


def _fit(inputs: Sequence[Tuple[Labels, TensorInfo]]) -> bool:
    """Whether dimensions with one label have one size; if not, one of the sizes is that of a single rank's batch."""
    sizes: Dict[Hashable, int] = {}
    for labels, info in inputs:
        for dim, label in enumerate(labels):
            size = _size(info, dim)
            if label is not None and size is not None and sizes.setdefault(label, size) != size:
                return False
    return True


def _cuts(op: OpInfo, label: Hashable, tensors: Sequence[Tuple[Labels, TensorInfo]]) -> List[Any]:
    """Sizes of shards for the dimensions with a label; [None] where they hold the batch.

    An input of unknown size that does not hold the batch may have size 1 and be broadcast, so it is not cut.
    """
    found = [(info, list(labels).index(label)) for labels, info in tensors if label in labels]
    inputs = [(info, list(labels).index(label)) for labels, info in tensors[: len(op.inputs)] if label in labels]
    if any(_size(info, dim) is None and info.batch != dim for info, dim in inputs):
        return []
    if any(info.batch == dim for info, dim in found):
        return [None]
    sizes = {_size(info, dim) for info, dim in found} - {None}
    return shard_choices(op, sizes.pop() or 0) if len(sizes) == 1 else []


def _size(info: TensorInfo, dim: int) -> Optional[int]:
    return None if info.shape is None else info.shape[dim]


def _placement(labels: Labels, label: Hashable, sizes: Optional[Sequence[int]]) -> Placement:
    return shard(list(labels).index(label), sizes) if label in labels else REPLICATED


def linear(op: OpInfo, *data: int) -> Iterator[Choice]:
    """PARTIAL in these inputs, REPLICATED in the others -> PARTIAL, for an op that is linear in them together."""
    if all(is_number(tensor.dtype) for tensor in op.outputs):
        into = tuple(PARTIAL if index in data else REPLICATED for index in range(len(op.inputs)))
        yield Choice(into, (PARTIAL,) * len(op.outputs))


def is_number(dtype: tf.DType) -> bool:
    """Whether tensors of the dtype can be added up."""
    return dtype.is_floating or dtype.is_complex or dtype.is_integer


def broadcast_labels(info: TensorInfo, rank: int) -> List[Optional[Hashable]]:
    """Labels of an input that is broadcast to `rank` dimensions, which are labelled 0, 1, ...

    A dimension of size 1 has none: all shards of the result take it.
    """
    shape = info.shape or ()
    return [None if size == 1 else rank - len(shape) + dim for dim, size in enumerate(shape)]


# ---- Facts about an op at graph construction.


def rank_of(info: TensorInfo) -> Optional[int]:
    """The number of dimensions, None if it is not known."""
    return None if info.shape is None else len(info.shape)


def dimensions(info: TensorInfo) -> List[int]:
    """Labels 0, 1, ... of the dimensions of a tensor."""
    return list(range(len(info.shape or ())))


def known_ranks(op: OpInfo) -> bool:
    """Whether the number of dimensions of every tensor is known."""
    return all(tensor.shape is not None for tensor in op.inputs + op.outputs)


def constant_ints(info: TensorInfo) -> Optional[List[int]]:
    """The elements of an integer constant, None if it is not known."""
    return None if info.constant is None else [int(value) for value in np.reshape(info.constant, [-1])]


def constant_axes(info: TensorInfo, rank: int) -> Optional[List[int]]:
    """Axes that a constant names, counted from 0; None if it is not known."""
    found = constant_ints(info)
    return None if found is None else [axis % rank if rank else axis for axis in found]


def without(labels: Labels, dims: Collection[int]) -> List[Optional[Hashable]]:
    """The labels, None at some dimensions."""
    return [None if dim in dims else label for dim, label in enumerate(labels)]


def text_attr(op: OpInfo, name: str) -> str:
    """A string attribute; "" if the op has none of that name."""
    value = op.attrs.get(name, b"")
    return value.decode() if isinstance(value, bytes) else value


def assumed_bytes(shape: Optional[Sequence[Optional[int]]], itemsize: int) -> float:
    """Bytes of a tensor, as costs assume them: unknown dimensions have ASSUMED_SIZE, an unknown shape is a scalar's."""
    elements = 1
    for size in shape or ():
        elements *= ASSUMED_SIZE if size is None else size
    return float(elements * itemsize)


def all_reduced(
    shape: Optional[Sequence[Optional[int]]], itemsize: int, forward: Sequence[int], backward: Sequence[int] = ()
) -> Tuple[Inside, ...]:
    """All-reduces, each of so many tensors of a shape at once, in the forward and in the backward pass."""
    nbytes = assumed_bytes(shape, itemsize)
    directions = ((forward, False), (backward, True))
    return tuple(Inside("all-reduce", nbytes * times, which) for found, which in directions for times in found)


def open_batch(info: TensorInfo, placement: Placement) -> bool:
    """Whether a tensor is cut along a batch of which the graph does not tell the size: the ranks add up their rows."""
    return placement.sizes is None and (info.shape is None or info.shape[placement.dim] is None)


def shape_without(info: TensorInfo, dims: Collection[int]) -> List[Optional[int]]:
    """The shape of a tensor, less some dimensions."""
    return [size for dim, size in enumerate(info.shape or ()) if dim not in dims]


# ---- Pieces of the ops that rules emit.


def own_size(emission: Emission, placement: Placement, full: tf.Tensor) -> tf.Tensor:
    """The size of this rank's shard of a dimension of size `full`."""
    if placement.sizes is None:
        return emission.local_rows(full)
    return emission.own(placement.sizes, full.dtype.base_dtype)


def own_offset(emission: Emission, placement: Placement, dtype: tf.DType) -> tf.Tensor:
    """Where this rank's shard of a dimension begins; the placement has sizes."""
    return emission.own(offsets(placement.sizes or ()), dtype)


def never_empty(choices: Iterable[Choice]) -> Iterator[Choice]:
    """The choices of an op whose kernel refuses an empty dimension, or divides by its size.

    A rank with an empty shard computes the op on one element of zeros, and drops it.
    """
    for choice in choices:
        if any(placement.has_empty for placement in choice.inputs + choice.outputs):
            yield choice._replace(emit=_on_one_element(choice))
        else:
            yield choice


def _on_one_element(choice: Choice) -> Emit:
    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        filled = [with_element(emission, *one) for one in zip(inputs, choice.inputs)]
        outputs = emission.same(filled) if choice.emit is None else choice.emit(emission, op, filled)
        return [without_element(emission, *one) for one in zip(outputs, choice.outputs)]

    return emit


def with_element(emission: Emission, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
    """The shard, with one element of zeros along the cut dimension where it is empty; no other shard is copied."""
    if not placement.has_empty or tensor.dtype == tf.resource:
        return tensor
    none = [[0, 0] for _ in range(known_ndims(tensor))]
    one = none[: placement.dim] + [[0, 1]] + none[placement.dim + 1 :]
    filled = tf.pad(tensor, emission.own([none if size else one for size in placement.sizes or ()], tf.int32))
    filled.set_shape(_open(tensor, placement))
    return filled


def without_element(emission: Emission, tensor: tf.Tensor, placement: Placement) -> tf.Tensor:
    """The inverse of `with_element`."""
    if not placement.has_empty:
        return tensor
    part = slice_along(tensor, placement.dim, 0, emission.own(placement.sizes or (), tf.int32))
    part.set_shape(_open(tensor, placement))
    return part


def filled(placement: Placement) -> Placement:
    """The placement of what `with_element` gives."""
    return placement._replace(sizes=tuple(max(size, 1) for size in placement.sizes)) if placement.sizes else placement


def _open(tensor: tf.Tensor, placement: Placement) -> List[Optional[int]]:
    """The static shape without the size of the cut dimension."""
    return [None if dim == placement.dim else size for dim, size in enumerate(tensor.shape.as_list())]


def replaced(vector: tf.Tensor, index: int, value: Any) -> tf.Tensor:
    """The vector with another value at one place."""
    value = tf.reshape(tf.cast(value, vector.dtype), [1])
    return tf.concat([vector[:index], value, vector[index + 1 :]], axis=0)


def full_shape(info: TensorInfo, given: tf.Tensor) -> tf.Tensor:
    """The shape of the tensor in the unsplit program: the static shape if known, else the input `given`.

    A constant input may contain the size of one rank's batch; the static shape has the size of all batches.
    """
    if info.shape is None or None in info.shape:
        return given
    return tf.constant(info.shape, given.dtype.base_dtype)


def own_shape(emission: Emission, info: TensorInfo, given: tf.Tensor, placement: Placement) -> tf.Tensor:
    """`full_shape`, with the size of this rank's shard in the dimension that is cut."""
    shape = full_shape(info, given)
    return (
        replaced(shape, placement.dim, own_size(emission, placement, shape[placement.dim]))
        if placement.is_shard
        else shape
    )


def weighted(emission: Emission, value: tf.Tensor, tensor: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """`value`, with the gradient `weights` (of the shape of `tensor`) with respect to `tensor`.

    Args:
      emission: of the op.
      value: REPLICATED, with as many dimensions as `tensor`; those of size 1 are broadcast.
      tensor: the shard that `value` is computed from, by ops that gradients do not pass.
      weights: d value / d tensor, element by element.
    """
    if not tensor.dtype.is_floating:
        return value
    return value + with_gradient(tensor, tf.zeros_like(value), lambda grad: emission.enter(grad) * weights)
