"""Wire dtypes: a tensor of a dtype that the core does not know travels as another dtype, and is converted back.

The core moves uint8, int8, int32, int64, float16, bfloat16, float32 and float64. This module is the table for
the other dtypes; those that cannot travel are refused with a message.
"""

from typing import Callable, Dict, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

NATIVE_DTYPES = (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64)

_Conversion = Callable[[tf.Tensor], tf.Tensor]


class WireDtype(NamedTuple):
    encode: _Conversion
    decode: _Conversion
    reductions: Tuple[str, ...]


_ALL = ("sum", "prod", "min", "max")


def wire_dtype(dtype: tf.DType, reduce_op: Optional[str]) -> Optional[WireDtype]:
    """How tensors of `dtype` travel; None if the core moves them as they are.

    Args:
        dtype: dtype of the tensors.
        reduce_op: the reduction that will be done on them, or None if they are only moved.

    Returns:
        The wire dtype, or None.

    Raises:
        TypeError: if such tensors cannot travel, or cannot be reduced in this way.
    """
    if dtype in NATIVE_DTYPES:
        return None
    if dtype not in _WIRE_DTYPES:
        raise TypeError(
            "Tensors of {} cannot be moved between ranks; those of {} can.".format(
                dtype.name, ", ".join(sorted(known.name for known in list(_WIRE_DTYPES) + list(NATIVE_DTYPES)))
            )
        )
    found = _WIRE_DTYPES[dtype]
    if reduce_op is not None and reduce_op not in found.reductions:
        raise TypeError(
            "Tensors of {} cannot be reduced with {}; legal: {}. Cast them to another dtype first.".format(
                dtype.name, reduce_op, ", ".join(found.reductions) or "none"
            )
        )
    return found


def integer_mean(dtype: tf.DType, world: int) -> WireDtype:
    """How integers travel for a mean: they are summed as int64, then divided; the mean is truncated towards zero.

    Raises:
        TypeError: for uint64, whose values int64 cannot hold.
    """
    if dtype == tf.uint64:
        raise TypeError("Tensors of uint64 cannot be averaged; cast them to another dtype first.")
    return WireDtype(
        lambda tensor: tf.cast(tensor, tf.int64),
        lambda total: tf.cast(tf.truncatediv(total, tf.constant(world, tf.int64)), dtype),
        ("sum",),
    )


def _cast(dtype: tf.DType, wire: tf.DType, reductions: Tuple[str, ...] = _ALL) -> WireDtype:
    return WireDtype(lambda tensor: tf.cast(tensor, wire), lambda tensor: tf.cast(tensor, dtype), reductions)


def _bits(dtype: tf.DType, wire: tf.DType, reductions: Tuple[str, ...]) -> WireDtype:
    return WireDtype(lambda tensor: tf.bitcast(tensor, wire), lambda tensor: tf.bitcast(tensor, dtype), reductions)


def _pair_of_reals(tensor: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.real(tensor), tf.imag(tensor)], axis=-1)


def _complex_of_pair(pair: tf.Tensor) -> tf.Tensor:
    return tf.complex(pair[..., 0], pair[..., 1])


_WIRE_DTYPES: Dict[tf.DType, WireDtype] = {
    tf.bool: _cast(tf.bool, tf.uint8, ("min", "max")),
    tf.int16: _cast(tf.int16, tf.int32),
    tf.uint16: _cast(tf.uint16, tf.int32),
    # The bits of a sum or product modulo 2^n do not depend on signedness; those of a minimum or maximum do.
    tf.uint32: _bits(tf.uint32, tf.int32, ("sum", "prod")),
    tf.uint64: _bits(tf.uint64, tf.int64, ("sum", "prod")),
    tf.complex64: WireDtype(_pair_of_reals, _complex_of_pair, ("sum",)),
    tf.complex128: WireDtype(_pair_of_reals, _complex_of_pair, ("sum",)),
}
