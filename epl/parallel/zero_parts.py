"""Which variables ZeRO cuts into parts, and along which dimension. Pure planning: nothing of the graph is touched.

State per rank is to be 1/N of all. A rank has one row of a variable that has fewer than N of them in each dimension, if
its optimizer computes element by element; else such a variable stays whole. So do the smallest ones, together at most
`WHOLE_SHARE` of the bytes, so that a rank moves few tensors.
"""

from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.split.layouts import Layout, balanced_sizes, shard, shard_few

WHOLE_SHARE = 0.02

Candidate = NamedTuple(
    "Candidate",
    [("name", str), ("shape", Tuple[int, ...]), ("bytes", int), ("by_rows", bool), ("by_element", bool)],
)
Candidate.__doc__ = """A trained variable.

Attributes:
  name: of its op.
  shape: its shape.
  bytes: its size.
  by_rows: whether its gradient is sparse: rows of dimension 0.
  by_element: whether its optimizer computes each element of it by itself.
"""


def choose_parts(candidates: Sequence[Candidate], ranks: int) -> Dict[str, Layout]:
    """Name -> how it is cut, of the variables that become parts."""
    found = {}
    for one in candidates:
        layout = _best_layout(one, ranks)
        if layout is not None:
            found[one.name] = layout
    left = WHOLE_SHARE * sum(one.bytes for one in candidates)
    left -= sum(one.bytes for one in candidates if one.name not in found)
    for one in sorted(candidates, key=lambda one: one.bytes):
        if one.name in found and one.bytes <= left:
            left -= one.bytes
            del found[one.name]
    return found


def _best_layout(one: Candidate, ranks: int) -> Optional[Layout]:
    """Along the dimension whose parts differ least, the first among equals; if all are short, along the longest."""
    best: Optional[Tuple[float, int]] = None
    shape = one.shape[: 1 if one.by_rows else None]
    for dim, size in enumerate(shape):
        sizes = balanced_sizes(size, ranks)
        if sizes is not None and (best is None or max(sizes) / size < best[0]):
            best = max(sizes) / size, dim
    if best is not None:
        return shard(best[1], balanced_sizes(shape[best[1]], ranks))
    rows = max(shape, default=0)
    return shard_few(shape.index(rows), rows, ranks) if one.bytes and rows > 1 and one.by_element else None
