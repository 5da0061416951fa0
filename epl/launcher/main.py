"""epl-launch: starts the worker processes of a job on this machine and ends with them.

Also `python -m epl.utils.launcher`. This module runs the steps in order; each step is in a module of its own:

    options    the command line                     job          one run: output, failure, end
    devices    which GPUs                           guard        the process that watches the workers
    plan       command, environment, logs, ports    processes    /proc and prctl
    secret     how workers know each other          console      the terminal
    causes     which worker failed first            last_words   what a worker tells the launcher (epl/utils)
    check      --check: what works here

TensorFlow is not imported here: the launcher starts in a fraction of a second and takes no GPU memory.
"""

import os
import sys
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from epl.launcher import causes as launcher_causes
from epl.launcher import check as launcher_check
from epl.launcher import devices as launcher_devices
from epl.launcher import guard as launcher_guard
from epl.launcher import options as launcher_options
from epl.launcher import plan as launcher_plan
from epl.launcher import secret as launcher_secret
from epl.launcher.console import Console
from epl.launcher.job import Interrupts, LaunchedJob, Outcome
from epl.launcher.options import Options
from epl.launcher.plan import Port, Worker
from epl.utils import schedulers
from epl.utils.errors import ClusterError
from epl.utils.last_words import PIPE_VARIABLE


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the launcher.

    Args:
      argv: the command line without the program's name; None: that of this process.

    Returns:
      The exit code: 0; that of the worker that failed first, 128 + n where signal n killed it; 128 + n where signal n
      ended the launcher; 2 for wrong options. With --check 1 for a failure.
    """
    options = launcher_options.parse(sys.argv[1:] if argv is None else argv)
    if options.check:
        return launcher_check.run(options)
    try:
        _check_scheduler(options)
        devices = launcher_devices.assign(len(options.local_indices), options.gpu_per_worker, os.environ)
    except (launcher_devices.DeviceError, ClusterError) as error:
        return _refuse(error)
    if options.dry_run:
        _dry_run(options, devices)
        return 0
    interrupts = Interrupts()
    console = Console(sys.stdout.buffer, sys.stdout.isatty())
    console.say(f"{options.num_workers} worker(s), {len(options.local_indices)} of them here: {devices.text}")
    log_dir = options.log_dir
    for restart in range(options.max_restarts + 1):
        try:
            workers, logs, ports, log_dir = _prepare(options, devices.environments, log_dir, restart)
        except (launcher_plan.LogInUseError, OSError) as error:
            return _refuse(error)
        outcome = _run(options, workers, logs, ports, console, interrupts)
        if outcome.code == 0 or outcome.interrupted:
            break
        if restart < options.max_restarts:
            console.say(f"starting all workers again (restart {restart + 1} of {options.max_restarts})")
    return outcome.code


def _check_scheduler(options: Options) -> None:
    """Refuses to start a whole job in each of several tasks of srun or mpirun.

    Raises:
      ClusterError: so it is, and TF_CONFIG does not say that it is meant.
    """
    task = None if os.environ.get("TF_CONFIG", "").strip() else schedulers.find(os.environ)
    if task is not None and len(options.local_indices) == options.num_workers:
        raise ClusterError(
            f"{task.launcher} has started epl-launch as task {task.rank} of {task.size}, and each would start a job of "
            f"its own with {options.num_workers} worker(s). Start the script itself by {task.launcher.split()[0]}, "
            f"without epl-launch; or epl-launch once; or give --machine_rank and --machine_list. {schedulers.ALONE} "
            "starts a job in each task."
        )


def _refuse(error: Exception) -> int:
    print(f"epl-launch: error: {error}", file=sys.stderr)
    return 2


def _dry_run(options: Options, devices: launcher_devices.Devices) -> None:
    hosts = options.hosts or [f"127.0.0.1:<free port {index}>" for index in range(options.num_workers)]
    log_dir = options.log_dir or launcher_plan.default_log_dir(options)
    print(f"# {devices.text}")
    for worker in launcher_plan.plan_workers(options, log_dir, hosts, devices.environments, None, 0):
        print(worker.describe())


def _prepare(
    options: Options, devices: Sequence[Mapping[str, str]], log_dir: Optional[str], restart: int
) -> Tuple[List[Worker], Dict[int, int], Optional[List[Port]], str]:
    """Reserves ports and log files of one run.

    If another job is writing to the log directory, a default name gets a number; a name from the user is refused.
    """
    ports = None if options.hosts else launcher_plan.reserve_ports(options.num_workers)
    hosts = options.hosts or [f"127.0.0.1:{port.number}" for port in ports or []]
    default = launcher_plan.default_log_dir(options)
    number = 1
    while True:
        directory = log_dir or (default if number == 1 else f"{default}_{number}")
        workers = launcher_plan.plan_workers(options, directory, hosts, devices, ports, restart)
        try:
            return workers, launcher_plan.open_logs(workers), ports, directory
        except launcher_plan.LogInUseError:
            if log_dir is not None:
                raise
            number += 1


def _run(
    options: Options,
    workers: List[Worker],
    logs: Dict[int, int],
    ports: Optional[List[Port]],
    console: Console,
    interrupts: Interrupts,
) -> Outcome:
    null = os.open(os.devnull, os.O_RDONLY)
    secret = launcher_secret.draw(options)
    starts = []
    pipes = {}
    for worker in workers:
        pipe = pipes[worker.worker_index] = launcher_causes.open_pipe()
        environ = launcher_secret.give(worker.environment(os.environ), secret)
        environ[PIPE_VARIABLE] = pipe.name
        debugged = worker.log is None
        starts.append(
            launcher_guard.Start(
                worker.worker_index,
                worker.argv,
                environ,
                None if debugged else null,
                logs.get(worker.worker_index),
                ports[worker.worker_index].fd if ports is not None else None,
                pipe.write_end,
            )
        )
    paths = {worker.worker_index: worker.log for worker in workers if worker.log is not None}
    shown = options.local_indices if options.show_all else [0]
    causes = launcher_causes.Causes({index: pipe.read_end for index, pipe in pipes.items()})
    outcome = LaunchedJob(starts, paths, shown, causes, console, interrupts).run(options.kill_after)
    os.close(null)
    return outcome
