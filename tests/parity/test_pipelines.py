"""A pipeline computes what one device computes that accumulates the gradients of its micro batches.

The grid is models x stages x micro batches x replicas x processes x schedules. `make test` runs cells of it in which
every pair of values meets; `make test-long` runs all of it.
"""

import itertools
from typing import Any, Dict, NamedTuple

import pytest

from tests.parity.oracle import Oracle, compare
from tests.parity.pairwise import pairwise
from tests.parity.pool import Answer
from tests.parity.scripts import pipelines
from tests.parity.scripts.pipeline_models import STATISTICS
from tests.tensorflows import KERNELS_SUM_ALIKE

SCHEDULES = ["PreferBackward", "PreferForward", "PreferBackwardOptimizer"]
# Processes that other tests start as well: the scripts use as many devices of each as their stages need.
TOPOLOGIES = {1: (1, 4), 2: (2, 2)}


class Cell(NamedTuple):
    name: str
    stages: int
    micro_batches: int
    replicas: int
    processes: int
    schedule: str


GRID = [
    Cell(*values)
    for values in itertools.product(
        ["mlp", "cnn", "lstm", "encoder"], [2, 3, 4], [1, 2, 4, 8], [1, 2], [1, 2], SCHEDULES
    )
]


# Norms of some steps lie above, those of others below: those of all rows, and those of the rows of a quarter.
CLIP, CLIP_OF_REPLICA = 0.5, 0.9

SELECTION = pairwise(GRID, lambda cell: cell.stages * cell.micro_batches * cell.replicas * cell.processes)
# A known batch that is cut for micro batches and replicas both, in a model whose loops count its rows.
SELECTION.append(Cell("lstm", 2, 2, 2, 1, SCHEDULES[0]))
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


def _reference(oracle: Oracle, name: str, micro_batches: int, replicas: int = 1, **arguments: Any) -> Answer:
    """One device that accumulates; `replicas` are those of all processes."""
    return oracle.plain(pipelines.accumulated, name=name, micro_batches=micro_batches, replicas=replicas, **arguments)


def _check(oracle: Oracle, processes: int, reference: Answer, script: Any = pipelines.train, **arguments: Any) -> Any:
    return oracle.check(TOPOLOGIES[processes], script, reference, own=[STATISTICS], **arguments)


def _cell_name(cell: Cell) -> str:
    return "{}-{}stages-{}micro-{}replicas-{}processes-{}".format(*cell)


def _check_cell(oracle: Oracle, cell: Cell) -> None:
    reference = _reference(oracle, cell.name, cell.micro_batches, cell.replicas * cell.processes)
    shape: Dict[str, Any] = {key: getattr(cell, key) for key in ("stages", "micro_batches", "replicas", "schedule")}
    _check(oracle, cell.processes, reference, name=cell.name, rows_known=cell.name == "lstm", **shape)


@pytest.mark.parametrize("cell", SELECTION, ids=_cell_name)
def test_equals_accumulation_on_one_device(oracle: Oracle, cell: Cell) -> None:
    _check_cell(oracle, cell)


@pytest.mark.long
@pytest.mark.parametrize("cell", [cell for cell in GRID if cell not in SELECTION], ids=_cell_name)
def test_equals_accumulation_on_one_device_in_every_cell(oracle: Oracle, cell: Cell) -> None:
    _check_cell(oracle, cell)


@pytest.mark.parametrize("name", ["mlp", pytest.param("lstm", marks=KERNELS_SUM_ALIKE), "encoder"])
def test_accumulation_equals_the_whole_batch(oracle: Oracle, name: str) -> None:
    """The oracle itself: without statistics, accumulated gradients are those of all rows at once."""
    compare(_reference(oracle, name, 1), [_reference(oracle, name, 4)])


def test_micro_batches_have_their_own_statistics(oracle: Oracle) -> None:
    """The oracle itself: it tells statistics of micro batches from those of larger ones."""
    with pytest.raises(AssertionError, match="moving_variance differs"):
        compare(_reference(oracle, "cnn", 2), [_reference(oracle, "cnn", 4)], own=[STATISTICS])


@pytest.mark.parametrize(
    "name,processes,replicas,micro_batches,schedule",
    [
        ("cnn", 1, 1, 4, "PreferBackward"),
        ("mlp", 1, 1, 1, "PreferBackward"),
        ("mlp", 1, 1, 4, "PreferForward"),
        ("mlp", 1, 1, 4, "PreferBackwardOptimizer"),
        ("mlp", 2, 2, 4, "PreferBackward"),
        *(
            pytest.param(*cell, marks=pytest.mark.long)
            for cell in [
                ("lstm", 1, 1, 4, "PreferBackward"),
                ("lstm", 1, 2, 2, "PreferForward"),
                ("lstm", 2, 1, 8, "PreferBackwardOptimizer"),
                ("encoder", 1, 1, 2, "PreferForward"),
                ("encoder", 1, 2, 4, "PreferBackwardOptimizer"),
                ("encoder", 2, 1, 8, "PreferBackward"),
                ("cnn", 1, 2, 8, "PreferForward"),
                ("cnn", 2, 2, 2, "PreferBackwardOptimizer"),
                ("mlp", 1, 1, 8, "PreferBackward"),
                ("mlp", 2, 1, 2, "PreferForward"),
            ]
        ),
    ],
)
def test_interleaved_stages(
    oracle: Oracle, name: str, processes: int, replicas: int, micro_batches: int, schedule: str
) -> None:
    reference = _reference(oracle, name, micro_batches, processes * replicas)
    shape = {"stages": 4, "interleaved": True, "micro_batches": micro_batches, "replicas": replicas}
    _check(oracle, processes, reference, name=name, schedule=schedule, rows_known=name == "lstm", **shape)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "encoder"])
