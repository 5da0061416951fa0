"""The initial value of a shard: a slice of the full value, or a draw of its own from the same distribution.

    full = mean + stddev * TruncatedNormal([F, C])
        small      shard = full[:, offset : offset + size]                 the numbers of the single-device program
        large      shard = mean + stddev * TruncatedNormal([F, size])      seeds by rank; mean and stddev as above

The second form copies the ops of the graph: the scalars contain fan-in and fan-out of the full shape already.
"""

import itertools
import logging
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import copy_op
from epl.ir.graph import Graph
from epl.ops.job import Job
from epl.parallel.costs.shapes import num_elements
from epl.parallel.plan.agreement import process_server
from epl.parallel.rewriting.random_seeds import own_seed
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.resharding import Resharder, hidden
from epl.parallel.sharding.slices import slice_along
from epl.utils import tf_compat

logger = logging.getLogger("epl")

# Bytes of a full initial value. Up to this size every rank computes all of it and keeps its shard, so that a model
# starts with the numbers of one device; a larger one is not worth n times the work, in time and memory.
LARGEST_CUT = 256 << 20

_DRAWS = frozenset(["RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"])
_ELEMENTWISE = frozenset(["Add", "AddV2", "Cast", "Div", "Identity", "Mul", "Neg", "RealDiv", "Sub"])
_CONST_VALUES = ("bool_val", "double_val", "float_val", "half_val", "int64_val", "int_val")
_MOST_SEED = 0x7FFFFFFF


def local_shapes(full_shape: Sequence[int], placement: Placement) -> Tuple[Tuple[int, ...], ...]:
    """The shapes of the shards, by rank."""
    assert placement.sizes is not None
    before, after = tuple(full_shape[: placement.dim]), tuple(full_shape[placement.dim + 1 :])
    return tuple(before + (size,) + after for size in placement.sizes)


def local_slice(full_shape: Sequence[int], placement: Placement, rank: int) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Where a rank's shard begins, in every dimension, and its shape."""
    assert placement.sizes is not None
    begin = [0] * len(full_shape)
    begin[placement.dim] = sum(placement.sizes[:rank])
    return tuple(begin), local_shapes(full_shape, placement)[rank]


def static_slice(
    full_shape: Sequence[int], placement: Placement, resharder: Resharder
) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Where this rank's shard begins, and its shape, in the graph as it is built.

    An empty shard stands there as the first one that is not empty: TensorFlow has no empty slices, and drops the number
    in a constant without elements, from which other ranks of the process make their initial values. The rewriting
    corrects the variable, and `savers.py` what is saved and restored.
    """
    sizes = placement.sizes or ()
    rank = resharder.rank if sizes[resharder.rank] else next(rank for rank, size in enumerate(sizes) if size)
    return local_slice(full_shape, placement, rank)


def static_shape(full_shape: Sequence[int], placement: Placement, resharder: Resharder) -> Tuple[int, ...]:
    """The shape of this rank's shard in the graph as it is built, see `static_slice`."""
    return static_slice(full_shape, placement, resharder)[1]


def slice_spec(full_shape: Sequence[int], placement: Placement, rank: int) -> str:
    """A rank's shard in the notation of TensorFlow's checkpoint ops: "10 8 0,10:4,4" is columns 4 to 7 of [10, 8].

    The notation has no empty slice: for an empty shard, one element along the dimension that is cut.
    """
    begin, size = (list(part) for part in local_slice(full_shape, placement, rank))
    if not size[placement.dim]:
        begin[placement.dim], size[placement.dim] = min(begin[placement.dim], full_shape[placement.dim] - 1), 1
    return spec_of(full_shape, begin, size)


def spec_of(full_shape: Sequence[int], begin: Sequence[int], size: Sequence[int]) -> str:
    """Any slice of a tensor in the same notation."""
    return "{} {}".format(" ".join(map(str, full_shape)), ":".join("{},{}".format(*part) for part in zip(begin, size)))


def cut(full: tf.Tensor, full_shape: Sequence[int], placement: Placement, resharder: Resharder) -> tf.Tensor:
    """This rank's shard of a REPLICATED value. No gradient, and the shape is static."""
    begin = resharder.own([local_slice(full_shape, placement, rank)[0] for rank in range(resharder.ranks)], tf.int32)
    size = resharder.own(local_shapes(full_shape, placement), tf.int32)
    part = own_memory(tf.slice(full, begin, size), full)
    part.set_shape(static_shape(full_shape, placement, resharder))
    return part


