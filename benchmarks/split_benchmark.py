"""A head of many classes, split over the devices against data parallel: bytes moved, seconds per step, memory."""

from typing import Any, Callable, Dict, List

from benchmarks import groups, harness

DEVICES = 2
# Classes, features, rows of one device.
SIZES = ["100000", "128", "32"]
NEAR_BOUND = 0.9
SHARE_MARGIN = 0.05


def run(quick: bool) -> harness.Result:
    """Measures steps in turns, then one traced step of each."""
    sizes = ["1000", "16", "8"] if quick else SIZES
    missing: List[str] = []
    contenders = harness.start_all({kind: _starter(kind, sizes) for kind in ("split", "data_parallel")}, missing)
    try:
        seconds = harness.interleave(contenders, 2 if quick else 9, missing, steps=2, warm_up=1)
        held = harness.interleave_replies(contenders, 1, missing, bytes=True)
    finally:
        for group in contenders.values():
            group.close()
    rows = [] if missing else _rows(seconds, {kind: replies[0][0] for kind, replies in held.items()}, sizes, quick)
    conditions = [
        "%s classes, %s features, %s rows per device; %d virtual CPU devices of one process" % tuple(sizes + [DEVICES]),
        "bytes that a device sends for the head: of a split by the decisions, of gradients as in a ring",
        "bound: classes / rows of all devices, gradients of the head against features of all rows",
    ]
    return harness.Result(
        "split head (seconds per step, bytes)", conditions, rows, {"seconds": seconds, "held": held}, missing
    )


def _starter(kind: str, sizes: List[str]) -> Callable[[], groups.Group]:
    return lambda: groups.start_plain("split", [kind, str(DEVICES)] + sizes, groups.ALLOCATOR, name=kind)


def _rows(seconds: Dict[str, List[float]], held: Dict[str, Any], sizes: List[str], quick: bool) -> List[harness.Row]:
    classes, _, rows = (int(size) for size in sizes)
    bound = classes / float(rows * DEVICES)
    split, data_parallel = held["split"], held["data_parallel"]
    found = [
        harness.row(
            "speed of the split head against data parallel",
            harness.ratios(seconds["data_parallel"], seconds["split"]),
            at_least=None if quick else 1.0,
        ),
        harness.row(
            "bytes sent, data parallel / split, over the bound (%.4g)" % bound,
            [data_parallel["moved"] / split["moved"] / bound],
            at_least=None if quick else NEAR_BOUND,
        ),
    ]
    for device in sorted(split["persistent"]):
        found.append(
            harness.row(
                "%s: bytes of variables, split / data parallel" % device,
                [split["persistent"][device] / data_parallel["persistent"][device]],
                at_most=None if quick else 1.0 / DEVICES + SHARE_MARGIN,
            )
        )
        found.append(
            harness.row(
                "%s: peak memory of a step, split / data parallel" % device,
                [split["peak"][device] / data_parallel["peak"][device]],
            )
        )
    return found
