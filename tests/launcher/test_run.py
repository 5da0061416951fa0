"""`epl.run`: what a function returns, prints and raises in the workers, and that none of them outlives the call."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from epl.launcher import run_worker
from epl.launcher.run import run
from epl.utils.errors import ClusterError, WorkerError
from tests.launcher import run_functions
from tests.launcher.conftest import ROOT, wait_until

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch):
    monkeypatch.setenv("EPL_CLUSTER_DEVICE_TYPE", "cpu")


def pids(folder):
    """The processes of the workers that have noted theirs."""
    return [int(path.read_text() or 0) for path in folder.glob("pid_*")]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def none_alive(folder):
    return len(pids(folder)) == 2 and wait_until(lambda: not any(map(is_alive, pids(folder))), 5)


def test_results_come_in_the_order_of_the_ranks(capfd):
    found = run(run_functions.greet, args=(1, [2]), kwargs={"key": "value"}, num_workers=3, gpu_per_worker=2)
    assert found == [(worker, (1, [2]), {"key": "value"}, "2") for worker in range(3)]


def test_output_is_shown_with_the_rank(capsys):
    run(run_functions.greet)
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["[worker 0] hello from 0", "[worker 1] hello from 1"]
    assert shown.err == ""


def test_an_error_is_raised_with_traceback_and_rank_and_ends_the_others(tmp_path):
    with pytest.raises(WorkerError, match="^Worker 1 of epl.run failed: ValueError: bad row 17\n") as caught:
        run(run_functions.fail_at, args=(1, str(tmp_path)))
    assert caught.value.worker == 1 and isinstance(caught.value.__cause__, ValueError)
    assert 'run_functions.py", line' in str(caught.value) and "run_worker.py" not in str(caught.value)
    assert none_alive(tmp_path)


def test_an_exception_that_cannot_be_unpickled_is_described(tmp_path):
    with pytest.raises(WorkerError, match="TwoPartError: in two") as caught:
        run(run_functions.raise_what_cannot_be_unpickled, num_workers=1)
    assert caught.value.__cause__ is None


def test_a_worker_that_is_killed_is_named():
    with pytest.raises(WorkerError, match="(?s)Worker 0 of epl.run failed, and its .*killed by SIGKILL"):
        run(run_functions.kill_itself, num_workers=1)


def test_a_worker_that_ends_itself_well_has_no_result():
    assert run(run_functions.leave) == [None, "stayed"]


def test_a_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises(WorkerError, match="returned a lock that cannot be pickled"):
        run(run_functions.return_a_lock, num_workers=1)


def test_an_argument_that_cannot_be_pickled_is_refused():
    with pytest.raises(TypeError, match="cannot pickle greet with its arguments .*TypeError: .*lock"):
        run(run_functions.greet, args=(threading.Lock(),))


@pytest.mark.parametrize(
    "numbers, message",
    [
        ({"num_workers": 0}, "num_workers to be an integer from 1, got 0"),
        ({"gpu_per_worker": 0}, "gpu_per_worker to be an integer from 1, got 0"),
        ({"timeout": 0}, "timeout to be a number of seconds above 0"),
    ],
)
def test_illegal_numbers_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        run(run_functions.greet, **numbers)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="expected a function, got 3"):
        run(3)


def test_a_worker_cannot_start_workers():
    with pytest.raises(WorkerError, match="(?s)ClusterError: epl.run was called inside a worker") as caught:
        run(run, args=(run_functions.greet,), num_workers=1)
    assert isinstance(caught.value.__cause__, ClusterError)


def test_too_few_gpus_are_an_error_of_the_machine(monkeypatch):
    monkeypatch.delenv("EPL_CLUSTER_DEVICE_TYPE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ClusterError, match=r"(?s)could not start its workers .*need 2 free GPU\(s\)"):
        run(run_functions.greet)


def test_workers_that_take_too_long_are_ended(tmp_path):
    with pytest.raises(TimeoutError, match="timeout=2 s"):
        run(run_functions.sleep, args=(str(tmp_path),), timeout=2)
    assert none_alive(tmp_path)


def test_the_output_of_the_workers_is_kept_where_asked(tmp_path):
    run(run_functions.greet, log_dir=str(tmp_path / "logs"))
    assert (tmp_path / "logs" / "1" / "stderr_1.log").read_text() == "hello from 1\n"


def test_ctrl_c_ends_all(tmp_path):
    def interrupt():
        wait_until(lambda: len(pids(tmp_path)) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(run_functions.sleep, args=(str(tmp_path),))
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert none_alive(tmp_path)


# A script without TensorFlow.
SCRIPT = """
import sys
import epl_launch
epl_launch.leave_out_package_import()
from epl.launcher.run import run
"""


def start_script(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + textwrap.dedent(text))
    environ = dict(os.environ, PYTHONPATH=ROOT)
    return subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, universal_newlines=True)


def test_the_workers_end_with_a_caller_that_is_killed(tmp_path):
    text = f"from tests.launcher import run_functions\nrun(run_functions.sleep, args=({str(tmp_path)!r},))"
    with start_script(tmp_path, text) as script:
        assert wait_until(lambda: len(pids(tmp_path)) == 2)
        script.kill()
    assert none_alive(tmp_path)


def test_functions_of_a_script_and_closures_need_cloudpickle_alone(tmp_path):
    text = """
    import os
    OFFSET = 10
    def make(factor):
        return lambda: factor * (OFFSET + int(os.path.basename(os.environ["EPL_TASK_DIR"])))
    print(run(make(2)))
    """
    with start_script(tmp_path, text) as script:
        assert script.communicate(timeout=30)[0] == "[20, 22]\n"


def test_a_module_is_found_where_the_caller_found_it(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(importlib.import_module("only_here").answer, num_workers=1) == [42]


def test_without_cloudpickle_it_is_named(monkeypatch):
    monkeypatch.setattr(run_worker, "has_cloudpickle", lambda: False)
    with pytest.raises(TypeError, match="With cloudpickle more functions work: pip install cloudpickle"):
        run(lambda: 1)
    monkeypatch.setattr(run_functions.greet, "__module__", "__main__")
    with pytest.raises(ImportError, match="needs cloudpickle for greet"):
        run(run_functions.greet)


def test_workers_train_together():
    (first, weight), (second, other_weight) = run(run_functions.train, args=(10,))
    assert first[0] == 4.0 and second[0] == 16.0 and weight == other_weight == pytest.approx(3.0, abs=0.05)


def test_the_worker_that_failed_first_is_named_and_not_one_that_waited_for_it():
    with pytest.raises(WorkerError, match="InvalidArgumentError") as caught:
        run(run_functions.train, args=(3, 1))
    assert caught.value.worker == 1
