"""The plan as a value: text form, hash, comparison."""

import functools
from typing import Union, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from epl.parallel.plan import plan as plans
from epl.parallel.plan.plan import BatchPart, GradientGroup, Output, Plan, Reduction, Stage, Transfer
from epl.parallel.plan.sections import (
    AccumulationSection,
    AmpSection,
    GroupedApplySection,
    OpChoice,
    Recomputed,
    RecomputeSection,
    ShardedVariable,
    SplitRatios,
    SplitSection,
    ZeroSection,
)

SCALARS = {
    int: st.integers(0, 9),
    float: st.sampled_from([0.0, 0.5]),
    str: st.sampled_from("abc"),
    bool: st.booleans(),
    type(None): st.none(),
}


@functools.lru_cache(maxsize=None)
def instances(annotation):
    """Small values of an annotation of the plan. (`st.from_type` makes large ones, and takes minutes for a plan.)"""
    if annotation in SCALARS:
        return SCALARS[annotation]
    if hasattr(annotation, "_fields"):
        return st.builds(annotation, *[instances(hint) for hint in get_type_hints(annotation).values()])
    if annotation.__origin__ is Union:
        return st.one_of(*[instances(one) for one in annotation.__args__])
    return st.lists(instances(annotation.__args__[0]), max_size=2).map(tuple)


PLANS = instances(Plan)


def example(**changes):
    """A plan with one gradient and one output."""
    group = GradientGroup(
        "apply0",
        0,
        False,
        (Reduction("w", "float32", (3, None), False),),
        (Transfer("g/apply0/0", "apply0/gradients0", (0,), False),),
    )
    output = Output("loss:0", 0, "local", "mean", "")
    stage = Stage((0,), "epl.replicate(1)", ("/job:worker/replica:0/task:0/device:CPU:0",))
    plan = Plan(
        "graph1", 2, "CPU", (stage,), (0,), (), (), (BatchPart(0, 0, 1),), 1, "", "mean", None, (), (group,), (output,)
    )  # fmt: skip
    return plan._replace(**changes)


@settings(max_examples=60, deadline=None)
@given(PLANS)
def test_text_form_round_trips(plan):
    again = plans.from_json(plans.to_json(plan))
    assert again == plan and plans.plan_hash(again) == plans.plan_hash(plan)


@settings(max_examples=60, deadline=None)
@given(PLANS, PLANS)
def test_hash_and_difference_agree_with_equality(one, other):
    assert (plans.plan_hash(one) == plans.plan_hash(other)) == (one == other)
    assert (plans.first_difference(one, other) is None) == (one == other)


def test_the_difference_names_the_place_and_both_values():
    text = plans.first_difference(example(), example(reduce_method="sum"))
    assert text == "plan.reduce_method is 'mean' here and 'sum' there"


def test_a_different_shape_is_told_with_its_variable():
    group = example().groups[0]
    other = group._replace(reductions=(group.reductions[0]._replace(shape=(4, None)),))
    text = plans.first_difference(example(), example(groups=(other,)))
    assert text == "the gradient of variable 'w' is float32 [3, None] here and float32 [4, None] there"


def test_a_different_variable_is_told_before_its_shape():
    group = example().groups[0]
    other = group._replace(reductions=(Reduction("v", "float16", (1,), True),))
    assert plans.first_difference(example(), example(groups=(other,))) == "variable 'v' is trained there alone"
    assert plans.first_difference(example(groups=(other,)), example()) == "variable 'v' is trained here alone"


def test_a_missing_gradient_is_told_with_the_numbers():
    group = example().groups[0]
    more = group._replace(reductions=group.reductions * 2)
    text = plans.first_difference(example(), example(groups=(more,)))
    assert text == "plan.groups[0].reductions has 1 entries here and 2 there"


def test_a_description_has_the_devices_and_the_gradients():
    text = plans.describe(example(fp16_scale=128))
    for words in (
        "2 worker(s) = 1 replica(s) of 1 stage(s) on CPU",
        "float16 x 128",
        "1 gradients",
        "loss:0: local mean",
    ):
        assert words in text
    assert plans.world_size(example()) == 1


