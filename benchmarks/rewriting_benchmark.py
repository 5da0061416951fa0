"""The CPU time of rewriting a training graph, against the released EPL and against the size of the graph."""

import statistics
from typing import Any, Dict, List, Tuple

from benchmarks import groups, harness

# The released EPL 0.6.0 on BERT-base, in CPU seconds on the machine where these were measured once: rewriting for 2 and
# 8 local devices, and building the plain graph with gradients and updates (which says how fast that machine was).
RELEASED_REWRITE = {2: 10.0, 8: 71.0}
RELEASED_PLAIN = 7.0
TENTH = 0.1
FLAT = 1.3
LAYERS = 12
# Layers and devices, from about 2,000 to about 120,000 ops after the rewriting.
GROWTH = [(1, 2), (4, 2), (12, 2), (12, 4), (12, 8)]


def run(quick: bool) -> harness.Result:
    """Measures CPU seconds; every figure comes from a fresh process."""
    layers = 1 if quick else LAYERS
    rounds = 1 if quick else 3
    missing: List[str] = []
    plain, rewritten = _measure(layers, [(1, 2), (1, 4)] if quick else GROWTH, rounds, missing)
    rows = []
    if plain and len(rewritten) > 1 and not missing:
        rows += _against_released(layers, plain, rewritten) if not quick else []
        annotated = next(figures for case, figures in rewritten.items() if case[0] == layers)
        rows.append(
            harness.row(
                "EPL: building the annotated graph / building the plain graph",
                [figures["build"] / plain_figures["build"] for figures, plain_figures in zip(annotated, plain)],
            )
        )
        rows += _growth(rewritten)
    conditions = [
        "BERT-base, %d layers, masked LM loss, gradients, clipping, Adam with weight decay: %s ops"
        % (layers, plain[0]["ops"] if plain else "?"),
        "CPU time of fresh processes, not wall time",
        "released EPL: 10 s and 71 s where the plain graph took 7 s; scaled by the plain graph of this run",
    ]
    return harness.Result(
        "rewriting (CPU time)",
        conditions,
        rows,
        {
            "plain": plain,
            "rewritten": {"%d layers, %d devices" % case: figures for case, figures in rewritten.items()},
        },
        missing,
    )


def _measure(
    layers: int, cases: List[Tuple[int, int]], rounds: int, missing: List[str]
) -> Tuple[List[Dict[str, Any]], Dict[Tuple[int, int], List[Dict[str, Any]]]]:
    """Returns the figures of the plain graph per round, and of each rewriting per case and round."""
    plain = []
    rewritten: Dict[Tuple[int, int], List[Dict[str, Any]]] = {case: [] for case in cases}
    try:
        for number in range(rounds):
            plain.append(_fresh("plain", layers, 1))
            for case in cases[:: -1 if number % 2 else 1]:
                rewritten[case].append(_fresh("epl", *case))
    except groups.GroupError as error:
        missing.append(str(error))
        rewritten = {case: figures for case, figures in rewritten.items() if figures}
    return plain, rewritten


def _fresh(library: str, layers: int, devices: int) -> Dict[str, Any]:
    group = groups.start_plain(
        "rewriting", [library, str(layers)], {"EPL_CLUSTER_NUM_VIRTUAL_DEVICES": str(devices)}, name=library
    )
    try:
        with group.awake():
            return group.ask()[0]
    finally:
        group.close()


def _against_released(
    layers: int, plain: List[Dict[str, Any]], rewritten: Dict[Tuple[int, int], List[Dict[str, Any]]]
) -> List[harness.Row]:
    rows = []
    for devices, released in sorted(RELEASED_REWRITE.items()):
        ratios = [
            figures["rewrite"] / (released * plain_figures["build"] / RELEASED_PLAIN)
            for figures, plain_figures in zip(rewritten[(layers, devices)], plain)
        ]
        rows.append(harness.row("EPL / released EPL, %d devices" % devices, ratios, at_most=TENTH))
    for devices in sorted(RELEASED_REWRITE):
        rows.append(
            harness.row(
                "EPL: rewriting for %d devices / building the plain graph" % devices,
                [
                    figures["rewrite"] / plain_figures["build"]
                    for figures, plain_figures in zip(rewritten[(layers, devices)], plain)
                ],
            )
        )
    return rows


def _ops_after(figures: Dict[str, Any]) -> int:
    return figures["ops"] + figures["added"]


def _growth(rewritten: Dict[Tuple[int, int], List[Dict[str, Any]]]) -> List[harness.Row]:
    """Returns the cost per cloned op of each case relative to the smallest graph's.

    Other work on the machine makes the same op cost up to twice the CPU time from one minute to the next. So the cost
    is counted in the time that building an op takes in the same process, right before.
    """

    def cost(figures: Dict[str, Any]) -> float:
        return figures["rewrite"] / figures["added"] / (figures["build"] / figures["ops"])

    cases = list(rewritten)
    smallest = statistics.median([cost(figures) for figures in rewritten[cases[0]]])
    rows = []
    for case in cases[1:]:
        what = "EPL: cost per cloned op, %d ops after / %d ops after" % (
            _ops_after(rewritten[case][0]),
            _ops_after(rewritten[cases[0]][0]),
        )
        rows.append(harness.row(what, [cost(figures) / smallest for figures in rewritten[case]], at_most=FLAT))
    return rows
