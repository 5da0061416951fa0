"""Each op that has a rule for parts trains on parts, in processes and on devices, as it does on one device."""

from typing import List, Tuple

import pytest

from epl.parallel.sharding.rules import all as all_rules  # noqa: F401  (fills the registry)
from epl.parallel.sharding.rules.registry import RULES
from tests.parity.oracle import Oracle
from tests.parity.pool import Answer
from tests.parity.scripts import split_rules

# What one test runs; a graph of more takes too long.
TOGETHER = [
    ("broadcasting", "convolution"),
    ("lookup", "losses", "matmul", "reshape"),
    ("moving", "shapes"),
    ("reductions",),
]
together = pytest.mark.parametrize("groups", TOGETHER, ids="-".join)
QUICK = ("lookup", "losses", "matmul", "reshape")
every_group = pytest.mark.parametrize("group", sorted(split_rules.GROUPS))


def _no_op_is_whole(answers: List[Answer]) -> None:
    for answer in answers:
        assert [name for name, how in answer.results["taken"] if how == "full"] == []


def test_every_op_type_with_a_rule_has_a_case() -> None:
    assert set(RULES) - split_rules.op_types() == split_rules.RANDOM


@pytest.mark.parametrize(
    "groups",
    [pytest.param(one, marks=[] if one == QUICK else pytest.mark.long) for one in TOGETHER],
    ids="-".join,
)
def test_each_rule(oracle: Oracle, groups: Tuple[str, ...]) -> None:
    _no_op_is_whole(oracle.check((2, 1), split_rules.train, groups=groups, each_rule=True))


@pytest.mark.long
@together
@pytest.mark.parametrize("turn,topology", enumerate([(1, 2), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2)]))
def test_each_rule_everywhere(oracle: Oracle, topology: Tuple[int, int], turn: int, groups: Tuple[str, ...]) -> None:
    oracle.check(topology, split_rules.train, groups=groups, turn=turn, each_rule=True, every_variable=True)


@pytest.mark.long
@every_group
def test_every_choice_of_every_case(oracle: Oracle, group: str) -> None:
    possible, taken = set(), set()
    for turn in range(max(map(split_rules.number_of_choices, split_rules.cases_of([group])))):
        for answer in oracle.check((2, 1), split_rules.train, groups=[group], turn=turn, every_variable=True):
            possible.update((name, how) for name, hows in answer.results["possible"] for how in hows)
            taken.update(answer.results["taken"])
    assert possible - taken == set()
