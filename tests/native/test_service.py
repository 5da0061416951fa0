"""The end of a script and what outlives the job, as other processes see them."""

import re

import ops_harness
import pytest

from epl.ops import service
from epl.ops.job import JobError

pytestmark = pytest.mark.timeout(120)

START = """
import sys
from epl.ops.job import Job, JobError
from epl.ops.service import CommunicatorSpec, Service
from epl.ops.waits import Limits
process = int(sys.argv[2])
job = Job.start(sys.argv[1].split(","), process, start_timeout=60, stall_warning=10, timeout=30)
"""


def run(tmp_path, program):
    """Runs a program in two processes; (exit code, stdout, stderr) of each."""
    path = tmp_path / "program.py"
    path.write_text(START + program)
    with ops_harness.processes(str(path), 2) as workers:
        outputs = [worker.communicate(timeout=90) for worker in workers]
        return [(worker.returncode, out.decode(), err.decode()) for worker, (out, err) in zip(workers, outputs)]


@pytest.mark.parametrize("end, cause", [("raise KeyError('x')", "KeyError: 'x'"), ("sys.exit(3)", "sys.exit(3)")])
def test_failure_of_a_script_is_told_at_exit(tmp_path, end, cause):
    (code, _, errors), _ = run(tmp_path, f"if process: {end}\njob.exchange('never', b'')")
    assert code == 1
    assert "worker 1: " + cause in errors


def test_a_companion_outlives_its_job(tmp_path):
    ended = run(
        tmp_path,
        "other = job.companion()\nif not process: job.stop()\n"
        "print(other.exchange('x', b'%d' % process))\nother.stop()",
    )
    assert [(code, out) for code, out, _ in ended] == [(0, "[b'0', b'1']\n")] * 2, ended


SERVICE = """
service = Service(job, Limits(0, 0))
if process:
    try:
        service.serve()
    finally:
        print({show})
        service.leave()
else:
    {constructor}
    service.finish()
print("over")
"""


def serve(tmp_path, constructor, show="job._communicators.keys()"):
    return run(tmp_path, SERVICE.format(constructor=constructor, show=show))


def test_a_serving_process_opens_communicators_in_which_it_owns_ranks(tmp_path):
    specs = "[CommunicatorSpec('a', (0, 1)), CommunicatorSpec('b', (1, 1)), CommunicatorSpec('c', (0, 0))]"
    ended = serve(tmp_path, f"service.open({specs})")
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert ended[1][1] == "dict_keys(['a', 'b'])\nover\n"


def test_a_serving_process_ends_communicators_that_a_constructor_has_forgotten(tmp_path):
    opened = [f"service.open([CommunicatorSpec('{name}', (0, 1))])" for name in "ab"]
    ended = serve(tmp_path, f"{opened[0]}; service.forget(['a']); print(*job._communicators); {opened[1]}")
    assert [out for _, out, _ in ended] == ["\nover\n", "dict_keys(['b'])\nover\n"], ended


def test_a_serving_process_keeps_what_one_constructor_has_not_forgotten(monkeypatch):
    rounds = [
        [{"do": "serve"}] + [{"do": "open", "communicators": [], "forgotten": names} for names in two]
        for two in ((["a", "b"], ["b"]), ([], ["a"]))
    ]
    answers = iter([rounds[0], [], rounds[1], [], [{"do": "finish"}]])
    serving, ended = object.__new__(service.Service), []
    monkeypatch.setattr(serving, "_round", lambda mine: next(answers), raising=False)
    monkeypatch.setattr(serving, "_end", ended.append)
    serving.serve()
    assert ended == [["b"], ["a"]]


def test_a_serving_process_leaves_it_to_constructors_that_they_differ(monkeypatch):
    opens = {"do": "open", "communicators": [], "forgotten": ["a"]}
    answers = iter([[{"do": "serve"}, opens, {"do": "finish"}], [], [{"do": "finish"}]])
    serving, ended = object.__new__(service.Service), []
    monkeypatch.setattr(serving, "_round", lambda mine: next(answers), raising=False)
    monkeypatch.setattr(serving, "_end", ended.append)
    serving.serve()
    assert ended == [[]]


def test_a_serving_process_ends_steps(tmp_path):
    constructor = "service.end_generation('no data', job.generation); print(job.generation)"
    ended = serve(tmp_path, constructor, show="job.generation")
    assert [out for _, out, _ in ended] == ["1\nover\n"] * 2, ended


def test_constructors_exchange_text(tmp_path):
    ended = serve(tmp_path, "print(service.exchange('plan', 'p'))")
    assert ended[0][1] == "['p', None]\nover\n", ended


def test_failure_to_open_a_communicator_ends_all_with_the_cause(tmp_path):
    ended = serve(tmp_path, "service.open([CommunicatorSpec('a', (1, 1), 'pigeon')])")
    assert [code for code, _, _ in ended] == [1, 1], ended
    assert "pigeon" in ended[0][2] and "worker 1" in ended[0][2]


@pytest.mark.parametrize("words", [b"no JSON", b"[]", b'{"do": "nothing that is known"}'])
def test_words_that_make_no_sense_in_a_round_are_refused(words):
    with pytest.raises(JobError, match="worker 3 sent what makes no sense in a round"):
        service._read(3, words)


def test_a_constructor_that_waits_for_another_says_so(tmp_path):
    ended = run(
        tmp_path,
        "import time\nservice = Service(job, Limits(1, 0))\ntime.sleep(4 * process)\n"
        "service.exchange('plan', 'p')\nservice.finish()",
    )
    assert [code for code, _, _ in ended] == [0, 0], ended
    waits = r"EPL: stalled: worker 0 \S+ compares plan and waits for the others for \d s; missing: worker 1 \("
    assert re.search(waits, ended[0][2])


FOLLOWS = """
import atexit, os, time
from epl.ops import service as services
from epl.utils import last_words
service = Service(job, Limits(0, 0))
if not process:
    service._companion.abort("ValueError: bad row")
    time.sleep(3)  # it still prints, and has not told the job
    sys.exit(1)

def leave():
    begin = time.monotonic()
    service.leave()
    print("at once:", time.monotonic() - begin < 20)
    print(os.read(read_end, 9999).decode())

services._CAUSE_FIRST_S = 30
read_end, write_end = os.pipe()
os.environ[last_words.PIPE_VARIABLE] = last_words.name_pipe(write_end)
atexit.register(leave)
service.serve()
"""


def test_who_follows_a_failure_tells_the_launcher_at_once_whose_it_is(tmp_path):
    _, (_, out, _) = run(tmp_path, FOLLOWS)
    assert "at once: True\n" in out
    assert '"cause": [0, "ValueError: bad row"]' in out
