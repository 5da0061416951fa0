"""The plan as a value: text form, hash, comparison."""

from hypothesis import given, settings
from hypothesis import strategies as st

from epl.parallel.plan import plan as plans
from epl.parallel.plan.plan import (
    BatchPart,
    GradientGroup,
    Offloaded,
    Output,
    Plan,
    Recomputed,
    Reduction,
    Stage,
    Transfer,
)

NAMES = st.text(min_size=1, max_size=8)
SHAPES = st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3).map(tuple)
REDUCTIONS = st.builds(Reduction, NAMES, st.sampled_from(["float32", "float16"]), SHAPES, st.booleans())
TRANSFERS = st.builds(Transfer, NAMES, NAMES, st.lists(st.integers(0, 9), max_size=3).map(tuple), st.booleans())
GROUPS = st.builds(
    GradientGroup,
    NAMES,
    st.integers(0, 3),
    st.booleans(),
    st.lists(REDUCTIONS, max_size=3).map(tuple),
    st.lists(TRANSFERS, max_size=3).map(tuple),
)
STAGES = st.builds(
    Stage, st.lists(st.integers(0, 9), max_size=2).map(tuple), NAMES, st.lists(NAMES, max_size=2).map(tuple)
)
OUTPUTS = st.builds(
    Output, NAMES, st.integers(0, 3), st.sampled_from(["global", "local"]), st.sampled_from(["concat", "mean"]), NAMES
)
RECOMPUTED = st.builds(
    Recomputed, NAMES, st.integers(0, 3), st.integers(0, 3), st.integers(1, 99), NAMES, NAMES, NAMES
)  # fmt: skip
OFFLOADED = st.builds(Offloaded, st.integers(0, 3), st.integers(0, 99), st.integers(0, 10**9))
PARTS = st.builds(BatchPart, st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
PLANS = st.builds(
    Plan, NAMES, st.integers(1, 9), st.sampled_from(["CPU", "GPU"]), st.lists(STAGES, max_size=2).map(tuple),
    st.lists(st.integers(0, 3), max_size=3).map(tuple), st.lists(PARTS, max_size=2).map(tuple),
    st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), max_size=2).map(tuple),
    st.lists(st.integers(1, 9), max_size=2).map(tuple), st.integers(1, 4), NAMES,
    st.sampled_from(["mean", "sum"]), st.none() | st.integers(1, 1024), NAMES, NAMES,
    st.integers(1, 9), st.lists(RECOMPUTED, max_size=2).map(tuple), st.lists(OFFLOADED, max_size=2).map(tuple),
    st.lists(GROUPS, max_size=2).map(tuple), st.lists(OUTPUTS, max_size=2).map(tuple),
)  # fmt: skip


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
        "graph1", 2, "CPU", (stage,), (0,), (BatchPart(0, 0, 1),), (), (3, 1), 1, "", "mean", None, "", "", 1,
        (), (), (group,), (output,),
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


def test_a_description_has_the_groups_of_updates_and_what_is_recomputed():
    text = plans.describe(example(apply_groups=3, recomputed=(Recomputed("loss:0", 1, 0, 7, "a", "b", "ff"),)))
    assert "updates in 3 groups" in text and "recomputed for loss:0: stage 1 segment 0: 7 ops, a to b" in text
    assert "group" not in plans.describe(example()) and "recomputed" not in plans.describe(example())


def test_other_ops_that_are_recomputed_are_a_difference():
    one = Recomputed("loss:0", 0, 0, 7, "a", "b", "ff")
    text = plans.first_difference(example(recomputed=(one,)), example(recomputed=(one._replace(digest="00"),)))
    assert text == "plan.recomputed[0].digest is 'ff' here and '00' there"