@pytest.mark.parametrize("stages,replicas,micro_batches", [(2, 1, 4), (2, 2, 2), (3, 1, 8)])
def test_automatic_stages(oracle: Oracle, name: str, stages: int, replicas: int, micro_batches: int) -> None:
    """The encoder ties the logits of its last stage to the table of the first."""
    reference = _reference(oracle, name, micro_batches, replicas)
    shape = {"stages": stages, "micro_batches": micro_batches, "replicas": replicas, "rows_known": name == "lstm"}
    automatic = {"auto__auto_parallel": True, "pipeline__num_stages": stages}
    answers = _check(oracle, 1, reference, name=name, **automatic, **shape)
    assert len(answers[0].results["devices"][0]) == stages


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_resource_variables(oracle: Oracle, name: str) -> None:
    reference = _reference(oracle, name, 4, 2)
    _check(oracle, 1, reference, name=name, stages=2, micro_batches=4, replicas=2, resource=True)


def test_tied_resource_variable(oracle: Oracle) -> None:
    """The table belongs to the first stage and makes the logits of the last one."""
    _check(oracle, 1, _reference(oracle, "encoder", 2), name="encoder", stages=3, micro_batches=2, resource=True)


def test_a_default_strategy_per_stage(oracle: Oracle) -> None:
    reference = _reference(oracle, "mlp", 4)
    _check(oracle, 1, reference, name="mlp", stages=2, micro_batches=4, default_strategies=True)


@pytest.mark.grid
@pytest.mark.parametrize("processes,replicas", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("resource", [False, True])
def test_sparse_gradients_stay_sparse(oracle: Oracle, processes: int, replicas: int, resource: bool) -> None:
    """Momentum leaves rows alone that no sparse gradient names: a dense gradient would move them."""
    shape = {"name": "embedding", "stages": 2, "micro_batches": 4, "replicas": replicas, "resource": resource}
    _check(oracle, processes, oracle.plain(pipelines.train, **shape), **shape)


@each_schedule
def test_clipping_is_done_once_on_accumulated_gradients(oracle: Oracle, schedule: str) -> None:
    shape = {"name": "mlp", "clip": CLIP, "optimizer": "momentum"}
    reference = oracle.plain(pipelines.train, stages=3, **shape)
    answers = _check(oracle, 1, reference, stages=3, micro_batches=4, schedule=schedule, **shape)
    assert "clip_after_allreduce" not in answers[0].log


def test_each_replica_clips_its_own_gradients_by_default(oracle: Oracle) -> None:
    shape = {"name": "mlp", "micro_batches": 4, "clip": CLIP_OF_REPLICA, "optimizer": "momentum"}
    reference = oracle.plain(pipelines.accumulated, replicas=4, **shape)
    answers = _check(oracle, 2, reference, stages=2, replicas=2, **shape)
    assert "communication.clip_after_allreduce" in answers[0].log


def test_clipping_after_the_all_reduce_equals_one_device(oracle: Oracle) -> None:
    shape = {"name": "mlp", "stages": 2, "clip": CLIP, "optimizer": "momentum"}
    reference = oracle.plain(pipelines.train, **shape)
    _check(oracle, 2, reference, micro_batches=4, replicas=2, communication__clip_after_allreduce=True, **shape)


@pytest.mark.parametrize(
    "processes,replicas,schedule",
    [(1, 1, "PreferForward"), (1, 1, "PreferBackwardOptimizer"), (2, 2, "PreferBackward")],
)
def test_two_optimizers_in_turn(oracle: Oracle, processes: int, replicas: int, schedule: str) -> None:
    shape = {"micro_batches": 4, "replicas": replicas, "schedule": schedule}
    _check(oracle, processes, oracle.plain(pipelines.alternating), pipelines.alternating, **shape)


@pytest.mark.parametrize("processes,replicas", [(1, 1), (2, 2)])
def test_sum_instead_of_mean(oracle: Oracle, processes: int, replicas: int) -> None:
    reference = _reference(oracle, "mlp", 4, processes * replicas, optimizer="sgd", summed=True)
    shape = {"name": "mlp", "stages": 2, "micro_batches": 4, "replicas": replicas, "optimizer": "sgd"}
    _check(oracle, processes, reference, communication__gradients_reduce_method="sum", **shape)


@pytest.mark.parametrize("name,processes,replicas", [("cnn", 1, 1), ("mlp", 1, 2), ("mlp", 2, 1)])
def test_micro_batches_read_an_iterator_in_order(oracle: Oracle, name: str, processes: int, replicas: int) -> None:
    reference = _reference(oracle, name, 4, processes * replicas)
    shape = {"name": name, "stages": 3, "micro_batches": 4, "replicas": replicas}
    answers = _check(oracle, processes, reference, pipelines.read, **shape)
    assert all(len(answer.results["loss"]) == pipelines.STEPS for answer in answers)


@pytest.mark.parametrize("surplus,processes", [(1, 1), (3, 1), (3, 2)])
def test_data_that_ends_amid_the_micro_batches_changes_nothing(oracle: Oracle, surplus: int, processes: int) -> None:
    reference = _reference(oracle, "cnn", 4, processes)
    shape = {"name": "cnn", "stages": 2, "micro_batches": 4}
    answers = _check(oracle, processes, reference, pipelines.read, surplus=surplus, **shape)
    assert all(len(answer.results["loss"]) == pipelines.STEPS for answer in answers)
