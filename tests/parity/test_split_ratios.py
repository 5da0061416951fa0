"""Parts in given ratios: what is cut unevenly trains as if it were whole."""

from typing import Any, List, Sequence, Tuple

import numpy as np
import pytest

from tests.parity.checks import CONTINUED, check_evaluation, continue_from_each_other, of_worker_0
from tests.parity.oracle import Oracle, compare, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import split_rules, splits
from tests.parity.test_split import ACCUMULATED
from tests.parity.test_split_rules import together


def _name(value: Any) -> str:
    return topology_name(value) if isinstance(value, tuple) else ":".join(map(str, value))


def _rows(*rows: Any) -> List[Any]:
    """The first set of arguments; the others in long runs."""
    return list(rows[:1]) + [pytest.param(*row, marks=pytest.mark.long) for row in rows[1:]]


def sizes_of_parts(answers: List[Answer], name: str, dim: int) -> List[int]:
    """How large dimension `dim` of the parts of a variable is, by device."""
    parts = [(part, values) for answer in answers for part, values in answer.results["parts"]]
    found = [
        (part, value.shape[1 + dim] if value.size else 0)  # an empty part may be cut along another dimension
        for part, values in parts
        for key, value in values.items()
        if key.endswith(name)
    ]
    return [size for _, size in sorted(found)]


@pytest.mark.parametrize(
    "topology,ratios,columns",
    [
        ((1, 2), [3, 1], [752, 251]),
        ((2, 1), [1, 3], [251, 752]),
        ((1, 3), [0.5, 0.1, 0.4], [502, 100, 401]),
        ((1, 2), [1, 0], [1003, 0]),
        ((2, 1), [0, 1], [0, 1003]),
        ((1, 3), [0, 2, 1], [0, 669, 334]),
        pytest.param((2, 1), [1, 0], [1003, 0], marks=pytest.mark.long),
        pytest.param((1, 2), [0, 1], [0, 1003], marks=pytest.mark.long),
        pytest.param((2, 2), [1, 0, 0, 1], [502, 0, 0, 501], marks=pytest.mark.long),
        pytest.param((4, 1), [2, 4, 1, 3], [201, 401, 100, 301], marks=pytest.mark.long),
        pytest.param((2, 2), [4, 1, 2, 3], [401, 100, 201, 301], marks=pytest.mark.long),
    ],
    ids=_name,
)
def test_a_softmax_head(oracle: Oracle, topology: Tuple[int, int], ratios: Sequence[float], columns: List[int]) -> None:
    answers = oracle.check(topology, splits.train, name="head", optimizer="adam", ratios=ratios)
    for name in ("head/kernel", "head/kernel/Adam"):
        assert sizes_of_parts(answers, name, 1) == columns


@pytest.mark.parametrize(
    "topology,ratios",
    _rows(
        ((2, 1), [3, 1]), ((1, 2), [1, 3]), ((1, 4), [5, 1, 2, 2]), ((1, 2), [0, 1]), ((2, 1), [1, 0]),
        ((1, 3), [2, 0, 1]),
    ),
    ids=_name,
)  # fmt: skip
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("everything", "seven_experts") else pytest.param(name, marks=pytest.mark.long)
        for name in sorted(set(splits.MODELS) - {"blocks"})
    ],
)
def test_models(oracle: Oracle, topology: Tuple[int, int], ratios: Sequence[float], name: str) -> None:
    """Columns then rows of two layers, tables of words, experts, heads of attention."""
    answers = oracle.check(topology, splits.train, name=name, optimizer="momentum", ratios=ratios)
    if name == "seven_experts" and len(ratios) == 2:
        assert sorted(sizes_of_parts(answers, "first", 0)) == ([0, 7] if 0 in ratios else [2, 5])
    if name == "everything" and len(ratios) == 2:
        assert sorted(sizes_of_parts(answers, "first/kernel", 1)) == ([0, 512] if 0 in ratios else [128, 384])


@pytest.mark.parametrize(
    "topology,ratios",
    _rows(
        ((1, 2), [[1, 0], [], [0, 1]]), ((2, 1), [[0, 1], [3, 1], [1, 0]]), ((1, 3), [[2, 0, 1], [0, 1, 0], []]),
        ((2, 1), [[1, 0], [], [0, 1]]),
    ),
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["three_scopes", pytest.param("regularised", marks=pytest.mark.long)])
def test_each_scope_has_its_own(
    oracle: Oracle, topology: Tuple[int, int], ratios: Sequence[Sequence[float]], name: str
) -> None:
    answers = oracle.check(topology, splits.train, name=name, optimizer="momentum", ratios=ratios)
    if topology == (1, 2) and name == "three_scopes":
        assert sizes_of_parts(answers, "table", 0)[1] == 0 or sizes_of_parts(answers, "table", 1)[1] == 0
        assert sorted(sizes_of_parts(answers, "first/kernel", 1)) == [256, 256]
        assert sizes_of_parts(answers, "head/kernel", 1) == [0, splits.WIDE]


