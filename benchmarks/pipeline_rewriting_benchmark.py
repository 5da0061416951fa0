"""The CPU time of rewriting a graph as a pipeline, against the released EPL, bounds and the size of the graph."""
from typing import Any, Dict, List, NamedTuple, Optional

from benchmarks import groups, harness

Case = NamedTuple('Case', [('layers', int), ('hidden', int), ('stages', int), ('micro_batches', int),
                           ('replicas', int)])
Released = NamedTuple('Released', [('rewrite', float), ('plain', float)])
Released.__doc__ = """CPU seconds of the released EPL 0.6.0 on a machine where they were measured once.

Attributes:
  rewrite: rewriting the graph.
  plain: building it without EPL, with gradients and updates, which says how fast the machine was.
"""
# The plain graph took between 9 and 17 s around the first two; the larger figure is the one that favours EPL 0.6.0.
RELEASED = {
    Case(12, 768, 4, 4, 1): Released(29.0, 17.0),
    Case(12, 768, 4, 8, 1): Released(47.0, 17.0),
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
    """Measures CPU seconds; every figure comes from a fresh process."""
    missing: List[str] = []
    rows: List[harness.Row] = []
    growth = [Case(2, 64, 2, 2, 1), Case(2, 64, 2, 4, 1)] if quick else GROWTH
    rounds = 1 if quick else 3
    plain = [_fresh('plain', growth[0] if quick else growth[1], missing) for _ in range(rounds)]
    figures = {case: [_fresh('epl', case, missing) for _ in range(1 if case == LARGE else rounds)]
               for case in growth + [case for case in RELEASED if not quick and case not in growth]}
    if not missing:
        rows += _rows(plain, figures, growth, quick)
    conditions = ['BERT for SQuAD, 12 layers (base) and 24 (large), encoder layers dealt over the stages, gradients, '
                  'clipping, Adam with weight decay',
                  'one process with a virtual CPU device per stage and replica; CPU time of fresh processes',
                  'released EPL: scaled by the time that the plain graph took there and takes in this run']
    return harness.Result('pipeline-rewriting (CPU time)', conditions, rows, {
        'plain': plain,
        'rewritten': {_name(case): results for case, results in figures.items()},
    }, missing)


def _fresh(library: str, case: Case, missing: List[str]) -> Optional[Dict[str, Any]]:
    variables = {'EPL_CLUSTER_NUM_VIRTUAL_DEVICES': str(case.stages * case.replicas),
                 'EPL_PIPELINE_NUM_MICRO_BATCH': str(case.micro_batches)}
    arguments = [library] + [str(value) for value in case[:3]]
    try:
        group = groups.start_plain('pipeline_rewriting', arguments, variables, name=library)
    except groups.GroupError as error:
        missing.append(str(error))
        return None
    try:
        with group.awake():
            return group.ask()[0]
    finally:
        group.close()


def _name(case: Case) -> str:
    replicas = ' x %d replicas' % case.replicas if case.replicas > 1 else ''
    return '%d layers, %d stages x %d micro batches%s' % (case.layers, case.stages, case.micro_batches, replicas)


def _rows(plain: List[Any], figures: Dict[Case, List[Any]], growth: List[Case],
          quick: bool) -> List[harness.Row]:
    rows = []
    builds = [result['build'] for result in plain]
    for case, released in RELEASED.items():
        if case in figures:
            there = [released.rewrite * build / released.plain for build in builds]
            spent = [result['rewrite'] for result in figures[case]]
            rows.append(harness.row('EPL / released EPL, ' + _name(case), harness.ratios(spent, there),
                                    at_most=TENTH))
            rows.append(harness.row('EPL: rewriting / building the plain graph, ' + _name(case),
                                    harness.ratios(spent, builds)))
    for large in figures.get(LARGE, []):
        rows.append(harness.row('EPL: seconds / %.0f s, %s' % (LARGE_SECONDS, _name(LARGE)),
                                [large['rewrite'] / LARGE_SECONDS], at_most=1.0))
        rows.append(harness.row('EPL: size of the process / %.0f GB, %s' % (LARGE_GIGABYTES, _name(LARGE)),
                                [large['gigabytes'] / LARGE_GIGABYTES], at_most=1.0))
    smallest = min(_cost(result) for result in figures[growth[0]])
    for case in growth[1:]:
        rows.append(harness.row('EPL: cost per op, %s / %s' % (_name(case), _name(growth[0])),
                                [_cost(result) / smallest for result in figures[case]],
                                at_most=None if quick else FLAT))
    return rows


def _cost(figures: Dict[str, Any]) -> float:
    """CPU seconds per op that the rewriting reads or adds."""
    return figures['rewrite'] / (figures['ops'] + figures['added'])
