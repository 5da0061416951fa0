"""A search with less memory than data parallelism needs: traced steps of the plan that it takes keep to the limit."""

import json

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.planner.search.decision import SearchResult
from epl.profiler.memory_estimate import memory_estimate
from epl.utils.errors import PlanError
from tests.parallel.in_process import init  # noqa: F401
from tests.profiler.estimate.memory_models import Bert, Mlp, Resnet
from tests.profiler.estimate.test_memory_estimate import THREADS, memory_is_given_back, peak_of, traced  # noqa: F401

# Name -> the model, and the part of the memory of data parallelism that there is.
MODELS = {
    "dense, many rows": (lambda: Mlp(layers=32), 0.6),
    "dense, many weights": (lambda: Mlp(layers=8, width=1024, rows=64), 0.8),
    "bert": (lambda: Bert(rows=32), 0.7),
    "resnet": (lambda: Resnet(rows=64), 0.8),
    "resnet, recomputed beside a split": (lambda: Resnet(rows=128), 0.6),
}


def machine_file(path, memory):
    """Two devices of so many bytes."""
    plain = {
        "devices": {"here": {"preset": "cpu", "memory": int(memory)}},
        "links": {"bus": {"preset": "pcie3"}},
        "nodes": [{"devices": "2*here", "links": "bus"}],
    }
    path.write_text(json.dumps(plain))
    return str(path)


def data_parallel(init, build):  # noqa: F811
    """Bytes of a device, as the estimate of the rewritten graph has them, and the rows of a batch."""
    init(2, annotate=False)
    model = build()
    devices = memory_estimate(model.train_op, model.feed, THREADS, advise=False).devices
    return max(one.peak for one in devices), len(next(iter(model.feed.values())))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_within_a_limit_keeps_to_it(init, tmp_path, name):  # noqa: F811
    build, part = MODELS[name]
    peak, rows = data_parallel(init, build)
    limit = part * peak
    machine = machine_file(tmp_path / "machine.json", limit)
    init(2, annotate=False, auto__planner="search", auto__machine=machine, auto__rows=rows, auto__budget=10)
    model = build()
    found = Graph.get().state_of(SearchResult)
    as_it_is = next(one for one in found.compared if one.candidate.name == "the script as it is")
    assert not as_it_is.fits and found.chosen.fits
    lines, variables = traced(model)
    peaks = [peak_of(line, variables.get(device, 0)) for device, line in lines.items()]
    print(f"{name}: {limit / 1e6:.1f} MB, {found.chosen.candidate.name}: {max(peaks) / 1e6:.1f} MB")
    assert max(peaks) <= limit


@pytest.mark.long
def test_what_fits_nowhere_is_refused_with_what_lacks_and_how_many_would_do(init, tmp_path):  # noqa: F811
    machine = machine_file(tmp_path / "machine.json", 2e6)
    init(2, annotate=False, auto__planner="search", auto__machine=machine, auto__rows=64, auto__budget=5)
    with pytest.raises(PlanError, match=r"lacks .*devices") as caught:
        Mlp(layers=8, width=512, rows=64)
    print(caught.value)
    assert tf.get_default_graph().get_operations()
