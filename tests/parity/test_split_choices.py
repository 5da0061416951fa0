"""Choices that are given by op train as one device does."""

from typing import Dict, Tuple

import pytest

from tests.parity.oracle import Oracle
from tests.parity.scripts import splits

PARTS_OF_PICTURES = {"*/Conv2D": "shard(1)", "*/Tanh": "shard(1)", "pool": "shard(1)"}


@pytest.mark.parametrize(
    "topology,choices,cut",
    [
        ((1, 2), {"wide/MatMul": "partial", "narrow/MatMul": "shard(1)"}, {"wide/kernel": 0, "narrow/kernel": 1}),
        pytest.param(
            (2, 1), {"wide/MatMul": "partial", "narrow/*": "full"}, {"wide/kernel": 0}, marks=pytest.mark.long
        ),
        pytest.param(
            (1, 3),
            {"*/MatMul": "shard(1)", "wide/Tanh": "full"},
            {"wide/kernel": 1, "narrow/kernel": 1},
            marks=pytest.mark.long,
        ),
    ],
    ids=str,
)
def test_a_model(oracle: Oracle, topology: Tuple[int, int], choices: Dict[str, str], cut: Dict[str, int]) -> None:
    answers = oracle.check(topology, splits.train, name="loss_outside", optimizer="momentum", choices=choices)
    reference = oracle.plain(splits.train, name="loss_outside", optimizer="momentum").results["variables"][0]
    for answer in answers:
        for _, parts in answer.results["parts"]:
            for name, dim in cut.items():
                (part,) = [value[0] for key, value in parts.items() if key.endswith(name)]
                smaller = [at for at, size in enumerate(part.shape) if size < reference[name].shape[at]]
                assert smaller == [dim]


@pytest.mark.parametrize("topology,groups", [((1, 2), 1), ((2, 1), 1), ((2, 2), 2), ((2, 2), 1)], ids=str)
def test_parts_of_pictures(oracle: Oracle, topology: Tuple[int, int], groups: int) -> None:
    answers = oracle.check(
        topology, splits.train, name="pictures", optimizer="momentum", groups=groups, choices=PARTS_OF_PICTURES
    )
    assert all(len(answer.results["parts"]) == topology[1] for answer in answers)


@pytest.mark.long
@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("key,value", [("gradient_checkpoint__type", "auto"), ("optimizer__num_apply_group", 2)])
def test_parts_of_pictures_with_other_settings(
    oracle: Oracle, topology: Tuple[int, int], key: str, value: object
) -> None:
    oracle.check(
        topology, splits.train, name="pictures", optimizer="momentum", choices=PARTS_OF_PICTURES, **{key: value}
    )
