"""Rule of Reshape: which dimensions before and after are cut alike.

Dimensions are grouped so that each group has as many elements before as after, from the left and, where a size is not
known, from the right. A shard of the first dimension of a group is one run of its elements, before and after:

    [6, 640] -> [6, 10, 64]       6 is cut like 6;   640 like 10, in multiples of 64
    [6, 5, 640] -> [30, 640]      6 is cut like 30;  640 like 640
"""

from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import REPLICATED, Placement, shard
from epl.parallel.sharding.rules.common import linear, own_size, replaced
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, OpInfo, rule, shard_choices

_Sizes = Sequence[Optional[int]]


# The first dimensions of a group before and after, and the number of elements of one step along each.
class _Pair(NamedTuple):
    before: int
    after: int
    step_before: int
    step_after: int


_PRIME = 2147483647  # replaces an unknown size, so that no other size matches it by chance


@rule("Reshape")
def _reshape(op: OpInfo) -> Iterator[Choice]:
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if before is not None and after is not None and _may_match(before, after):
        for pair in _pairs(op, before, after):
            for sizes in _cuts(op, pair, before, after):
                into, out = (shard(dim, part) for dim, part in zip((pair.before, pair.after), sizes))
                yield Choice((into, REPLICATED), (out,), _emit_reshape(into, out))
    for choice in linear(op, 0):
        yield choice._replace(emit=_emit_reshape(choice.inputs[0], choice.outputs[0]))


def _may_match(before: _Sizes, after: _Sizes) -> bool:
    """Whether both may have the same number of elements, and not 0."""
    if 0 in before or 0 in after:
        return False
    return None in before or None in after or _product(before) == _product(after)


def _cuts(op: OpInfo, pair: _Pair, before: _Sizes, after: _Sizes) -> Iterator[Tuple[Optional[Sequence[int]], ...]]:
    """Sizes of the shards before and after."""
    if op.inputs[0].batch == pair.before:
        if op.outputs[0].batch in (None, pair.after):
            yield None, None
        return
    if op.outputs[0].batch == pair.after:
        return
    first, second = before[pair.before], after[pair.after]
    if first is None or second is None:
        return
    cuts = []
    for size, step in ((first, pair.step_before), (second, pair.step_after)):
        for cut in shard_choices(op, size):
            elements = tuple(part * step for part in cut)
            whole = not any(count % pair.step_before or count % pair.step_after for count in elements)
            if whole and elements not in cuts:
                cuts.append(elements)
    for elements in cuts:
        yield (
            tuple(count // pair.step_before for count in elements),
            tuple(count // pair.step_after for count in elements),
        )


def _pairs(op: OpInfo, before: _Sizes, after: _Sizes) -> List[_Pair]:
    """The pairs of dimensions that are cut alike; one at most for each dimension."""
    found: List[_Pair] = []
    left = _grouped(*_with_primes(before, after))
    for pair in left + _grouped_from_right(before, after) + _batch_pair(op, before, after):
        if not any(pair.before == other.before or pair.after == other.after for other in found):
            found.append(pair)
    return found


def _with_primes(before: _Sizes, after: _Sizes) -> Tuple[_Sizes, _Sizes]:
    """Both with numbers for unknown sizes, as far as the number of elements gives them."""
    known_before, known_after = _product(before), _product(after)
    if None not in before:
        rest = known_before // known_after
        return before, [rest if size is None and list(after).count(None) == 1 else size for size in after]
    if list(before).count(None) != 1 or list(after).count(None) != 1:
        return before, after
    unknown = _PRIME * known_after
    return (
        [unknown if size is None else size for size in before],
        [_PRIME * known_before if size is None else size for size in after],
    )


def _product(sizes: _Sizes) -> int:
    product = 1
    for size in sizes:
        product *= 1 if size is None else size
    return product


def _grouped(before: _Sizes, after: _Sizes) -> List[_Pair]:
    """Groups from the left, up to an unknown size."""
    pairs = []
    rows, columns = _larger_than_one(before), _larger_than_one(after)
    while rows and columns:
        first, second = rows[0], columns[0]
        inner, outer = _take_group(rows, columns, before, after)
        if inner is None or outer is None:
            break
        pairs.append(_Pair(first, second, inner // (before[first] or 1), outer // (after[second] or 1)))
    return pairs


def _grouped_from_right(before: _Sizes, after: _Sizes) -> List[_Pair]:
    """Groups from the right, up to an unknown size."""
    turned_before, turned_after = before[::-1], after[::-1]
    pairs = []
    rows, columns = _larger_than_one(turned_before), _larger_than_one(turned_after)
    while rows and columns:
        had = list(rows), list(columns)
        inner, outer = _take_group(rows, columns, turned_before, turned_after)
        if inner is None or outer is None:
            break
        first = had[0][len(had[0]) - len(rows) - 1]
        second = had[1][len(had[1]) - len(columns) - 1]
        pairs.append(
            _Pair(
                len(before) - 1 - first,
                len(after) - 1 - second,
                inner // (turned_before[first] or 1),
                outer // (turned_after[second] or 1),
            )
        )
    return pairs


def _larger_than_one(sizes: _Sizes) -> List[int]:
    return [dim for dim, size in enumerate(sizes) if size != 1]


def _take_group(
    rows: List[int], columns: List[int], before: _Sizes, after: _Sizes
) -> Tuple[Optional[int], Optional[int]]:
    """Takes the dimensions of the next group off both lists; gives its numbers of elements, None if not known."""
    inner, outer = before[rows.pop(0)], after[columns.pop(0)]
    while inner is not None and outer is not None and inner != outer:
        if inner < outer:
            size = before[rows.pop(0)] if rows else None
            inner = None if size is None else inner * size
        else:
            size = after[columns.pop(0)] if columns else None
            outer = None if size is None else outer * size
    return inner, outer


def _batch_pair(op: OpInfo, before: _Sizes, after: _Sizes) -> List[_Pair]:
    """The pair of batch dimensions if they are outermost before and after, for any other sizes."""
    first, second = op.inputs[0].batch, op.outputs[0].batch
    if first is None or second is None:
        return []
    outermost = all(size == 1 for size in list(before[:first]) + list(after[:second]))
    return [_Pair(first, second, 1, 1)] if outermost else []


def _emit_reshape(source: Placement, placement: Placement) -> Emit:
    """Reshape of a shard to this rank's shape."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        tensor, given = inputs
        shape = list(op.outputs[0].shape or ())
        if placement.is_shard:
            shape[placement.dim] = -1
        if op.outputs[0].shape is not None and None not in shape:
            return emission.same([tensor, tf.constant(shape, given.dtype.base_dtype)])
        if source.has_empty:
            given = _without_open(tensor, source, given)
        if placement.is_shard:
            asked = given[placement.dim]
            own = own_size(emission, placement, asked)
            given = replaced(given, placement.dim, tf.where_v2(asked < 0, asked, tf.cast(own, asked.dtype)))
        return emission.same([tensor, given])

    return emit


def _without_open(tensor: tf.Tensor, source: Placement, given: tf.Tensor) -> tf.Tensor:
    """The target shape of the full tensor with a size in place of -1, which an empty shard does not tell."""
    elements = tf.reduce_prod(replaced(tf.shape(tensor, out_type=tf.int64), source.dim, source.size))
    sizes = tf.cast(given, tf.int64)
    known = tf.reduce_prod(tf.where_v2(sizes < 0, tf.ones_like(sizes), sizes))
    return tf.cast(tf.where_v2(sizes < 0, elements // tf.maximum(known, 1), sizes), given.dtype.base_dtype)
