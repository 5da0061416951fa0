"""The answer of a search is never worse than the candidates that are always there: 12 models on 5 machines."""

import json

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.planner.search.comparison import WORTH
from epl.planner.search.decision import SearchResult, find_strategy
from epl.utils.errors import PlanError
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.timed_models import MODELS

SLOW = {"slow": {"preset": "p100-16", "flops": {"contraction": {"float32": "3 TFLOP/s"}}}}
SMALL = {"small": {"preset": "v100-16", "memory": "150 MB"}}
MACHINES = {
    "equal": {"nodes": [{"devices": ["4*v100-16"], "links": ["nvlink2"]}]},
    "slow link": {"nodes": [{"devices": ["4*v100-16"], "links": ["pcie3"]}]},
    "unequal": {"nodes": [{"devices": ["2*v100-32", "2*p100-16"], "links": ["pcie3"]}]},
    "one slow": {"devices": SLOW, "nodes": [{"devices": ["3*v100-16", "1*slow"], "links": ["pcie3"]}]},
    "small": {"devices": SMALL, "nodes": [{"devices": ["4*small"], "links": ["nvlink2"]}]},
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("machine", MACHINES)
def test_no_candidate_is_better(init, tmp_path, machine):  # noqa: F811
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(MACHINES[machine]))
    for model in MODELS:
        init(4, annotate=False, auto__planner="search", auto__machine=str(path))
        loss = model.build()
        try:
            find_strategy(Graph.get(may_create=True), loss, tf.trainable_variables())
        except PlanError as error:
            assert machine == "small" and "candidates fits the memory of the devices" in str(error)
            print(f"{machine}, {model.name}: nothing fits")
            continue
        found = Graph.get().state_of(SearchResult)
        always = [one for one in found.compared if "cut for their devices" not in one.candidate.name and one.fits]
        best = min([one.outcome.seconds for one in always], default=float("inf"))
        chosen = found.chosen.outcome.seconds
        print(f"{machine}, {model.name}: {found.chosen.candidate.name}, {best / chosen:.3f} x as fast as the others")
        assert found.chosen.fits and chosen <= (1 + WORTH) * best