def cut_if_full(value: tf.Tensor, full_shape: Sequence[int], placement: Placement, resharder: Resharder) -> tf.Tensor:
    """`cut` of a value that may be this rank's shard already, where one rank has all and the others nothing."""
    begin, size = resharder.own_range(placement, None)
    either = hidden(value, placement.dim)  # its static size says nothing of other ranks
    is_full = tf.equal(tf.shape(either)[placement.dim], placement.size)
    part = own_memory(slice_along(either, placement.dim, tf.where_v2(is_full, begin, 0), size), value)
    part.set_shape(static_shape(full_shape, placement, resharder))
    return part


def own_memory(part: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    """A part of a value, which lies in no array of the script.

    A part of what is fed, or of what a Python function gives, lies in their array. A resource variable would take it
    over, and training change the array.
    """
    is_array = source_of(whole).op.type in op_types.PLACEHOLDERS | op_types.PYTHON
    return tf.raw_ops.DeepCopy(x=part) if is_array else part


def shard_of(full: tf.Tensor, full_shape: Sequence[int], placement: Placement, resharder: Resharder) -> tf.Tensor:
    """This rank's shard of a REPLICATED value; if the value is read from a checkpoint, only the shard is read."""
    part = restored_shard(full, full_shape, placement, resharder)
    return cut(full, full_shape, placement, resharder) if part is None else part


def restored_shard(
    full: tf.Tensor, full_shape: Sequence[int], placement: Placement, resharder: Resharder
) -> Optional[tf.Tensor]:
    """This rank's shard of a tensor, read from the checkpoint from which `full` is read; None if it is not."""
    full = source_of(full)
    op = full.op
    if op.type != "RestoreV2":
        return None
    names, specs = (tf_compat.static_value(tensor) for tensor in op.inputs[1:])
    if names is None or specs is None or specs[full.value_index]:
        return None
    own = resharder.own([[slice_spec(full_shape, placement, rank)] for rank in range(resharder.ranks)], tf.string)
    with tf.device(op.device):
        name = tf.constant([names[full.value_index]])
        (part,) = tf.raw_ops.RestoreV2(
            prefix=op.inputs[0], tensor_names=name, shape_and_slices=own, dtypes=[full.dtype]
        )
    if placement.has_empty:
        part = tf.slice(part, [0] * len(full_shape), resharder.own(local_shapes(full_shape, placement), tf.int32))
    part.set_shape(static_shape(full_shape, placement, resharder))
    return part


def source_of(value: tf.Tensor) -> tf.Tensor:
    """The tensor that Identity and Reshape ops hand on as a value."""
    while value.op.type in ("Identity", "Reshape"):
        value = value.op.inputs[0]
    return value


def initial_shard(
    full: tf.Tensor, full_shape: Sequence[int], placement: Placement, resharder: Resharder, variable: str
) -> Tuple[tf.Tensor, Dict[str, Tuple[int, ...]]]:
    """This rank's shard of an initial value.

    Args:
      full: the initial value of the full variable.
      full_shape: its shape.
      placement: of the shard.
      resharder: of this rank.
      variable: its name, for messages.

    Returns:
      The shard, of static shape, and the random ops that were made for it: name -> second seed by rank.
    """
    restored = restored_shard(full, full_shape, placement, resharder)
    if restored is not None:
        return restored, {}
    size = num_elements(tuple(full_shape)) * full.dtype.size
    if size > LARGEST_CUT:
        shapes = local_shapes(full_shape, placement)
        redraw = Redraw(full_shape, shapes, static_shape(full_shape, placement, resharder), resharder)
        part = redraw.build(full)
        if part is not None:
            return part, redraw.seeds
        logger.info(
            "The initial value of %s, of %d MiB, is computed whole on every rank and cut: what makes it (%s) is not "
            "known to EPL, so that a shard cannot be drawn by itself.",
            variable,
            size >> 20,
            redraw.unknown,
        )
    return cut(full, full_shape, placement, resharder), {}


class Redraw:
    """Builds an initial value again in another shape.

    Attributes:
      seeds: of the random ops that were built: name -> second seed by rank.
      unknown: the op that could not be built, for a message.
    """

    def __init__(
        self, shape: Sequence[int], shapes: Sequence[Tuple[int, ...]], static: Sequence[int], resharder: Resharder
    ) -> None:
        """Builds nothing yet.

        Args:
          shape: of the initial values that `build` takes.
          shapes: the shapes to build, by rank.
          static: the static shape of what is built, see `static_shape`.
          resharder: of this rank.
        """
        self._shape = tuple(shape)
        self._shapes = shapes
        self._static = static
        self._resharder = resharder
        self.seeds: Dict[str, Tuple[int, ...]] = {}
        self.unknown = ""

    def build(self, tensor: tf.Tensor) -> Optional[tf.Tensor]:
        """The tensor that replaces `tensor`, of static shape; None, and nothing built, if some op is not known."""
        self.unknown = self._find_unknown(tensor)
        if self.unknown:
            return None
        part = self._built(tensor, self._resharder.own(self._shapes, tf.int32))
        part.set_shape(self._static)
        return part

    def _find_unknown(self, tensor: tf.Tensor) -> str:
        """The op that cannot be built in another shape; "" if there is none."""
        op = tensor.op
        if tensor.shape.ndims == 0:
            return ""
        if tensor.shape.is_fully_defined() and tuple(tensor.shape.as_list()) == self._shape:
            if op.type in _ELEMENTWISE:
                return next(filter(None, map(self._find_unknown, op.inputs)), "")
            if op.type in _DRAWS or op.type == "Fill" or _constant_element(op) is not None:
                return ""
        return f"{op.type} {op.name!r}"

    def _built(self, tensor: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        op = tensor.op
        if tensor.shape.ndims == 0:
            return tensor
        if op.type in _ELEMENTWISE:
            return copy_op(op, [self._built(source, shape) for source in op.inputs], {}).outputs[0]
        if op.type == "Fill":
            return tf.fill(shape, op.inputs[1])
        element = _constant_element(op)
        if element is not None:
            return tf.fill(shape, element)
        return self._drawn(op, shape)

    def _drawn(self, op: tf.Operation, shape: tf.Tensor) -> tf.Tensor:
        attrs: Dict[str, Any] = {"T": tf.int32}  # of the shape
        seeds = [own_seed(op.node_def, rank) for rank in range(self._resharder.ranks)]
        if seeds[0] is not None:
            attrs["seed2"] = seeds[self._resharder.rank]
        drawn = copy_op(op, [shape] + list(op.inputs[1:]), attrs).outputs[0]
        if seeds[0] is not None:
            self.seeds[drawn.op.name] = tuple(seed.i for seed in seeds if seed is not None)
        return drawn


def _constant_element(op: tf.Operation) -> Optional[tf.Tensor]:
    """The one element of a constant that is the same everywhere, as a scalar."""
    if op.type != "Const":
        return None
    proto = op.get_attr("value")
    for field in _CONST_VALUES:
        values = getattr(proto, field)
        if len(values) == 1 and not proto.tensor_content:
            return tf.constant(tf.make_ndarray(type(proto)(dtype=proto.dtype, **{field: values})))
    return None


def share_seed(full: tf.Tensor, seed: int) -> None:
    """Gives seeds to the random ops of an initial value that have none, so that all processes draw the same numbers.

    Args:
      full: the initial value.
      seed: positive; the same in all processes, and another one for another variable.
    """
    stack: List[tf.Operation] = [full.op]
    seen = set()
    while stack:
        op = stack.pop()
        if op in seen:
            continue
        seen.add(op)
        stack.extend(source.op for source in op.inputs)
        attrs = op.node_def.attr
        if "seed2" in attrs and not attrs["seed"].i and not attrs["seed2"].i:
            tf_compat.set_attr(op, "seed", tf.AttrValue(i=seed % _MOST_SEED or 1))
            tf_compat.set_attr(op, "seed2", tf.AttrValue(i=len(seen)))


class _AgreedSeeds:
    """Seeds on which all processes that build a graph agree; each call of next() gives another one."""

    def __init__(self) -> None:
        self.numbers = itertools.count(_agreed_seed())


def next_seed(graph: Graph) -> int:
    """A seed for an initial value, on which all processes that build a graph agree; another one at each call."""
    return next((graph.state_of(_AgreedSeeds) or graph.keep(_AgreedSeeds, _AgreedSeeds())).numbers)


def _agreed_seed() -> int:
    """A number on which all processes that build graphs agree, small enough to count up from it."""
    job, server = Job.current(), process_server()
    key, own = "seed of initial values", str(int.from_bytes(os.urandom(4), "little") % 2**30 + 1)
    if server is not None:  # processes that build no graph take part in the server's rounds alone
        return int(server.service.exchange(key, own)[0])
    assert job is not None
    return int(job.exchange(key, own.encode())[0])
