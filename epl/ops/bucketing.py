"""Which tensors travel together: the plan of buckets for a list of tensors that become ready one after the other.

This module plans with sizes and dtypes, and builds no op. The op of a bucket starts when its last tensor is ready: with
many buckets the first ones start earlier, with few there are fewer calls.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple


class Bucket(NamedTuple):
    dtype: str
    tensors: Tuple[int, ...]
    bytes: int


class BucketPlan(NamedTuple("_BucketPlan", [("buckets", Tuple[Bucket, ...])])):
    """The buckets in the order in which they become ready, in which they must be issued."""

    __slots__ = ()

    def __repr__(self) -> str:
        lines = [f"{len(self.buckets)} buckets"]
        for number, bucket in enumerate(self.buckets):
            lines.append(
                "  {}: {} x {}, {:.1f} KiB: {}".format(
                    number, len(bucket.tensors), bucket.dtype, bucket.bytes / 1024.0, _ranges(bucket.tensors)
                )
            )
        return "\n".join(lines)


def plan_buckets(
    sizes_bytes: Sequence[Optional[int]], dtypes: Sequence[str], order: Sequence[int], max_splits: int
) -> BucketPlan:
    """Plans the buckets: each of one dtype, at most `max_splits` of them, or one per dtype if there are more dtypes.

    The buckets of one dtype are filled in the order of readiness and cut where the running sum of bytes passes each
    equal share, so that none holds more than its share plus one tensor. Dtypes share the number of buckets by
    their bytes. The same arguments always give the same plan.

    Args:
        sizes_bytes: size of each tensor, None if unknown: taken as the mean of the known ones.
        dtypes: name of the dtype of each tensor.
        order: positions of the tensors in the order in which they become ready; each once.
        max_splits: most buckets to make, at least 1.

    Returns:
        The plan.

    Raises:
        ValueError: if the arguments do not fit each other.
    """
    count = len(sizes_bytes)
    if len(dtypes) != count or sorted(order) != list(range(count)):
        raise ValueError(
            "There are {} sizes, {} dtypes and the order {}; every tensor must have one of each.".format(
                count, len(dtypes), list(order)
            )
        )
    if max_splits < 1:
        raise ValueError(f"max_splits is {max_splits}; it must be at least 1.")
    sizes = _known(sizes_bytes)
    members: Dict[str, List[int]] = {}
    for tensor in order:
        members.setdefault(dtypes[tensor], []).append(tensor)
    splits = _share_splits(
        {dtype: sum(sizes[t] for t in members[dtype]) for dtype in members},
        {dtype: len(members[dtype]) for dtype in members},
        max_splits,
    )
    buckets = []
    for dtype in members:
        for part in _cut(members[dtype], sizes, splits[dtype]):
            buckets.append(Bucket(dtype, tuple(part), sum(sizes[t] for t in part)))
    ready = {tensor: position for position, tensor in enumerate(order)}
    buckets.sort(key=lambda bucket: ready[bucket.tensors[-1]])
    return BucketPlan(tuple(buckets))


def _known(sizes: Sequence[Optional[int]]) -> List[int]:
    known = [size for size in sizes if size is not None]
    mean = sum(known) // len(known) if known else 1
    return [mean if size is None else size for size in sizes]


def _share_splits(totals: Dict[str, int], counts: Dict[str, int], max_splits: int) -> Dict[str, int]:
    """One bucket for each dtype; the rest one by one to the dtype whose buckets are the largest and can be cut."""
    splits = dict.fromkeys(totals, 1)
    for _ in range(max_splits - len(totals)):
        cuttable = [dtype for dtype in splits if splits[dtype] < counts[dtype]]
        if not cuttable:
            break
        largest = max(cuttable, key=lambda dtype: (totals[dtype] / float(splits[dtype]), dtype))
        splits[largest] += 1
    return splits


def _cut(tensors: Sequence[int], sizes: Sequence[int], splits: int) -> List[List[int]]:
    """Cuts the tensors in at most `splits` runs: a tensor belongs to the share in which its middle byte lies.

    bytes   |---a---|-b-|------c------|--d--|
    shares  |-----0-----|-----1-----|----2----|    ->   [a, b], [c], [d]
    """
    total = sum(sizes[tensor] for tensor in tensors)
    parts: List[List[int]] = [[] for _ in range(splits)]
    passed = 0
    for tensor in tensors:
        middle = 2 * passed + sizes[tensor]
        parts[min(splits - 1, splits * middle // (2 * total)) if total else 0].append(tensor)
        passed += sizes[tensor]
    return [part for part in parts if part]


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    runs: List[List[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
