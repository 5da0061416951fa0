"""`epl-launch --check -H ...`: the check of each machine of a job, and an all-reduce between each pair of machines.

each machine        the check of check.py, by the agent of that machine (agent.py), one machine after the other
all together        a job of one worker on each machine, which runs epl/runtime/self_check.py
"""

import io
import json
import sys
from typing import Any, Dict, Iterator, List, Optional

from epl.launcher import check, ssh
from epl.launcher.check import Finding
from epl.launcher.console import Console
from epl.launcher.job import Interrupts, Outcome
from epl.launcher.options import Options

_PREFIX = "[worker 0] "  # before what a worker on another machine prints


def run(options: Options) -> int:
    """Prints the findings of all machines as they come.

    Returns:
      The exit code: 1 if one of them is a failure, else 0; 128 + n after signal n.

    Raises:
      SshError: the machines cannot be used as asked.
    """
    interrupts = Interrupts()
    machines = ssh.machines_of(options.placement or [])
    bad: List[str] = []
    for host, ranks in machines.items():
        one = options._replace(placement=[host] * len(ranks), num_workers=len(ranks))
        outcome = _run(one, Console(sys.stdout.buffer, redraw=False), interrupts)
        if outcome.interrupted:
            return outcome.code
        bad += [host] if outcome.code else []
    hosts = list(machines)
    print(f"between {len(hosts)} machine(s): {', '.join(hosts)}", flush=True)
    if bad:
        findings = iter([Finding("--", check.ALL_REDUCE, f"not tried, because of the failures on {', '.join(bad)}")])
    else:
        findings = _between(options, hosts, interrupts)
    failures = len(bad)
    for finding in findings:
        print(finding.describe(), flush=True)
        failures += finding.mark == "FAIL"
    print(f"{failures} failure(s)" if failures else f"all is well on {len(hosts)} machine(s)")
    return 1 if failures else 0


def _between(options: Options, hosts: List[str], interrupts: Interrupts) -> Iterator[Finding]:
    if len(hosts) == 1:
        yield Finding("--", check.ALL_REDUCE, "there is one machine")
        return
    job = options._replace(
        check=False,
        placement=hosts,
        num_workers=len(hosts),
        script="epl.runtime.self_check",
        is_module=True,
        script_args=["pairs"],
        env={**check.LIMITS, **options.env},
        task_label="check",
    )
    output = io.BytesIO()
    outcome = _run(job, Console(output, redraw=False), interrupts)
    lines = output.getvalue().decode("utf-8", "replace").splitlines()
    answer = _answer(lines) if outcome.code == 0 else None
    if answer is None:
        remedy = "the messages are above, the logs in experiments/ of each machine"
        yield Finding("FAIL", check.ALL_REDUCE, "the machines cannot meet", remedy)
        return
    for pair in answer:
        yield check.of_pair(pair, " and ".join(hosts[worker] for worker in pair["workers"]))


def _answer(lines: List[str]) -> Optional[List[Dict[str, Any]]]:
    """What worker 0 says of all pairs in its last line; None if that is something else."""
    try:
        answer = json.loads(lines[-1][len(_PREFIX) :])
    except (IndexError, ValueError):
        return None
    return answer if isinstance(answer, list) else None


def _run(options: Options, console: Console, interrupts: Interrupts) -> Outcome:
    job = ssh.RemoteJob(options, console, interrupts)
    try:
        return job.run(0)
    finally:
        job.close()
