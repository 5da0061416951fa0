"""What options that guard the numbers cost: a data-parallel step with each of them against the same step without."""

from typing import Callable, Dict, List, NamedTuple

from benchmarks import groups, harness

WORKERS = 2


class Case(NamedTuple):
    """One contender, and the one that it is measured against; settings are environment variables of EPL."""

    against: str
    settings: Dict[str, str]
    sparse: bool = False


_MANY = {"EPL_COMMUNICATION_MAX_SPLITS": "50"}
_HALF = {"EPL_COMMUNICATION_FP16": "1"}
CASES = {
    "5 buckets": Case("", {}),
    "50 buckets": Case("", _MANY),
    "debug.check_replicas = 1": Case("5 buckets", {"EPL_DEBUG_CHECK_REPLICAS": "1"}),
    "debug.check_replicas = 10": Case("5 buckets", {"EPL_DEBUG_CHECK_REPLICAS": "10"}),
    "communication.fp16, 5 buckets": Case("5 buckets", _HALF),
    "communication.fp16, 50 buckets": Case("50 buckets", {**_HALF, **_MANY}),
    "sparse gradient of the table": Case("", {}, sparse=True),
    "communication.ordered_sparse_sums": Case(
        "sparse gradient of the table", {"EPL_COMMUNICATION_ORDERED_SPARSE_SUMS": "on"}, sparse=True
    ),
}


def run(quick: bool) -> harness.Result:
    """Measures seconds per step of the training step of benchmark a; all contenders take turns."""
    sizes = ["2", "2", "128"] if quick else ["4", "4", "256"]
    rounds, steps = (2, 10) if quick else (9, 10)  # 10 steps: one comparison of check_replicas = 10
    missing: List[str] = []
    contenders = harness.start_all({name: _starter(sizes, name, case) for name, case in CASES.items()}, missing)
    try:
        seconds = harness.interleave(contenders, rounds, missing, steps=steps, warm_up=0)
    finally:
        for group in contenders.values():
            group.close()
    rows = [
        harness.row(f"{name}: step time against {case.against}", harness.ratios(seconds[name], seconds[case.against]))
        for name, case in CASES.items()
        if name in seconds and case.against in seconds
    ]
    return harness.Result(
        "options (step time with an option / without)",
        [f"BERT of benchmark a: {sizes[1]} layers, hidden {sizes[2]}, micro batch {sizes[0]}, {WORKERS} workers"],
        rows,
        {"seconds_per_step": {name: [value / steps for value in values] for name, values in seconds.items()}},
        missing,
    )


def _starter(sizes: List[str], name: str, case: Case) -> Callable[[], groups.Group]:
    arguments = ["epl", *sizes, "1", *(["sparse"] if case.sparse else [])]
    return lambda: groups.start_epl("training", arguments, WORKERS, case.settings, name)
