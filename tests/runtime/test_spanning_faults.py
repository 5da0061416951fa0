"""What goes wrong in a pipeline across processes ends all of it soon, with words that name worker and cause."""

import re
import signal
import sys
from typing import Any, Iterator

import pytest

from tests.runtime.spanning import Nursery, codes, outputs

pytestmark = pytest.mark.timeout(150)
SOON = 25.0  # seconds of a whole job on a busy machine; a run that is interrupted would last 60
LEFT_SCRIPT = r"PlanError: A model of this script spans processes, and worker\(s\) 1, 3 that serve it have left"
INTERRUPTED = 1 if sys.version_info < (3, 8) else -signal.SIGINT  # how Python ends after a KeyboardInterrupt
# What happens in worker 2 or 3, the exit codes, and what each worker that is told says.
FAULTS = {
    "raises": ([1, 1, 1, 1], r"worker 2: ValueError: something in the script"),
    "stops with code": ([1, 1, 7, 1], r"worker 2: sys\.exit\(7\)"),
    "raises SystemExit": ([1, 1, 7, 1], r"worker 2: sys\.exit\(7\)"),
    "killed": ([1, 1, -9, 1], r"worker 2 .*died"),
    "server killed": ([1, 1, 1, -9], r"worker 3 .*died"),
    "killed in a run": ([1, 1, 1, -9], r"worker 3 .*died"),
    "interrupted": ([1, 1, INTERRUPTED, 1], r"worker 2: KeyboardInterrupt"),
    "server interrupted": ([1, 1, 1, INTERRUPTED], r"worker 3: KeyboardInterrupt"),
}
QUICK = ("interrupted", "server killed")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as workers:
        yield workers


@pytest.mark.parametrize(
    "what", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in sorted(FAULTS)]
)
def test_all_end_soon_with_the_cause(nursery: Nursery, what: str, tmp_path: Any) -> None:
    workers = nursery.run("spanning_faults.py", [what, str(tmp_path)], tmp_path)
    expected, cause = FAULTS[what]
    assert codes(workers) == expected, outputs(workers)
    assert workers[0].seconds < SOON, outputs(workers)
    at_fault = 3 if "3" in cause else 2
    for index, worker in enumerate(workers):
        assert index == at_fault or re.search(cause, worker.output), outputs(workers)


def test_a_data_parallel_model_is_refused_when_workers_have_left_the_script(nursery: Nursery, tmp_path: Any) -> None:
    workers = nursery.run("spanning_faults.py", ["data parallel after", str(tmp_path)], tmp_path)
    assert codes(workers) == [1, 1, 1, 1], outputs(workers)
    for worker in workers:
        assert re.search(LEFT_SCRIPT, worker.output), outputs(workers)
    assert "trained" not in workers[1].output and "trained" in workers[0].output


@pytest.mark.parametrize(
    "stopped", [3, pytest.param(2, marks=pytest.mark.long), pytest.param(0, marks=pytest.mark.long)]
)
def test_a_stopped_worker_is_named_with_its_stage_and_ends_the_job(
    nursery: Nursery, stopped: int, tmp_path: Any
) -> None:
    workers = nursery.run("spanning_faults.py", ["worker %d is stopped" % stopped, str(tmp_path)], tmp_path)
    assert codes(workers) == [1, 1, 1, 1], outputs(workers)
    silent = r"nothing was heard of worker %d \(127\.0\.0\.1:\d+" % stopped
    for index in {0, 1, 2, 3} - {stopped}:
        does = "serves and waits for the others" if index % 2 else "is in Session.run of Adam.*, which uses"
        line = r"EPL: stalled: worker %d .*%s.*%s, stage %d\) for \d+ s" % (index, does, silent, stopped % 2)
        assert re.search(line, workers[index].output), outputs(workers)
        assert re.search("gave up after .*" + silent, workers[index].output), outputs(workers)
