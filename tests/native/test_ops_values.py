"""What the collectives compute, and their gradients, on ranks of one process and of two."""

import pickle

import ops_cases
import ops_harness
import pytest


@pytest.mark.grid
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(ops_cases.CASES))
def test_one_process(name, world):
    case = ops_cases.CASES[name]
    got = ops_harness.run_ranks(ops_harness.local_communicator(world), case.build)
    for rank, expected in enumerate(case.expected(world)):
        ops_harness.check_rank(got[rank], expected, case.tolerance)


@pytest.fixture(scope="module", params=[1, 2], ids=["2x1", "2x2"])
def two_processes(request, tmp_path_factory):
    """All cases run by two processes of 1 or 2 ranks: world, transport, case -> what each rank got."""
    result = tmp_path_factory.mktemp("ranks") / "result"
    with ops_harness.processes(ops_harness.__file__, 2, [request.param, result]) as workers:
        for worker in workers:
            _, errors = worker.communicate(timeout=240)
            assert worker.returncode == 0, errors.decode()[-4000:]
    got = {}
    for process in range(2):
        transport, cases = pickle.loads((result.parent / f"{result.name}.{process}").read_bytes())
        for name, ranks in cases.items():
            got.setdefault(name, []).extend(ranks)
    return 2 * request.param, transport, got


@pytest.mark.grid
@pytest.mark.parametrize("name", sorted(ops_cases.CASES))
def test_two_processes(two_processes, name):
    world, _, got = two_processes
    case = ops_cases.CASES[name]
    for rank, expected in enumerate(case.expected(world)):
        ops_harness.check_rank(got[name][rank], expected, case.tolerance)


def test_processes_of_one_machine_share_memory(two_processes):
    assert two_processes[1] == "shm"
