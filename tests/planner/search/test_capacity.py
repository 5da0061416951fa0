"""How many devices a model needs that does not fit."""

import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.planner.prediction import prediction
from epl.planner.prediction.layout import decided
from epl.planner.search import decision
from epl.planner.search.candidates import candidates
from epl.planner.search.capacity import CapacitySearch, fewest, find_capacity, fits, in_words, most_saving, repeated
from epl.planner.search.planned_model import PlannedModel
from epl.planner.search.search_time import SearchTime
from epl.utils.errors import PlanError
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.prediction import hand_made
from tests.planner.search.test_decision import _machine, _minimize
from tests.planner.search.test_own_splits import SCRIPTS, Model, _begin


@given(st.integers(1, 300), st.integers(1, 300))
def test_fewest_is_found_with_few_questions(needed, largest):
    asked = []

    def enough(times):
        asked.append(times)
        return times >= needed

    found = fewest(enough, largest)
    assert found == (max(needed, 2) if max(needed, 2) <= largest else None)
    assert len(asked) <= 18 and len(set(asked)) == len(asked)


@pytest.fixture(autouse=True)
def small_communicators(monkeypatch):
    """The devices of these tests are smaller than what communicators of GPUs keep."""
    monkeypatch.setattr(prediction, "NCCL_PACK_BYTES", 0)


COSTS = hand_made.HandCosts([hand_made.Layer(weight=4 << 20, output=1000.0, kept=True)] * 4)


def _model(memory, nodes=(("a", "a"),), **settings):
    machine = hand_made.machine(nodes, devices=[hand_made.device(bandwidth=1e9, memory=memory)], bandwidth=1e6)
    workers = len(nodes)
    return PlannedModel(hand_made.strategy(COSTS, devices=2, workers=workers, **settings), COSTS, machine, 64, None, ())


def _find(larger):
    return "the same" if fits(larger.strategy, larger, larger.machine) else None


def test_a_machine_is_repeated_with_a_network_between():
    larger = repeated(_model(1), 3, False)
    assert larger.machine.num_devices == 6 and {node.network for node in larger.machine.nodes} == {"eth-10"}
    assert (larger.strategy.workers, larger.rows) == (3, 192) and repeated(_model(1), 3, True).rows == 64
    larger = repeated(_model(1, (("a", "a"), ("a", "a"))), 2, True)
    assert {node.network for node in larger.machine.nodes} == {"net"} and "eth-10" not in str(larger.machine.links)


def test_shards_of_more_devices_fit():
    model = _model(25 << 20, zero__level="v1")
    assert not fits(model.strategy, model, model.machine)
    searched = find_capacity(model, True, _find, SearchTime(None))
    found = searched.enough
    for times in range(2, found.times + 1):
        larger = repeated(model, times, True)
        assert fits(larger.strategy, larger, larger.machine) == (times == found.times)
    assert found.devices == 2 * found.times and found.rows == 64
    assert f"{found.devices} such devices would do" in in_words(searched, model.machine)


def test_full_copies_fit_on_no_number_of_devices():
    model = _model(18 << 20, auto__balance="5:3")
    none = find_capacity(model, True, _find, SearchTime(None), most=64)
    assert none == CapacitySearch(None)
    assert in_words(none, model.machine, 64) == "No number of such devices up to 64 would do."
    assert in_words(none, model.machine, 3) == ""


@pytest.mark.parametrize(
    "needed, interrupted_at, words",
    [
        (
            4,
            3,
            '8 such devices would do, by the simulator: 4 times the machine, 64 rows, plan "p". Fewer may do: Ctrl-C',
        ),
        (200, 4, "Ctrl-C ended the search for enough devices."),
    ],
)
def test_ctrl_c_ends_the_search_alone_and_it_says_what_it_tries(caplog, needed, interrupted_at, words):
    model = _model(1)

    def find(larger):
        times = larger.machine.num_devices // 2
        if times == interrupted_at:
            raise KeyboardInterrupt
        return "p" if times >= needed else None

    with caplog.at_level(logging.INFO, "epl.search.capacity"):
        found = find_capacity(model, True, find, SearchTime(None, may_stop=True))
    assert in_words(found, model.machine).startswith(words)
    assert caplog.messages[0].endswith("that would do, up to 512; Ctrl-C ends this search alone")
    assert caplog.messages[1] == "search: 4 devices are too few"
    with pytest.raises(KeyboardInterrupt):
        find_capacity(model, True, find, SearchTime(None))


def test_most_saving_candidates():
    base = _model(1).strategy
    settings = {"gradient_checkpoint.type": '""', "zero.level": '""', "pipeline.num_micro_batch": "1"}
    base = base._replace(
        settings=tuple(hand_made.Setting(key, value, "default") for key, value in settings.items()), workers=2
    )
    found = most_saving(candidates(base, 64, lambda count: None))
    (one,) = found
    assert decided(one.strategy)["zero.level"] == "v2" and decided(one.strategy)["gradient_checkpoint.type"] == "auto"


@pytest.mark.parametrize(
    "memory, message",
    [("9 MB", "([0-9]+) such devices would do"), ("1 MB", "in stages, no number of such devices up to 512 would")],
)
def test_a_search_without_a_plan_says_what_would_do(init, tmp_path, memory, message, monkeypatch):  # noqa: F811
    monkeypatch.setattr(decision, "_leaves_blocks", lambda strategy: False)  # a split would fit
    machine = {"devices": {"tiny": {"preset": "v100-16", "memory": memory}}, "nodes": ["4*tiny"]}
    path = _machine(tmp_path, machine)
    init(4, annotate=False, auto__planner="search", auto__budget=0, auto__machine=path, auto__rows=16)
    with pytest.raises(PlanError, match="candidates fits the memory of the devices") as raised:
        _minimize(width=768)
    assert "lacks" in str(raised.value)
    told = re.search(message, str(raised.value))
    assert told, str(raised.value)
    if told.groups():
        machine["nodes"] = [f"{told.group(1)}*tiny"]
        (tmp_path / "machine.json").write_text(json.dumps(machine))
        init(
            int(told.group(1)),
            annotate=False,
            auto__planner="search",
            auto__budget=0,
            auto__machine=path,
            auto__rows=16,
        )
        _minimize(width=768)  # a plan is found


def test_a_split_over_all_devices_is_cut_for_more_of_them(init, tmp_path):  # noqa: F811
    machine = {"devices": {"tiny": {"preset": "v100-16", "memory": "500 kB"}}, "nodes": ["2*tiny"]}
    config = {"auto__planner": "search", "auto__steps": 0}
    with pytest.raises(PlanError, match="candidates fits the memory of the devices") as raised:
        _begin(init, "all", auto__machine=_machine(tmp_path, machine), **config)
    told = re.search("([0-9]+) such devices would do", str(raised.value))
    assert told, str(raised.value)
    machine["nodes"] = [f"{told.group(1)}*tiny"]
    values = {"cluster__colocate_split_and_replicate": True, "auto__rows": 24, **config}
    init(int(told.group(1)), annotate=False, auto__machine=_machine(tmp_path, machine), **values)
    Model(SCRIPTS["all"][2])  # a plan is found
