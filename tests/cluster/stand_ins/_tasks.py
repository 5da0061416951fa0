"""Starts the tasks of a stand-in for a scheduler as real processes, and ends all when one fails or the time is up."""

import os
import signal
import subprocess
import sys
import time

_SECONDS = 90


def run(environments, command):
    """One process for each environment, its output with "rank: " before each line; returns the exit code."""
    tasks = []
    for rank, environ in enumerate(environments):
        labelled = ["sh", "-c", f'"$@" 2>&1 | sed "s/^/{rank}: /"; exit ${{PIPESTATUS[0]}}', "sh"]
        labelled[0] = "bash"
        tasks.append(subprocess.Popen(labelled + command, env=dict(os.environ, **environ), start_new_session=True))
    deadline = time.monotonic() + _SECONDS
    code = 0
    while any(task.poll() is None for task in tasks):
        failed = [task.returncode for task in tasks if task.returncode]
        if failed or time.monotonic() > deadline:
            code = failed[0] if failed else 1
            time.sleep(2 if failed else 0)  # the others say what they think
            for task in tasks:
                try:
                    os.killpg(task.pid, signal.SIGKILL)
                except OSError:
                    pass
            break
        time.sleep(0.05)
    codes = [task.wait() for task in tasks]
    sys.exit(code or max(codes, key=abs))
