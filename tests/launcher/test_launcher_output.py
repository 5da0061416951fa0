"""What is shown and what is logged."""

import fcntl
import io
import os
import pty
import re
import stat
import subprocess
import sys
import termios
import time

import pytest

from epl.launcher import options as launcher_options
from epl.launcher import plan as launcher_plan
from epl.launcher.console import Console, LogTail
from epl.launcher.devices import Devices

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(60)

BOTH = "echo to output; echo to error >&2"


def test_log_holds_both_streams_of_every_worker(run, log):
    run(BOTH)
    assert [log(0), log(1)] == ["to output\nto error\n"] * 2


def test_only_worker_0_is_shown_with_its_prefix(run):
    output = run("echo text of worker; printf unfinished").output
    assert output.count("text of worker") == output.count("unfinished") == 1
    assert "\n[worker 0] text of worker\n" in output and "\n[worker 0] unfinished\n" in output


def test_show_all_shows_every_worker(run):
    lines = run("for i in 1 2 3; do echo line $i; done", "--show_all").output.splitlines()
    for index in range(2):
        prefix = f"[worker {index}] "
        assert [line for line in lines if line.startswith(prefix)] == [prefix + "line %d" % i for i in (1, 2, 3)]


def test_output_is_shown_while_the_job_runs(start, until):
    launch = start("echo early; sleep 30", workers=1)
    shown = ""
    while "early" not in shown:
        shown = launch.process.stdout.readline()
    assert launch.process.poll() is None


def test_large_output_is_shown_completely(run):
    output = run("seq 1 100000", workers=1).output
    assert re.findall(r"\[worker 0\] (\d+)\n", output) == [str(i) for i in range(1, 100001)]


def test_a_long_line_takes_no_time(out):
    console = Console(out, redraw=False)
    began = time.process_time()
    console.feed("[0] ", b"x" * 60000)
    assert time.process_time() - began < 1
    console.feed("[0] ", b"y\nz")
    assert show(console, out) == "[0] " + "x" * 60000 + "y\n[0] z\n"


def test_second_run_appends_to_the_log_and_shows_only_its_own_output(run, log):
    run("echo first", name="first.sh")
    output = run("echo second").output
    assert "first" not in output
    assert re.match(r"first\n\n==== epl-launch: new run, .* ====\nsecond\n$", log(0))


def test_log_directory_of_a_running_job_is_refused(start, run, until, tmp_path):
    start("echo up; sleep 30", name="first.sh")
    assert until(lambda: (tmp_path / "logs" / "1" / "stderr_1.log").exists())
    launch = run("echo")
    assert launch.code == 2 and "--log_dir" in launch.output


def test_default_log_directory_of_a_running_job_gets_a_number(start, run, until, tmp_path):
    start("echo up; sleep $EPL_TEST_SECONDS", log_dir=None, EPL_TEST_SECONDS="30")
    assert until(lambda: [log for log in tmp_path.glob("experiments/*/1/stderr_1.log") if log.read_text() == "up\n"])
    (first,) = os.listdir(str(tmp_path / "experiments"))
    assert run("echo up; sleep $EPL_TEST_SECONDS", log_dir=None, EPL_TEST_SECONDS="0").code == 0
    assert sorted(os.listdir(str(tmp_path / "experiments"))) == [first, first + "_2"]


def test_logs_and_their_directories_are_the_users_alone(tmp_path):
    before = os.umask(0)
    try:
        (first,) = plan(tmp_path / "a" / "logs", 0)
        launcher_plan.close_all(launcher_plan.open_logs([first]).values())
        os.umask(0o277)
        (second,) = plan(tmp_path / "a" / "logs", 1)
        launcher_plan.close_all(launcher_plan.open_logs([second]).values())
    finally:
        os.umask(before)
    made = [tmp_path / "a", first.task_dir, first.log, second.log]
    assert [stat.S_IMODE(os.stat(str(path)).st_mode) for path in made] == [0o700, 0o700, 0o600, 0o400]


@pytest.mark.parametrize("link", ["logs/0", "logs/0/stderr_0.log"])
def test_a_symbolic_link_in_the_place_of_a_log_is_refused(run, tmp_path, link):
    target = tmp_path / "target"
    target.mkdir() if link == "logs/0" else target.write_text("precious")
    (tmp_path / link).parent.mkdir(parents=True)
    (tmp_path / link).symlink_to(target)
    launch = run("echo in the log", workers=1)
    assert launch.code == 2 and "epl-launch: error: " in launch.output and link in launch.output
    assert target.is_dir() or target.read_text() == "precious"
    assert not target.is_dir() or not list(target.iterdir())