RECOMPUTED = Recomputed("loss:0", 1, 0, 7, "a", "b", "ff")


def test_a_description_has_the_groups_of_updates_and_what_is_recomputed():
    text = plans.describe(example(features=(RecomputeSection((), (RECOMPUTED,)), GroupedApplySection(3))))
    assert "updates in 3 groups" in text and "recomputed for loss:0: stage 1 segment 0: 7 ops, a to b" in text
    assert "group" not in plans.describe(example()) and "recomputed" not in plans.describe(example())


def test_a_description_has_the_choices_of_a_split_by_layout():
    ops = tuple(OpChoice(f"dense{at}/MatMul", ("full", "shard(1: 4+4)"), ("shard(1: 4+4)",)) for at in range(5))
    ratios = (SplitRatios(1, (3, 1)), SplitRatios(2, (3, 1)))
    split = SplitSection(((0, 1), (2, 3)), ratios, (*ops, OpChoice("add", ("shard(0)",), ("partial",))), ())
    assert plans.describe(example(features=(split,))).splitlines()[1:4] == [
        "  split over 2 devices in 2 group(s), 3:1: ranks 0, 1 | 2, 3",
        "    full, shard(1) -> shard(1): dense0/MatMul, dense1/MatMul, dense2/MatMul and 2 more",
        "    shard(0) -> partial: add",
    ]


def test_a_description_has_the_ratios_by_taskgraph_if_they_differ():
    split = SplitSection(((0, 1),), (SplitRatios(1, (1, 0)), SplitRatios(2, ())), (), ())
    first = plans.describe(example(features=(split,))).splitlines()[1]
    assert first == "  split over 2 devices in 1 group(s), 1:0 in TaskGraph 1, equal in TaskGraph 2: ranks 0, 1"


def test_a_description_has_the_bytes_of_each_rank_if_some_have_no_shards():
    variables = (ShardedVariable("w", 3000, 0, (3, 0)), ShardedVariable("b", 500, -1, ()))
    split = SplitSection(((0, 1),), (SplitRatios(1, (1, 0), "epl.split(2)"),), (), variables)
    assert plans.describe(example(features=(split,))).splitlines()[2:4] == [
        "    TaskGraph 1, 1:0: epl.split(2)",
        "    variables on the ranks of a group: 0.004 MB, 0.001 MB",
    ]


def test_a_description_has_what_a_rank_holds_at_most():
    variables = (ShardedVariable("w", 3000, 0, (2, 1)), ShardedVariable("b", 500, -1, ()))
    text = plans.describe(example(features=(ZeroSection("v1", 1, variables), AmpSection("float16", "4.0", 7, "ff"))))
    assert "ZeRO v1: 1 of 2 trained variables in parts, 0.003 of 0.004 MB on a rank, and as much of each slot" in text
    assert "mixed precision: float16, loss scale 4.0, 7 ops" in text


def test_a_section_is_found_by_its_class():
    plan = example(features=(AccumulationSection(4),))
    assert plans.section(plan, AccumulationSection).steps == 4 and plans.section(plan, ZeroSection) is None


def test_other_ops_that_are_recomputed_are_a_difference():
    mine, other = (RecomputeSection((), (RECOMPUTED._replace(digest=digest),)) for digest in ("ff", "00"))
    text = plans.first_difference(example(features=(mine,)), example(features=(other,)))
    assert text == "plan.features[RecomputeSection].segments[0].digest is 'ff' here and '00' there"


def test_a_variable_that_lies_otherwise_is_told_by_its_name():
    mine, other = (ZeroSection("v1", 1, (ShardedVariable("w", 12, dim, (2, 1)),)) for dim in (0, 1))
    text = plans.first_difference(example(features=(mine,)), example(features=(other,)))
    assert text == "plan.features[ZeroSection].variables[w].dim is 0 here and 1 there"
