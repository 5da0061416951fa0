"""epl-launch: starts the worker processes of a job, on this machine or by ssh on several, and ends with them.

Also `python -m epl.utils.launcher`. This module runs the steps in order; each step is in a module of its own:

    options    the command line                     job          one run: output, failure, end
    devices    which GPUs                           guard        the process that watches the workers
    cores      which CPUs
    plan       command, environment, logs, ports    processes    /proc and prctl
    secret     how workers know each other          console      the terminal
    causes     which worker failed first            last_words   what a worker tells the launcher (epl/utils)
    check      --check: what works here            machine      one run of the workers of this machine
    config_file    --config_file: all in one file  check_machines   --check -H: what works on each machine
    ssh        -H: one run on several machines     agent        the part of it on each machine
    run        epl.run: a function, by epl-launch  run_worker   what its workers execute
    notices    what is not shown of the output

TensorFlow is not imported here: the launcher starts in a fraction of a second and takes no GPU memory.
"""

import os
import sys
import time
from typing import Optional, Sequence

from epl.launcher import agent as launcher_agent
from epl.launcher import check as launcher_check
from epl.launcher import check_machines
from epl.launcher import cores as launcher_cores
from epl.launcher import devices as launcher_devices
from epl.launcher import machine as launcher_machine
from epl.launcher import options as launcher_options
from epl.launcher import plan as launcher_plan
from epl.launcher import ssh as launcher_ssh
from epl.launcher.console import Console
from epl.launcher.job import Interrupts, Outcome
from epl.launcher.options import Options
from epl.utils import schedulers
from epl.utils.errors import ClusterError


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the launcher.

    Args:
      argv: the command line without the program's name; None: that of this process.

    Returns:
      The exit code: 0; that of the worker that failed first, 128 + n where signal n killed it; 128 + n where signal n
      ended the launcher; 2 for wrong options. With --check 1 for a failure.
    """
    argv = sys.argv[1:] if argv is None else argv
    if list(argv) == [launcher_agent.FLAG]:
        return launcher_agent.serve()
    options = launcher_options.parse(argv)
    if options.check and options.placement is None:
        return launcher_check.run(options)
    try:
        if options.check:
            return check_machines.run(options)
        _check_scheduler(options)
        if options.placement is not None:
            return _run_by_ssh(options)
        devices = launcher_devices.assign(len(options.local_indices), options.gpu_per_worker, os.environ)
        devices = launcher_cores.bind(devices, options.bind_cores, os.environ)
    except (launcher_devices.DeviceError, launcher_ssh.SshError, ClusterError) as error:
        return _refuse(error)
    if options.dry_run:
        _dry_run(options, devices)
        return 0
    interrupts = Interrupts()
    console = Console(sys.stdout.buffer, sys.stdout.isatty())
    console.say(f"{options.num_workers} worker(s), {len(options.local_indices)} of them here: {devices.text}")
    log_dir, began = options.log_dir, time.monotonic()
    for restart in range(options.max_restarts + 1):
        try:
            prepared = launcher_machine.prepare(options, devices, log_dir, restart)
        except (launcher_plan.LogInUseError, OSError) as error:
            return _refuse(error)
        log_dir = prepared.log_dir
        outcome = launcher_machine.run(options, prepared, console, interrupts)
        if _is_over(outcome, restart, options, console):
            break
    _say_end(outcome, options, console, began)
    return outcome.code


def _run_by_ssh(options: Options) -> int:
    console = Console(sys.stdout.buffer, sys.stdout.isatty())
    job = launcher_ssh.RemoteJob(options, console, Interrupts())
    try:
        if options.dry_run:
            print(job.describe())
            return 0
        console.say(f"{options.num_workers} worker(s) on {len(job.machines)} machine(s): {', '.join(job.machines)}")
        began = time.monotonic()
        for restart in range(options.max_restarts + 1):
            outcome = job.run(restart)
            if _is_over(outcome, restart, options, console):
                break
        _say_end(outcome, options, console, began)
        return outcome.code
    finally:
        job.close()


def _is_over(outcome: Outcome, restart: int, options: Options, console: Console) -> bool:
    """Whether a run was the last; says so if all workers start again."""
    if outcome.code == 0 or outcome.interrupted or outcome.refused or restart == options.max_restarts:
        return True
    console.say(f"starting all workers again (restart {restart + 1} of {options.max_restarts})")
    return False


def _say_end(outcome: Outcome, options: Options, console: Console, began: float) -> None:
    """Tells the end of a good job; a failure and a signal have been told."""
    if outcome.code == 0:
        count = options.num_workers
        if options.machine_rank is None:
            who = f"all {count} workers" if count > 1 else "the worker"
        else:
            who = f"worker {options.machine_rank}"
        console.say(f"{who} ended, {time.monotonic() - began:.1f} s")


def _check_scheduler(options: Options) -> None:
    """Refuses to start a whole job in each of several tasks of srun or mpirun.

    Raises:
      ClusterError: so it is, and TF_CONFIG does not say that it is meant.
    """
    if os.environ.get("TF_CONFIG", "").strip() or len(options.local_indices) < options.num_workers:
        return
    task = schedulers.find(os.environ)
    if task is not None:
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
    for worker in launcher_plan.plan_workers(options, log_dir, hosts, devices, None, 0):
        print(worker.describe())
