"""Starts the tasks of a stand-in for a scheduler as real processes, and ends all when one fails or the time is up."""

import os
import signal
import subprocess
import sys
import time

_SECONDS = 90


def run(environments, machines, command):
    """Runs one process for each environment, its output with "rank: " before each line, and ends with their exit code.

    NETWORKS gives the network namespace of a machine, if it has one: "node1=name,node2=name".
    """
    networks = dict(entry.split("=") for entry in os.environ.get("NETWORKS", "").split(",") if entry)
    tasks = []
    for rank, environ in enumerate(environments):
        labelled = ["bash", "-c", f'"$@" 2>&1 | sed "s/^/{rank}: /"; exit ${{PIPESTATUS[0]}}', "bash"]
        network = networks.get(machines[rank])
        inside = [] if network is None else ["ip", "netns", "exec", network]
        argv = inside + labelled + command
        tasks.append(subprocess.Popen(argv, env=dict(os.environ, **environ), start_new_session=True))
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
