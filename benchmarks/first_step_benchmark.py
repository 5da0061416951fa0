"""The CPU time from an empty graph to the end of the first training step, against plain TensorFlow."""

from typing import Any, Dict, List, NamedTuple

from benchmarks import groups, harness


class Case(NamedTuple):
    model: str
    layers: int
    kind: str


PLAIN = "plain TensorFlow"
# Kind -> (stages, variables, largest ratio to plain TensorFlow on one device).
KINDS: Dict[str, Any] = {
    "data parallel, 2 devices": (1, {}, 1.5),
    "ZeRO v2, 2 devices": (1, {"EPL_ZERO_LEVEL": "v2"}, 2.0),
    "pipeline, 2 stages x 2 micro batches": (2, {"EPL_PIPELINE_NUM_MICRO_BATCH": "2"}, 2.0),
}
MODELS = [("bert", 8), ("dense", 100), ("dense", 200)]
LINEAR = 1.15  # twice the layers may take 15% more than twice the time of plain TensorFlow's own growth


def run(quick: bool) -> harness.Result:
    """Measures CPU seconds; every figure comes from a fresh process, the contenders take turns."""
    models = [("dense", 2), ("dense", 4)] if quick else MODELS
    cases = [Case(model, layers, kind) for model, layers in models for kind in [PLAIN, *KINDS]]
    missing: List[str] = []
    figures: Dict[Case, List[Dict[str, Any]]] = {case: [] for case in cases}
    try:
        for number in range(1 if quick else 3):
            for case in cases[:: -1 if number % 2 else 1]:
                figures[case].append(_fresh(case))
    except groups.GroupError as error:
        missing.append(str(error))
    conditions = [
        "building the model with gradients and Adam, initializer, first step; imports are not counted",
        "one process, 2 virtual CPU devices; CPU time of fresh processes, plain TensorFlow with one device",
    ]
    rows = [] if missing else _rows(figures, models, quick)
    details = {", ".join([str(part) for part in case]): replies for case, replies in figures.items()}
    return harness.Result("first-step (CPU time)", conditions, rows, details, missing)


def _fresh(case: Case) -> Dict[str, Any]:
    stages, variables, _ = KINDS.get(case.kind, (1, {}, None))
    library = "plain" if case.kind == PLAIN else "epl"
    arguments = [library, case.model, str(case.layers), str(stages)]
    group = groups.start_plain(
        "first_step", arguments, dict(variables, EPL_CLUSTER_NUM_VIRTUAL_DEVICES="2"), name=library
    )
    try:
        with group.awake():
            return group.ask()[0]
    finally:
        group.close()


def _rows(figures: Dict[Case, List[Dict[str, Any]]], models: List[Any], quick: bool) -> List[harness.Row]:
    seconds = {case: [reply["build"] + reply["run"] for reply in replies] for case, replies in figures.items()}
    rows = []
    for model, layers in models:
        for kind, (_, _, at_most) in KINDS.items():
            ratios = harness.ratios(seconds[Case(model, layers, kind)], seconds[Case(model, layers, PLAIN)])
            what = "%s / plain TensorFlow, %d layers of %s" % (kind, layers, model)
            rows.append(harness.row(what, ratios, at_most=None if quick else at_most))
    (model, few), (_, many) = models[-2:]
    for kind in KINDS:
        growth = harness.ratios(seconds[Case(model, many, kind)], seconds[Case(model, few, kind)])
        plain = harness.ratios(seconds[Case(model, many, PLAIN)], seconds[Case(model, few, PLAIN)])
        what = "%s: growth from %d to %d layers / that of plain TensorFlow" % (kind, few, many)
        rows.append(harness.row(what, harness.ratios(growth, plain), at_most=None if quick else LINEAR))
    return rows
