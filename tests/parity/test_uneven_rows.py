"""Replicas with uneven rows (`auto.balance`) train as one device does on all rows of a step."""

from typing import Any, Dict, NamedTuple, Tuple

import pytest

from tests.parity.oracle import Oracle, compare, topology_name
from tests.parity.scripts import uneven


class Job(NamedTuple):
    topology: Tuple[int, ...]
    shares: Tuple[int, ...]
    rows: int  # of a step; even batches divide it

    @property
    def step(self) -> Dict[str, Any]:
        return {"shares": self.shares, "rows": self.rows}


def _each(*jobs: Any) -> Any:
    marked = [(job.values[0], job.marks) if hasattr(job, "values") else (job, ()) for job in jobs]
    return pytest.mark.parametrize(
        "job", [pytest.param(job, marks=marks, id=topology_name(job.topology)) for job, marks in marked]
    )


LOCAL = Job((1, 3), (5, 3, 1), 18)
TOGETHER = Job((1, 3, 3), (5, 3, 1), 18)
APART = Job((2, 1), (3, 1), 18)
BOTH = Job((2, 2), (5, 3, 1, 1), 20)
long = pytest.mark.long
every_job = _each(LOCAL, APART, pytest.param(BOTH, marks=long))
some_jobs = _each(LOCAL, pytest.param(APART, marks=long))


@pytest.mark.grid
@_each(LOCAL, APART, BOTH, TOGETHER)
@pytest.mark.parametrize("name", ["layers", "embedding"])
def test_datasets(oracle: Oracle, job: Job, name: str) -> None:
    """96 rows in steps of 18 end with one of 6, in steps of 20 with one of 16."""
    oracle.check(job.topology, uneven.read, name=name, **job.step)


@every_job
@pytest.mark.parametrize("kind", ["initializable", "queue", "local_rows"])
def test_how_rows_are_read(oracle: Oracle, job: Job, kind: str) -> None:
    oracle.check(job.topology, uneven.read, name="plain_variables", kind=kind, **job.step)


def test_rows_that_each_worker_builds_into_its_graph(oracle: Oracle) -> None:
    arguments = {"name": "layers", "kind": "known_rows", **APART.step}
    config = {"communication__allow_different_graphs": True}
    oracle.check(APART.topology, uneven.read, oracle.plain(uneven.read, **arguments), **arguments, **config)


@every_job
@pytest.mark.parametrize("name", ["layers", "resource_embedding"])
def test_feeds(oracle: Oracle, job: Job, name: str) -> None:
    """Steps of 17 rows end with one of 11."""
    oracle.check(job.topology, uneven.fed, name=name, shares=job.shares, rows=17)


@some_jobs
def test_replicas_of_one_row(oracle: Oracle, job: Job) -> None:
    oracle.check(job.topology, uneven.fed, name="layers", shares=job.shares, rows=sum(job.shares), optimizer="sgd")


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize(
    "topology,counts,shares,name",
    [
        ((2, 1, 2), (2, 1), (3, 1), "layers"),
        pytest.param((2, 2, 4), (4, 2), (4, 3, 2, 1), "tables", marks=long),
        pytest.param((2, 2, 2), (2, 1, 2), (4, 3, 2, 1), "around", marks=long),
    ],
)
def test_scopes_with_different_numbers(
    oracle: Oracle, topology: Any, counts: Any, shares: Any, name: str, is_read: bool
) -> None:
    answers = oracle.plan(topology, uneven.scopes, name=name, counts=counts, shares=shares, rows=20, is_read=is_read)
    compare(oracle.plain(uneven.scopes, name=name, counts=counts, shares=shares, rows=20, is_read=is_read), answers)


def test_a_sparse_tensor_that_is_fed(oracle: Oracle) -> None:
    oracle.check(LOCAL.topology, uneven.fed_sparse, shares=LOCAL.shares, rows=16)


@pytest.mark.parametrize("name", ["scaled", "embedding"])
def test_a_worker_is_fed_no_rows(oracle: Oracle, name: str) -> None:
    oracle.check(APART.topology, uneven.fed, name=name, tail="empty", **APART.step)


