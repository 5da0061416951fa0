"""The CPU time of rewriting a graph as a pipeline, against the released EPL, bounds and the size of the graph."""

import statistics
from typing import Any, Dict, List, NamedTuple

from benchmarks import groups, harness


class Case(NamedTuple):
    layers: int
    hidden: int
    stages: int
    micro_batches: int
    replicas: int


class Released(NamedTuple):
    """CPU seconds of the released EPL 0.6.0 on a machine where they were measured once.

    Attributes:
      rewrite: rewriting the graph.
      plain: building it without EPL, with gradients and updates, which says how fast the machine was.
    """

    rewrite: float
    plain: float


# In the runs of the first two the plain graph took 9 to 17 s: the middle of that.
RELEASED = {
    Case(12, 768, 4, 4, 1): Released(29.0, 13.0),
    Case(12, 768, 4, 8, 1): Released(47.0, 13.0),
    Case(12, 768, 8, 8, 1): Released(70.0, 8.0),
    Case(12, 768, 2, 4, 4): Released(111.0, 11.0),
}
LARGE = Case(24, 1024, 8, 32, 1)
LARGE_SECONDS, LARGE_GIGABYTES = 120.0, 4.0
# From about 20,000 to about 400,000 ops after the rewriting.
GROWTH = [Case(4, 768, 4, 8, 1), Case(12, 768, 4, 8, 1), LARGE]
TENTH = 0.1
FLAT = 1.3


def run(quick: bool) -> harness.Result:
    """Measures CPU seconds; every figure comes from a fresh process, the cases take turns."""
    growth = [Case(2, 64, 2, 2, 1), Case(2, 64, 2, 4, 1)] if quick else GROWTH
    cases = growth + [case for case in RELEASED if not quick and case not in growth]
    missing: List[str] = []
    figures: Dict[Case, List[Dict[str, Any]]] = {case: [] for case in cases}
    try:
        for number in range(1 if quick else 3):
            for case in cases:
                if case != LARGE or number == 0:
                    figures[case].append(_fresh(case))
    except groups.GroupError as error:
        missing.append(str(error))
    conditions = [
        "BERT for SQuAD, 12 layers (base) and 24 (large), encoder layers dealt over the stages, gradients, "
        "clipping, Adam with weight decay",
        "one process with a virtual CPU device per stage and replica; CPU time of fresh processes",
        "released EPL: scaled by the plain graph, as it took there and as it takes in the same process here",
    ]
    rows = [] if missing else _rows(figures, growth, quick)
    return harness.Result(
        "pipeline-rewriting (CPU time)",
        conditions,
        rows,
        {_name(case): results for case, results in figures.items()},
        missing,
    )


def _fresh(case: Case) -> Dict[str, Any]:
    variables = {
        "EPL_CLUSTER_NUM_VIRTUAL_DEVICES": str(case.stages * case.replicas),
        "EPL_PIPELINE_NUM_MICRO_BATCH": str(case.micro_batches),
    }
    group = groups.start_plain("pipeline_rewriting", [str(value) for value in case[:3]], variables, name="epl")
    try:
        with group.awake():
            return group.ask()[0]
    finally:
        group.close()


def _name(case: Case) -> str:
    replicas = " x %d replicas" % case.replicas if case.replicas > 1 else ""
    return "%d layers, %d stages x %d micro batches%s" % (case.layers, case.stages, case.micro_batches, replicas)


def _rows(figures: Dict[Case, List[Dict[str, Any]]], growth: List[Case], quick: bool) -> List[harness.Row]:
    rows = []
    for case, released in RELEASED.items():
        spent = [result["rewrite"] / result["plain"] for result in figures.get(case, [])]
        if spent:
            there = released.rewrite / released.plain
            rows.append(
                harness.row("EPL / released EPL, " + _name(case), [here / there for here in spent], at_most=TENTH)
            )
            rows.append(harness.row("EPL: rewriting / building the plain graph, " + _name(case), spent))
    for large in figures.get(LARGE, []):
        rows.append(
            harness.row(
                "EPL: seconds / %.0f s, %s" % (LARGE_SECONDS, _name(LARGE)),
                [large["rewrite"] / LARGE_SECONDS],
                at_most=1.0,
            )
        )
        rows.append(
            harness.row(
                "EPL: size of the process / %.0f GB, %s" % (LARGE_GIGABYTES, _name(LARGE)),
                [large["gigabytes"] / LARGE_GIGABYTES],
                at_most=1.0,
            )
        )
    smallest = statistics.median([_cost(result) for result in figures[growth[0]]])
    for case in growth[1:]:
        rows.append(
            harness.row(
                "EPL: cost per op, %s / %s" % (_name(case), _name(growth[0])),
                [_cost(result) / smallest for result in figures[case]],
                at_most=None if quick else FLAT,
            )
        )
    return rows


def _cost(figures: Dict[str, Any]) -> float:
    """The rewriting per op that it reads or adds, in the time that building an op takes in the same process."""
    return figures["rewrite"] / (figures["ops"] + figures["added"]) / (figures["build"] / figures["ops"])