# Where a device holds nothing, next to the other features of training.
@pytest.mark.parametrize(
    "topology,name,config",
    _rows(
        ((1, 2), "two_tables", {"clip": 0.1}),
        ((1, 2), "blocks", {"gradient_checkpoint__type": "auto", "dtype": "float64", "tolerance": 1e-12}),
        ((2, 1), "blocks", {"gradient_checkpoint__type": "auto", "dtype": "float64", "tolerance": 1e-12}),
        ((2, 1), "head", {"optimizer__num_apply_group": 2}),
        ((1, 2), "head", {"averages": True}),
        ((2, 1), "resource_head", {"clip": 0.1}),
        # Adam divides rounding by rounding here, whatever the ratios are: float64 leaves none to see.
        ((1, 2), "everything", {"communication__sparse_as_dense": True, "dtype": "float64", "tolerance": 1e-12}),
        ((1, 4), "head", {"groups": 2}),
        ((2, 2), "two_tables", {"groups": 2}),
    ),
    ids=str,
)
@pytest.mark.parametrize("first", [1, pytest.param(0, marks=pytest.mark.long)])
@pytest.mark.parametrize("optimizer", ["momentum", pytest.param("adam", marks=pytest.mark.long)])
def test_a_device_without_parts(
    oracle: Oracle, topology: Tuple[int, int], name: str, config: Any, first: int, optimizer: str
) -> None:
    oracle.check(topology, splits.train, name=name, optimizer=optimizer, ratios=[first, 1 - first], **config)


@pytest.mark.parametrize(
    "topology,name,ratios",
    _rows(((1, 2), "head", [0, 1]), ((2, 1), "two_tables", [1, 0]), ((1, 2), "everything", [1, 0])),
    ids=str,
)
def test_accumulation(oracle: Oracle, topology: Tuple[int, int], name: str, ratios: Sequence[float]) -> None:
    oracle.check(topology, splits.accumulated, tolerance=ACCUMULATED, name=name, steps=2, ratios=ratios)


@pytest.mark.parametrize(
    "name,optimizer",
    _rows(
        ("head", "adagrad"),
        *[
            (name, optimizer)
            for name in ("two_tables", "resource_head")
            for optimizer in ("adagrad", "adam_with_decay", "ftrl", "layerwise", "rmsprop", "sgd")
            if (name, optimizer) != ("resource_head", "layerwise")
        ],
    ),
)
def test_optimizers_whose_first_device_has_nothing(oracle: Oracle, name: str, optimizer: str) -> None:
    """Slots that begin with a number have it on the device that has all of them."""
    oracle.check((1, 2), splits.train, name=name, optimizer=optimizer, ratios=[0, 1])


@pytest.mark.long
@pytest.mark.parametrize("topology,ratios", [((2, 1), [3, 1]), ((1, 2), [1, 3]), ((1, 4), [5, 1, 2, 2])], ids=_name)
def test_bias_whose_gradient_nearly_cancels(oracle: Oracle, topology: Tuple[int, int], ratios: Sequence[float]) -> None:
    """In float32 it is off by 1.6e-6, in float64 by nothing: by rounding alone."""
    oracle.check(
        topology, splits.train, name="blocks", optimizer="momentum", ratios=ratios, dtype="float64", tolerance=1e-12
    )


@pytest.mark.long
@pytest.mark.parametrize("name,optimizer,clip", [("small_table", "momentum", 0.1), ("head", "layerwise", 0.0)])
def test_norms_are_those_of_the_whole(oracle: Oracle, name: str, optimizer: str, clip: float) -> None:
    arguments = {"name": name, "optimizer": optimizer, "clip": clip}
    answers = oracle.check((1, 2), splits.train, ratios=[3, 1], **arguments)
    norms = oracle.plain(splits.train, **arguments).results["norm"]
    np.testing.assert_allclose(answers[0].results["norm"], norms, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("topology", [(2, 2), (1, 4)], ids=topology_name)
@pytest.mark.parametrize("name", ["head", "small_table"])
def test_each_group_is_cut_in_the_same_ratios(oracle: Oracle, topology: Tuple[int, int], name: str) -> None:
    oracle.check(topology, splits.train, name=name, optimizer="momentum", groups=2, ratios=[1, 3])


@pytest.mark.parametrize(
    "topology,ratios", _rows(((1, 2), [0, 1]), ((2, 1), [1, 0]), ((1, 3), [2, 0, 1]), ((1, 2), [3, 1])), ids=_name
)
def test_evaluation(oracle: Oracle, topology: Tuple[int, int], ratios: Sequence[float]) -> None:
    check_evaluation(oracle, topology, ratios=ratios)


@pytest.mark.parametrize(
    "topology,ratios,others",
    _rows(((1, 2), [1, 0], [1, 2]), ((2, 1), [0, 1], [1, 1]), ((1, 2), [3, 1], [0, 1]), ((2, 1), [1, 2], [1, 0])),
    ids=_name,
)
def test_checkpoints_are_those_of_one_device(
    oracle: Oracle, topology: Tuple[int, int], ratios: Sequence[float], others: Sequence[float]
) -> None:
    """One device and other ratios continue from what was written with the ratios; slots included."""
    path, further = continue_from_each_other(oracle, topology, splits.saved, {"ratios": ratios})
    compare(further, of_worker_0(oracle.plan(topology, splits.saved, path=path, ratios=others)), CONTINUED)


@pytest.mark.long
@together
@pytest.mark.parametrize(
    "topology,ratios", [((2, 1), [3, 1]), ((1, 3), [1, 4, 2]), ((2, 1), [0, 1]), ((1, 3), [2, 0, 1])], ids=_name
)
def test_each_rule(oracle: Oracle, topology: Tuple[int, int], ratios: Sequence[float], groups: Tuple[str, ...]) -> None:
    oracle.check(topology, split_rules.train, groups=groups, each_rule=True, every_variable=True, ratios=ratios)