@long
@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
def test_a_worker_is_fed_no_rows_with_zero(oracle: Oracle, level: str) -> None:
    arguments = {"name": "scaled", "tail": "empty", **BOTH.step}
    oracle.check(BOTH.topology, uneven.fed, oracle.plain(uneven.fed, **arguments), **arguments, zero__level=level)


@_each(APART, pytest.param(BOTH, marks=long))
def test_a_worker_reads_no_rows(oracle: Oracle, job: Job) -> None:
    oracle.check(job.topology, uneven.empty_batches, name="scaled", **job.step)


CONFIGS = {
    "checkpoint": {"gradient_checkpoint__type": "auto"},
    "offload": {"offload__level": "v0"},
    "zero_v0": {"zero__level": "v0"},
    "zero_v1": {"zero__level": "v1"},
    "zero_v2": {"zero__level": "v2"},
    "groups": {"optimizer__num_apply_group": 3},
    "one_bucket": {"communication__max_splits": 1, "communication__num_communicators": 1},
    "sparse_as_dense": {"communication__sparse_as_dense": True},
}


@some_jobs
@pytest.mark.parametrize("config", [pytest.param(value, id=name) for name, value in CONFIGS.items()])
def test_with(oracle: Oracle, job: Job, config: Any) -> None:
    arguments = {"name": "embedding", "optimizer": "adam", **job.step}
    oracle.check(job.topology, uneven.read, oracle.plain(uneven.read, **arguments), **arguments, **config)


@some_jobs
def test_clipped_after_the_all_reduce(oracle: Oracle, job: Job) -> None:
    arguments = {"name": "embedding", "clip": 0.1, **job.step}
    config = {"communication__clip_after_allreduce": True}
    oracle.check(job.topology, uneven.read, oracle.plain(uneven.read, **arguments), **arguments, **config)


@some_jobs
def test_sum(oracle: Oracle, job: Job) -> None:
    """Sums have no weights: the loss of each replica is the sum over its rows."""
    arguments = {"name": "embedding", **job.step, "total": True}
    config = {"communication__gradients_reduce_method": "sum"}
    reference = oracle.plain(uneven.fed, **arguments)
    oracle.check(job.topology, uneven.fed, reference, **arguments, **config)


@some_jobs
@pytest.mark.parametrize("change", ["", "clipped"])
def test_accumulation(oracle: Oracle, job: Job, change: str) -> None:
    arguments = {"name": "embedding", "steps": 2, "change": change, **job.step}
    config = {"communication__clip_after_allreduce": True} if change else {}
    reference = oracle.plain(uneven.accumulate, **arguments)
    oracle.check(job.topology, uneven.accumulate, reference, 5e-6, **arguments, **config)


@pytest.mark.parametrize("read_rows", [False, True])
def test_pipelines(oracle: Oracle, read_rows: bool) -> None:
    arguments = {**LOCAL.step, "micro_batches": 2, "read_rows": read_rows}
    oracle.check((1, 6), uneven.pipeline, oracle.plain(uneven.pipeline, **arguments), **arguments)


def test_mixed_precision(oracle: Oracle) -> None:
    """Rounding depends on how rows are divided."""
    config = {"amp__level": "O1", "amp__loss_scale": 128}
    arguments = dict(name="layers", rows=18, **config)
    expected = oracle.plan((1, 3), uneven.fed, shares=(1, 1, 1), **arguments)
    compare(expected[0], oracle.plan((1, 3), uneven.fed, shares=(5, 3, 1), **arguments), tolerance=5e-3)


@pytest.mark.parametrize("groups", [1, 2])
def test_splits(oracle: Oracle, groups: int) -> None:
    oracle.check((1, 4), uneven.split, shares=(5, 3, 1, 1), rows=16, groups=groups)


@pytest.mark.parametrize(
    "kind, text", [("shard", "call Dataset.shard before Dataset.batch"), ("generator", "local_rows")]
)
def test_batches_of_other_sizes_are_refused(oracle: Oracle, kind: str, text: str) -> None:
    for answer in oracle.plan((2, 1), uneven.refused, shares=(3, 1), kind=kind):
        (error,) = answer.results["error"]
        assert "'IteratorGetNext:0' (" in error and "uneven.py:" in error and text in error