def plan(log_dir, restart):
    options = launcher_options.parse(["--num_workers", "1", "--gpu_per_worker", "1", __file__])
    devices = Devices([{"CUDA_VISIBLE_DEVICES": ""}], "")
    return launcher_plan.plan_workers(options, str(log_dir), ["a:1"], devices, None, restart)


def test_job_goes_on_when_nobody_reads_the_output(start, log, until):
    launch = start("echo up; sleep 0.5; seq 1 50000; echo end", workers=1)
    launch.process.stdout.close()
    assert launch.process.wait(20) == 0
    assert log(0).endswith("end\n")


@pytest.fixture
def out():
    return io.BytesIO()


def show(console, out):
    console.show_partial_lines(everything=True)
    return out.getvalue().decode()


def test_terminal_redraws_a_bar_with_its_prefix(out):
    console = Console(out, redraw=True)
    for part in (b"\r 0%", b"\r", b" 50%\r100%\n", b"done\r\n"):
        console.feed("[0] ", part)
        console.show_partial_lines()
    assert show(console, out) == "\r\r[0]  50%\r[0] 100%\n[0] done\r\n".replace("\r\r", "\r[0]  0%\r")


def test_bar_becomes_its_last_state_off_a_terminal(out):
    console = Console(out, redraw=False)
    console.feed("[0] ", b"\r 0%\r 50%\r100%\nnext\n\r10%\r20%")
    assert show(console, out) == "[0] 100%\n[0] next\n[0] 20%\n"


def test_long_bar_shows_now_and_then_off_a_terminal(out, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("epl.launcher.console.time.monotonic", lambda: clock[0])
    console = Console(out, redraw=False)
    for second in range(12):
        clock[0] = float(second)
        console.feed("", b"\rsecond %d" % second)
    # A state counts as drawn when the next carriage return comes.
    assert show(console, out) == "second 4\nsecond 9\nsecond 11\n"


@pytest.mark.parametrize("redraw", [True, False])
def test_lines_of_several_workers_do_not_mix(out, redraw):
    console = Console(out, redraw)
    for prefix, part in (("[0] ", b"he"), ("[1] ", b"other"), ("[0] ", b"llo\n"), ("[1] ", b" line\n\n")):
        console.feed(prefix, part)
    assert show(console, out) == "[0] hello\n[1] other line\n[1] \n"


def test_waiting_text_of_one_worker_is_not_continued_by_another(out, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("epl.launcher.console.time.monotonic", lambda: clock[0])
    console = Console(out, redraw=True)
    console.feed("[0] ", b"question? ")
    clock[0] = 1.0
    console.show_partial_lines()
    console.feed("[1] ", b"line\n")
    assert show(console, out) == "[0] question? \n[1] line\n"


def test_messages_start_on_a_line_of_their_own(out, capsys):
    console = Console(out, redraw=True)
    console.feed("[0] ", b"50%\r")
    console.say("two\nlines")
    assert out.getvalue() == b"[0] 50%\r\n"
    assert capsys.readouterr().err == "epl-launch: two\nepl-launch: lines\n"


def test_last_lines_are_those_of_this_run_with_bars_reduced(tmp_path):
    log = tmp_path / "log"
    log.write_text("old\n")
    tail = LogTail(str(log))
    assert tail.last_lines(5) == []
    with open(str(log), "a", newline="") as more:
        more.write("".join("%d\n" % i for i in range(30)) + "\r1%\r2%\nwindows\r\nend")
    assert tail.last_lines(5) == ["28", "29", "2%", "windows", "end"]
    tail.close()


def test_debug_worker_can_read_the_terminal(tmp_path, launcher):
    """As a debugger does."""
    (tmp_path / "job.py").write_text("print('got', input('? '))")
    terminal, worker_end = pty.openpty()
    flags = ["--num_workers", "1", "--gpu_per_worker", "1", "--log_dir", "logs", "--debug", "job.py"]
    process = subprocess.Popen(
        [launcher] + flags,
        cwd=str(tmp_path),
        stdin=worker_end,
        stdout=worker_end,
        stderr=worker_end,
        start_new_session=True,
        # The launcher's session owns the terminal, as in a real one.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env=dict(os.environ, PYTHON=sys.executable, EPL_CLUSTER_DEVICE_TYPE="cpu"),
    )
    os.close(worker_end)
    seen = b""
    while b"? " not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"answer\n")
    assert process.wait(20) == 0
    while b"got answer" not in seen:
        seen += os.read(terminal, 1000)
    os.close(terminal)
