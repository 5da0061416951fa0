"""One run of the workers of this machine: reserve ports and logs, start, watch.

`epl-launch` runs it for a job of this machine, and `agent.py` for the part of a job that is here.
"""

import os
from typing import Dict, List, Mapping, NamedTuple, Optional

from epl.launcher import causes as launcher_causes
from epl.launcher import guard as launcher_guard
from epl.launcher import plan as launcher_plan
from epl.launcher import secret as launcher_secret
from epl.launcher.console import Console
from epl.launcher.devices import Devices
from epl.launcher.job import Interrupts, LaunchedJob, Outcome
from epl.launcher.notices import NoticeFilter
from epl.launcher.options import Options
from epl.launcher.plan import Port, Worker
from epl.utils.last_words import PIPE_VARIABLE


class Prepared(NamedTuple):
    """Workers that can be started, and what is reserved for them."""

    workers: List[Worker]
    logs: Dict[int, int]  # the descriptor of the log of each worker that has one
    ports: Mapping[int, Port]  # the listening sockets that are handed over, by worker
    log_dir: str


def prepare(
    options: Options,
    devices: Devices,
    log_dir: Optional[str],
    restart: int,
    ports: Optional[Mapping[int, Port]] = None,
) -> Prepared:
    """Reserves ports and log files of one run.

    If another job is writing to the log directory, a default name gets a number; a name from the user is refused.

    Args:
      options: the command line.
      devices: those of each worker of this machine.
      log_dir: the log directory; None: the default one.
      restart: how often the job was started again before.
      ports: the listening sockets of workers of this machine, where `options.hosts` has all addresses.

    Raises:
      LogInUseError: another job writes to a log.
      OSError: there is no port, or a log cannot be written.
    """
    if options.hosts is None:
        ports = dict(enumerate(launcher_plan.reserve_ports(options.num_workers)))
    ports = ports or {}
    hosts = options.hosts or [f"127.0.0.1:{port.number}" for port in ports.values()]
    default = launcher_plan.default_log_dir(options)
    number = 1
    while True:
        directory = log_dir or launcher_plan.numbered(default, number)
        workers = launcher_plan.plan_workers(options, directory, hosts, devices, ports, restart)
        try:
            return Prepared(workers, launcher_plan.open_logs(workers), ports, directory)
        except launcher_plan.LogInUseError:
            if log_dir is not None:
                raise
            number += 1


def run(options: Options, prepared: Prepared, console: Console, interrupts: Interrupts) -> Outcome:
    """Starts the workers and returns when everything that they started has ended."""
    null = os.open(os.devnull, os.O_RDONLY)
    secret = launcher_secret.draw(options)
    starts = []
    pipes = {}
    for worker in prepared.workers:
        pipe = pipes[worker.worker_index] = launcher_causes.open_pipe()
        environ = launcher_secret.give(worker.environment(os.environ), secret)
        environ[PIPE_VARIABLE] = pipe.name
        debugged = worker.log is None
        port = prepared.ports.get(worker.worker_index)
        starts.append(
            launcher_guard.Start(
                worker.worker_index,
                worker.argv,
                environ,
                None if debugged else null,
                prepared.logs.get(worker.worker_index),
                None if port is None else port.fd,
                pipe.write_end,
                worker.cpus,
            )
        )
    paths = {worker.worker_index: worker.log for worker in prepared.workers if worker.log is not None}
    shown = [0] if options.show_ranks is None else options.show_ranks
    shown = options.local_indices if options.show_all else shown
    causes = launcher_causes.Causes({index: pipe.read_end for index, pipe in pipes.items()})
    notices = None if options.verbose else NoticeFilter(dict(os.environ, **options.env))
    outcome = LaunchedJob(starts, paths, shown, causes, console, interrupts, notices).run(options.kill_after)
    os.close(null)
    return outcome
