"""Candidates of a search, and the choice between them."""

import json
import re

import pytest

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Block, ForwardOp, Setting, Strategy
from epl.planner.search.candidates import candidates
from epl.planner.search.comparison import PlanOutcome, best, compare, describe, in_order
from epl.planner.search.training_batches import TrainingBatches, refuse_other_batches
from epl.utils.errors import PlanError

OPS = tuple(ForwardOp(f"layer{i}/MatMul", "MatMul", (str(i - 1),) if i else (), ("float32[?,4]",), 0) for i in range(8))


DATA_PARALLEL = Block("replicate", 1, 0, (), ())


def base(workers=1, devices=4, blocks=(DATA_PARALLEL,), origin=strategies.SCOPES, **settings):
    values = {
        "pipeline.num_micro_batch": 1, "pipeline.strategy": "PreferBackward", "gradient_checkpoint.type": "",
        "gradient_checkpoint.end_taskgraph": -1, "zero.level": "", "offload.level": "", "optimizer.num_apply_group": 1,
        "auto.balance": "even",
    }  # fmt: skip
    made = []
    for key, value in values.items():
        name = key.replace(".", "_")
        made.append(Setting(key, json.dumps(settings.get(name, value)), "code" if name in settings else "default"))
    return Strategy(strategies.fingerprint(OPS), workers, devices, "CPU", origin, tuple(blocks), (), tuple(made), OPS)


def stages_of(count):
    return [at * count // len(OPS) for at in range(len(OPS))] if count <= len(OPS) else None


def values(strategy):
    return {one.key: json.loads(one.value) for one in strategy.settings}


def test_data_parallel_and_pipelines_of_every_depth_are_there():
    found = candidates(base(), 64, stages_of)
    assert found[0].name == "the script as it is" and found[0].strategy == base()
    assert {len(one.strategy.blocks) for one in found} == {1, 2, 4}
    assert {values(one.strategy)["zero.level"] for one in found if len(one.strategy.blocks) == 1} == {
        "",
        "v0",
        "v1",
        "v2",
    }
    assert "2 stages, 4 micro batches, ZeRO v1, gradient checkpoint" in [one.name for one in found]
    assert len({one.strategy for one in found}) == len(found)
    for one in found[1:]:
        strategies.from_json(strategies.to_json(one.strategy))
        stages = len(one.strategy.blocks)
        assert 64 % (values(one.strategy)["pipeline.num_micro_batch"] * 4 // stages) == 0


def test_what_the_user_has_set_stays():
    found = candidates(base(zero_level="v1", pipeline_num_micro_batch=4), 64, stages_of)
    for one in found:
        assert values(one.strategy)["zero.level"] == "v1"
        assert values(one.strategy)["pipeline.num_micro_batch"] == 4
    assert {len(one.strategy.blocks) for one in found} == {1, 2, 4}


@pytest.mark.parametrize("settings", [{}, {"pipeline_num_micro_batch": 3}])
@pytest.mark.parametrize("blocks", [(DATA_PARALLEL,), (DATA_PARALLEL, DATA_PARALLEL)])
def test_pipelines_may_have_the_micro_batches_of_the_script(blocks, settings):
    """A script that reads its own batches may have no others, nor one that sets a number that 2 does not divide."""
    found = candidates(base(blocks=blocks, **settings), 24, stages_of)
    saving = [
        (values(one.strategy)["zero.level"], values(one.strategy)["gradient_checkpoint.type"])
        for one in found
        if len(one.strategy.blocks) == 2
        and values(one.strategy)["pipeline.num_micro_batch"] == settings.get("pipeline_num_micro_batch", 1)
    ]
    assert sorted(saving) == [("", ""), ("", "auto"), ("v0", ""), ("v0", "auto"), ("v1", ""), ("v1", "auto")]


def test_scopes_of_the_user_stay():
    scoped = base(blocks=(Block("replicate", 1, 0, (), ()), Block("split", 0, 0, (), ())))
    assert {one.strategy.blocks for one in candidates(scoped, 64, stages_of)} == {scoped.blocks}


def test_every_replica_gets_rows_for_each_micro_batch():
    for one in candidates(base(), 6, stages_of)[1:]:
        assert len(one.strategy.blocks) > 1 and 6 % values(one.strategy)["pipeline.num_micro_batch"] == 0


def seconds_by_stages(times, lacks=()):
    def simulate(strategy):
        count = len(strategy.blocks)
        if count not in times:
            raise PlanError(f"{count} blocks cannot be simulated.")
        return PlanOutcome(times[count], tuple(("gpu", 2e9) for one in lacks if one == count))

    return simulate


def test_the_fastest_that_fits_is_taken_and_the_simplest_of_equals():
    found = candidates(base(), 64, stages_of)
    compared = compare(found, seconds_by_stages({1: 2.0, 2: 1.0, 4: 0.5}, lacks=[4]))
    chosen = best(compared)
    assert len(chosen.candidate.strategy.blocks) == 2
    assert chosen is next(one for one in compared if len(one.candidate.strategy.blocks) == 2)
    assert best(compare(found, seconds_by_stages({1: 1.005, 2: 1.0, 4: 1.0}))).candidate.name == "the script as it is"
    lines = describe(compared, chosen)
    assert lines[0] == "* 2 stages: 1 s" and lines[-1].startswith("  and ")


def test_a_candidate_that_is_refused_does_not_end_the_comparison():
    compared = compare(candidates(base(), 64, stages_of), seconds_by_stages({2: 1.0}))
    assert len(best(compared).candidate.strategy.blocks) == 2
    assert "  the script as it is: 1 blocks cannot be simulated." in describe(compared[:2], None)
    assert re.search("[1-9][0-9]* not simulated$", describe(compared, None)[-1])


def test_candidates_with_other_batches_come_last_and_are_counted_apart():
    found = candidates(base(), 64, stages_of)

    def simulate(strategy):
        if len(strategy.blocks) == 1:
            refuse_other_batches(TrainingBatches((4,), 1, 1), TrainingBatches((2,), 1, 1), are_cut=False)
        return seconds_by_stages({2: 1.0})(strategy)

    compared = compare(found, simulate)
    others = [one for one in compared if one.has_other_batches]
    assert others == [one for one in compared if len(one.candidate.strategy.blocks) == 1]
    assert in_order(compared)[-len(others) :] == others
    assert describe(compared, None)[-1].endswith(f" not simulated, {len(others)} with other batches than the script")


def test_nothing_fits():
    found = candidates(base(), 64, stages_of)
    with pytest.raises(
        PlanError,
        match=r"None of the \d+ candidates fits .*: [1-9]+ without enough memory, .* lacks least is .*; gpu lacks 2 GB",
    ):
        best(compare(found, seconds_by_stages({1: 1.0}, lacks=[1])))
    with pytest.raises(PlanError, match="can be simulated. The first of them, the script as it is: 1 blocks"):
        best(compare(found, seconds_by_stages({})))
