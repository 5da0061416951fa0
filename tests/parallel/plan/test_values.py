"""NamedTuples as text and back: each section of the plan, and what the text of another value is refused for."""

from typing import NamedTuple, Optional, Tuple

import pytest
from hypothesis import given, settings

from epl.parallel.plan import values
from epl.parallel.plan.plan import Plan
from epl.parallel.plan.sections import AccumulationSection, GroupedApplySection, Section
from tests.parallel.plan.test_plan import example, instances


@pytest.mark.parametrize("kind", Section.__args__, ids=lambda kind: kind.__name__)
def test_each_section_round_trips(kind):
    @settings(max_examples=20, deadline=None)
    @given(instances(kind), instances(kind))
    def check(one, other):
        assert values.from_json(kind, values.to_json(one)) == one
        assert (values.first_difference("section", one, other) is None) == (one == other)

    check()


def test_a_section_is_written_with_its_kind():
    plan = example(features=(AccumulationSection(4), GroupedApplySection(4)))
    again = values.from_json(Plan, values.to_json(plan))
    assert [type(one) for one in again.features] == [AccumulationSection, GroupedApplySection]


def test_an_optional_value_is_that_of_its_class():
    class Inner(NamedTuple):
        pair: Tuple[int, str]

    class Outer(NamedTuple):
        inner: Optional[Inner]

    for value in (Outer(None), Outer(Inner((1, "a")))):
        assert values.from_json(Outer, values.to_json(value)) == value


@pytest.mark.parametrize(
    "old, new, text",
    [
        ("AccumulationSection", "Other", "Plan.features[0] is of the kind 'Other', not one of AccumulationSection, "),
        ('"steps"', '"step"', "Plan.features[0][AccumulationSection] needs the fields steps."),
        ("4", '"4"', "Plan.features[0][AccumulationSection].steps is '4', not an int."),
        ('"workers": 2', '"workers": null', "Plan.workers is None, not an int."),
        ('"owners": [\n  0\n ]', '"owners": 0', "Plan.owners is 0, not a list."),
    ],
)
def test_the_text_of_another_value_is_refused(old, new, text):
    written = values.to_json(example(features=(AccumulationSection(4),)))
    assert old in written
    with pytest.raises(ValueError) as error:
        values.from_json(Plan, written.replace(old, new))
    assert text in str(error.value)
