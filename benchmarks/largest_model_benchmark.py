"""The largest BERT that trains in a given memory, with the features that save it: layers against plain TensorFlow's.

The number of layers comes from the memory estimate, before anything has run; then a step of that size is traced.
"""

import contextlib
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from benchmarks import groups, harness
from benchmarks.memory_benchmark import AUTO, PLAIN, RANKS, Variant, epl_variant, groups_of, refusal
from benchmarks.models import bert

LIMIT, QUICK_LIMIT = 4 * 2**30, 480 * 2**20
# Hidden size, rows of a process.
SIZES, QUICK_SIZES = [1024, 4], [512, 4]
# Layers of the two models whose estimates tell where to look first.
SMALL, QUICK_SMALL = (4, 8), (1, 2)
# Sizes that are tried after those; each at most so many times as large as the largest before.
TRIES, GROWTH = 5, 3
# Nothing is timed, and the ranks share a machine: what is freed goes back to the system, as malloc has it by default.
GIVES_BACK = {"MALLOC_MMAP_MAX_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
VARIANTS = [
    PLAIN,
    AUTO,
    epl_variant("ZeRO v2, %d ranks" % RANKS, ranks=RANKS, zero__level="v2"),
    epl_variant(
        "all: ZeRO v2, %d ranks, gradient checkpoint auto, grouped apply" % RANKS,
        ranks=RANKS,
        zero__level="v2",
        gradient_checkpoint__type="auto",
        optimizer__num_apply_group="8",
    ),
]


class Largest(NamedTuple):
    """The most layers that train, those that should by the estimate, and what a rank holds."""

    layers: int
    estimated: int
    estimated_peak: float
    peak: float


def run(quick: bool) -> harness.Result:
    """Finds the largest model of each variant, one after another."""
    limit, sizes, small = (QUICK_LIMIT, QUICK_SIZES, QUICK_SMALL) if quick else (LIMIT, SIZES, SMALL)
    missing: List[str] = []
    found: Dict[str, Largest] = {}
    for variant in VARIANTS:
        try:
            found[variant.name] = largest(variant, sizes, small, limit)
        except groups.GroupError as error:
            missing.append(refusal(str(error)))
    conditions = [
        "BERT for SQuAD, hidden %d, dropout, sequence %d, %d rows per process, Adam, float32"
        % (sizes[0], bert.SEQUENCE, sizes[1]),
        "limit: %.4g GB for what the ops of a step hold and for variables, per rank" % (limit / 2.0**30),
        "layers: as the memory estimate says, if a traced step of that size holds no more",
    ]
    return harness.Result(
        "largest-model (layers)",
        conditions,
        _rows(found, limit),
        {name: one._asdict() for name, one in found.items()},
        missing,
    )


def largest(variant: Variant, sizes: List[int], small: Sequence[int], limit: int) -> Largest:
    """Returns the largest model of a variant.

    Args:
        variant: what is trained how.
        sizes: hidden size and rows.
        small: layers of two models to begin with.
        limit: bytes of a rank.

    Raises:
        GroupError: a process failed, or no size that was tried holds less than the limit.
    """
    peaks: Dict[int, float] = {}
    traced: Dict[int, float] = {}
    for layers in small:
        with _running(variant, [layers] + sizes) as group:
            peaks[layers] = _most(group.ask(estimate=True))
    layers, most = min(fitting(peaks, limit), GROWTH * max(peaks)), sys.maxsize
    for _ in range(TRIES):
        with _running(variant, [layers] + sizes) as group:
            peaks[layers] = _most(group.ask(estimate=True))
            wanted = min(fitting(peaks, limit), most, GROWTH * max(peaks))
            if wanted == layers:
                traced[layers] = _most(group.ask(bytes=True))
                if traced[layers] <= limit:
                    return Largest(layers, fitting(peaks, limit), peaks[layers], traced[layers])
                wanted = most = layers - 1
        layers = wanted
        if not layers:
            break
    raise groups.GroupError(
        "%s: no size was found that trains in %d bytes. Estimated bytes: %s; traced: %s"
        % (variant.name, limit, _by_layers(peaks), _by_layers(traced))
    )


def fitting(peaks: Dict[int, float], limit: float) -> int:
    """Returns the most layers, at least 1, within a limit, on the line through the two known peaks next to it."""
    (few, low), (many, high) = sorted(sorted(peaks.items(), key=lambda known: abs(known[1] - limit))[:2])
    return max(1, few + int((limit - low) // ((high - low) / (many - few))))


@contextlib.contextmanager
def _running(variant: Variant, sizes: List[int]) -> Iterator[groups.Group]:
    """The processes of a variant, which are ended behind the block."""
    group = groups_of(variant._replace(config=dict(GIVES_BACK, **variant.config)), sizes)()
    try:
        with group.awake():
            yield group
    finally:
        group.close()


def _by_layers(peaks: Dict[int, float]) -> str:
    return ", ".join("%d layers %.0f" % known for known in sorted(peaks.items())) or "none"


def _most(replies: List[Dict[str, Any]]) -> float:
    return max(peak for reply in replies for peak in reply["peak"].values())


def _rows(found: Dict[str, Largest], limit: int) -> List[harness.Row]:
    rows = []
    for name, one in found.items():
        label = "%s, %d layers: " % (name, one.layers)
        if name != PLAIN.name and PLAIN.name in found:
            rows.append(
                harness.row(
                    "%slayers / %d of plain TensorFlow" % (label, found[PLAIN.name].layers),
                    [one.layers / found[PLAIN.name].layers],
                )
            )
        rows.append(harness.row(label + "peak of a step / limit", [one.peak / limit], at_most=1.0))
        rows.append(harness.row(label + "peak as estimated / traced", [one.estimated_peak / one.peak]))
    return rows
