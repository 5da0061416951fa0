"""The part of `epl-launch -H` on another machine: starts the workers that are to run there, and ends with the launcher.

    launcher --ssh--> agent --guard--> workers        ssh.py has the other end
         --standard input-->    line 1: what to start (AgentOrder); line 2: the addresses of all workers and the
                                directory of logs; then bytes: END ends all, KILL kills at once. The end of the input:
                                the launcher is dead
         <--standard output--   one line with MARK: the port that is reserved for worker 0, and the number of the first
                                log directory that is free; then the workers' output
         <--standard error---   messages; in the end one line with MARK if a worker of another machine failed first

Environment and secret travel on standard input, because every user of a machine can see a command line.
"""

import json
import os
import signal
import sys
from typing import Any, Dict, NamedTuple, Optional, Tuple

from epl.launcher import check as launcher_check
from epl.launcher import cores as launcher_cores
from epl.launcher import devices as launcher_devices
from epl.launcher import machine
from epl.launcher import plan as launcher_plan
from epl.launcher.console import Console
from epl.launcher.job import Interrupts
from epl.launcher.options import Options
from epl.utils.job_variables import SECRET, SECRET_FILE
from epl.utils.version import VERSION

FLAG = "--agent"  # of epl-launch, on the command line that ssh runs
MARK = "epl-launch agent: "  # before the line; a shell's start-up files may print others


class AgentOrder(NamedTuple):
    """What an agent is to start."""

    version: str
    directory: str  # the working directory
    environ: Dict[str, str]  # what is carried over
    options: Dict[str, Any]  # of `Options`
    address: str  # of this machine, as the other machines know it
    restart: int
    numbers_log: bool  # the log directory is the default one, and gets a number where another job writes to it


class _Input:
    """Lines, and after them interrupts, from a descriptor that nobody else reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def line(self) -> str:
        """The next line.

        Raises:
          EOFError: the launcher is dead.
        """
        while b"\n" not in self._pending:
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                raise EOFError
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    @property
    def rest(self) -> bytes:
        """What was read beyond the last line."""
        return self._pending


def serve() -> int:
    """Does what the launcher says on standard input; returns the exit code, as `epl-launch` does."""
    commands = _Input(sys.stdin.fileno())
    try:
        order = AgentOrder(**json.loads(commands.line()))
        options, ports = _get_ready(order)
        if options.check:
            _answer(None, 1)
            return launcher_check.run(options)
        devices = launcher_devices.assign(len(options.local_indices), options.gpu_per_worker, os.environ)
        devices = launcher_cores.bind(devices, options.bind_cores, os.environ)
        _answer(ports[0].number if ports else None, _log_number(order, options))
        options = options._replace(**json.loads(commands.line()))
        prepared = machine.prepare(options, devices, options.log_dir, order.restart, ports)
    except EOFError:
        return 128 + signal.SIGHUP
    except (launcher_devices.DeviceError, launcher_plan.LogInUseError, OSError, _RefusedError) as error:
        print(f"epl-launch: error: {error}", file=sys.stderr)
        return 2
    console = Console(sys.stdout.buffer, redraw=False)
    console.say(f"worker(s) {', '.join(map(str, options.local_indices))}: {devices.text}")
    outcome = machine.run(options, prepared, console, Interrupts(sys.stdin.fileno(), commands.rest))
    if outcome.cause is not None:
        sys.stderr.write(f"{MARK}{outcome.cause}\n")
        sys.stderr.flush()
    return outcome.code


def _answer(port: Optional[int], log_number: int) -> None:
    line = MARK + json.dumps({"port": port, "log_number": log_number}) + "\n"
    sys.stdout.write(line)  # in one write, also where Python does not buffer
    sys.stdout.flush()


class _RefusedError(Exception):
    """The order cannot be carried out here."""


def _get_ready(order: AgentOrder) -> Tuple[Options, Dict[int, launcher_plan.Port]]:
    if order.version != VERSION:
        raise _RefusedError(
            f"EPL here is version {VERSION} ({os.path.dirname(os.path.dirname(__file__))}), and the launcher's is "
            f"{order.version}; install the same version on every machine"
        )
    try:
        os.chdir(order.directory)
    except OSError as error:
        raise _RefusedError(
            f"the working directory {order.directory} cannot be used here: {error.strerror}; the script and its "
            "directory must be at the same path on every machine"
        ) from None
    for name in (SECRET, SECRET_FILE):  # of a login here; the workers of one job need the same
        os.environ.pop(name, None)
    os.environ.update(order.environ)
    options = Options(**order.options)
    if not options.check and not options.is_module and not os.access(options.script, os.R_OK):
        raise _RefusedError(f"the training script {options.script!r} cannot be read here (looked in {order.directory})")
    ports: Dict[int, launcher_plan.Port] = {}
    if 0 in options.local_indices and not options.check:
        ports[0] = launcher_plan.reserve_port(order.address)
    return options, ports


def _log_number(order: AgentOrder, options: Options) -> int:
    """The number of the first log directory to which no other job writes here."""
    number = 1
    while True:
        directory = launcher_plan.numbered(options.log_dir or "", number)
        used = launcher_plan.log_in_use(directory, options.local_indices, order.restart)
        if used is None:
            return number
        if not order.numbers_log:
            raise launcher_plan.LogInUseError(used)
        number += 1
