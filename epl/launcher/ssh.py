"""One run of a job on several machines: an agent on each by ssh, their output, and one end for all.

                         ,--ssh--> agent on node1 --> workers 0, 1
    epl-launch -H ... --<                              worker 0 listens at the port that its agent has reserved
                         `--ssh--> agent on node2 --> workers 2, 3

The agent of a machine ends its workers when its input ends, so that they end with the launcher, however it dies. This
module starts the agents and decides when all end; agent.py is the other end. A machine with the name of this one gets
its agent without ssh.
"""

import importlib.util
import json
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Dict, List, Mapping, Optional, Sequence, Tuple

from epl.launcher import agent, plan, processes, secret
from epl.launcher.console import Console
from epl.launcher.job import CAUSE_SECONDS, END, KILL, Interrupts, Outcome, signal_name
from epl.launcher.options import Options
from epl.utils.version import VERSION

# What the workers of every machine get of the launcher's environment, besides the variables of -x.
_CARRIED = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "GLIBC_TUNABLES", "CUDA_VISIBLE_DEVICES")
_CARRIED_PREFIXES = ("EPL_", "PYTHON", "TF_", "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "MALLOC_", "CUDA_")
_CONNECT_SECONDS = 20
_READY_SECONDS = 60.0  # from the start to the answer of every agent
_END_SECONDS = 10.0  # beyond --kill_after, for an agent to end after it was told to
_KILL_SECONDS = 2.0  # for an agent to end after it was told to kill its workers
_POLL_SECONDS = 0.05
_LOOPBACK = "127.0.0.1"
_LOCAL = ("localhost", _LOOPBACK)
_SSH_FAILED = 255


class SshError(Exception):
    """The machines cannot be used as asked."""


class RemoteJob:
    """The runs of one job on several machines.

    Attributes:
      machines: the machines and the workers of each.
    """

    def __init__(self, options: Options, console: Console, interrupts: Interrupts) -> None:
        """Prepares the runs.

        Args:
          options: the command line; `placement` has the machine of every worker.
          console: shows output and messages.
          interrupts: the signals that end the run.

        Raises:
          SshError: ssh is missing, or a name means another machine on each machine.
        """
        self._options = options._replace(log_dir=options.log_dir or plan.default_log_dir(options))
        self._numbers_log = options.log_dir is None
        self._console = console
        self._interrupts = interrupts
        self.machines = machines_of(options.placement or [])
        if len(self.machines) > 1 and set(_LOCAL) & {_address(host) for host in self.machines}:
            raise SshError(
                "localhost stands next to other machines in the list of hosts, and means another one on each; give the "
                f"name by which the others reach this one ({socket.gethostname()}?)"
            )
        if shutil.which("ssh") is None and not all(map(_is_here, self.machines)):
            raise SshError("there is no ssh on PATH; install OpenSSH's client")
        self._program = _program()
        # Not in TMPDIR: the name of a socket has at most 107 characters, of which ssh needs 58.
        self._folder = tempfile.mkdtemp(prefix="epl-ssh-", dir="/tmp")
        self._connected = False

    def run(self, restart: int) -> Outcome:
        """Runs the job once; returns when all agents have ended.

        Args:
          restart: how often the job was started again before.
        """
        environ = secret.give(carried(os.environ), secret.draw(self._options))
        alone = len(self.machines) == 1
        self._connected = True
        agents = []
        for host, ranks in self.machines.items():
            options = self._options._replace(ranks=ranks)._asdict()
            address = _LOOPBACK if alone else _address(host)
            order = agent.AgentOrder(VERSION, os.getcwd(), environ, options, address, restart, self._numbers_log)
            agents.append(_Agent(host, address, ranks, self._command(host), order))
        run = _Run(agents, self._options, self._console, self._interrupts)
        outcome = run.run()
        self._options, self._numbers_log = self._options._replace(log_dir=run.log_dir), False  # for a restart
        return outcome

    def close(self) -> None:
        """Closes the connections that ssh keeps."""
        for host in self.machines:
            if self._connected and not _is_here(host):
                try:
                    subprocess.run(
                        ["ssh", "-o", self._control_path(), "-O", "exit", host],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        timeout=5,
                    )
                except (OSError, subprocess.TimeoutExpired):
                    pass  # it ends by itself, by ControlPersist
        shutil.rmtree(self._folder, ignore_errors=True)

    def describe(self) -> str:
        """What would be started, in words."""
        lines = []
        for host, ranks in self.machines.items():
            lines += [
                f"# worker(s) {_list(ranks)} on {host}",
                " ".join(shlex.quote(word) for word in self._command(host)),
            ]
        names = ", ".join(sorted(carried(os.environ)))
        return "\n".join(lines + [f"# in {os.getcwd()}, with these variables: {names}"])

    def _control_path(self) -> str:
        return f"ControlPath={self._folder}/%C"

    def _command(self, host: str) -> List[str]:
        own = [sys.executable, self._program, agent.FLAG]
        if _is_here(host):
            return own
        settings = ["BatchMode=yes", f"ConnectTimeout={_CONNECT_SECONDS}", "ServerAliveInterval=15"]
        # One connection for all restarts: the second run needs no second authentication.
        settings += ["ControlMaster=auto", self._control_path(), "ControlPersist=60"]
        options = [word for setting in settings for word in ("-o", setting)]
        return ["ssh", "-T"] + options + [host, "exec " + " ".join(shlex.quote(word) for word in own)]


class _Agent:
    """A running agent, with or without ssh.

    Attributes:
      port: that of worker 0, reserved on its machine; None for other machines.
      log_number: that of the first log directory that is free there.
      ready: whether the agent has answered.
      told: whether it has the addresses, and so starts its workers.
      cause: the worker of another machine whose failure caused that of this part, if there is one.
    """

    def __init__(self, host: str, address: str, ranks: List[int], argv: List[str], order: agent.AgentOrder) -> None:
        self.host = host
        self.address = address
        self.ranks = ranks
        self.port: Optional[int] = None
        self.log_number = 1
        self.ready = False
        self.told = False
        self.ended = False
        self.cause: Optional[int] = None
        self._pending = {"output": b"", "errors": b""}
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the launcher alone
            preexec_fn=processes.die_with_parent,
        )
        self._streams = {"output": _descriptor(self.process.stdout), "errors": _descriptor(self.process.stderr)}
        for descriptor in self._streams.values():
            os.set_blocking(descriptor, False)
        self._send(json.dumps(order._asdict()).encode() + b"\n")

    @property
    def descriptors(self) -> List[int]:
        """What the agent writes to, as long as it is open."""
        return list(self._streams.values())

    def start_workers(self, hosts: Sequence[str], log_dir: str) -> None:
        """Gives the agent the addresses of all workers, and the directory of their logs."""
        self.told = True
        self._send(json.dumps({"hosts": list(hosts), "log_dir": log_dir}).encode() + b"\n")

    def end(self, how: bytes = END) -> None:
        """Has the agent end its workers, or kill them (`KILL`)."""
        if self.told:
            self._send(how)
        else:
            self.close()

    def close(self) -> None:
        """Closes the agent's input, at whose end it ends its workers."""
        try:
            if self.process.stdin is not None:
                self.process.stdin.close()
        except OSError:
            pass  # the agent is gone, which its exit code says

    def read(self) -> Tuple[bytes, List[str]]:
        """What the agent has written since the last call: the output of workers, and lines of messages."""
        for name, descriptor in list(self._streams.items()):
            while name in self._streams:
                try:
                    data = os.read(descriptor, 1 << 16)
                except BlockingIOError:
                    break
                if not data:
                    del self._streams[name]
                self._pending[name] += data
        if not self.ready:
            self._find_answer()
        *lines, self._pending["errors"] = self._pending["errors"].split(b"\n")
        output = b""
        if self.ready:  # before, a part of the agent's line may have come
            output, self._pending["output"] = self._pending["output"], b""
        messages = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
        causes = [line for line in messages if line.startswith(agent.MARK)]
        if causes:
            self.cause = int(causes[0][len(agent.MARK) :])
        return output, [line for line in messages if line not in causes]

    @property
    def unfinished(self) -> str:
        """The last message, as long as its line has no end."""
        return self._pending["errors"].decode("utf-8", "replace").strip()

    def _find_answer(self) -> None:
        """Drops what the start-up files of a shell print, up to the agent's line."""
        *lines, rest = self._pending["output"].split(b"\n")
        for number, line in enumerate(lines):
            if line.startswith(agent.MARK.encode()):
                answer = json.loads(line[len(agent.MARK) :].decode())
                self.port, self.log_number = answer["port"], answer["log_number"]
                self.ready = True
                rest = b"\n".join(lines[number + 1 :] + [rest])
                break
        self._pending["output"] = rest

    def _send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # gone, which its exit code says; or closed


class _Run:
    """The loop over the agents of one run.

    Attributes:
      log_dir: the directory of the logs, on every machine.
    """

    def __init__(self, agents: List[_Agent], options: Options, console: Console, interrupts: Interrupts) -> None:
        self._agents = agents
        self._options = options
        self._console = console
        self._interrupts = interrupts
        self.log_dir = options.log_dir or ""
        self._code = 0
        self._failed: List[_Agent] = []  # in the order in which they ended
        self._wait_until = 0.0  # for the part that failed first
        self._interrupted: Optional[int] = None
        self._began = time.monotonic()
        self._deadline: Optional[float] = None  # for the agents to end, once they were told to

    def run(self) -> Outcome:
        """Runs until all agents have ended."""
        while not all(one.ended for one in self._agents):
            descriptors = [descriptor for one in self._agents for descriptor in one.descriptors]
            ready = select.select(descriptors + self._interrupts.watched, [], [], _POLL_SECONDS)[0]
            self._interrupts.take(ready)
            self._interrupt()
            for one in self._agents:
                has_ended = one.process.poll() is not None  # asked first: what it wrote before is read below
                self._show(one)
                if has_ended and not one.ended:
                    self._take_end(one)
            self._judge()
            self._start_workers()
            self._keep_time()
            self._console.show_partial_lines()
        self._console.show_partial_lines(everything=True)
        refused = self._code != 0 and not any(one.told for one in self._agents)
        return Outcome(self._code, self._interrupted is not None, refused)

    def _show(self, one: _Agent) -> None:
        output, messages = one.read()
        if output:
            self._console.feed("", output, source=one.host)
        for message in messages:
            prefix = "epl-launch: "
            self._console.say(f"{one.host}: {message[len(prefix) :] if message.startswith(prefix) else message}")

    def _start_workers(self) -> None:
        """Tells all agents the addresses, once every one has answered: nothing starts while a machine is missing."""
        if self._deadline is not None or self._agents[0].told or not all(one.ready for one in self._agents):
            return
        by_rank = {rank: one for one in self._agents for rank in one.ranks}
        port = by_rank[0].port or 0
        # Only worker 0 listens; the number of another one is a name.
        hosts = [f"{by_rank[rank].address}:{1 + (port - 1 + rank) % 65535}" for rank in sorted(by_rank)]
        self.log_dir = plan.numbered(self.log_dir, max(one.log_number for one in self._agents))
        for one in self._agents:
            one.start_workers(hosts, self.log_dir)

    def _take_end(self, one: _Agent) -> None:
        one.ended = True
        one.close()
        if one.unfinished:
            self._console.say(f"{one.host}: {one.unfinished}")
        code = one.process.returncode
        if code or not one.told:  # without the addresses it has started no worker
            self._failed.append(one)
            self._wait_until = self._wait_until or time.monotonic() + CAUSE_SECONDS

    def _judge(self) -> None:
        """Decides which part of the job failed, once that which the first one names as the cause has ended, too."""
        if not self._failed or self._deadline is not None:
            return
        one = self._failed[0]
        for other in self._agents:
            if one.cause is not None and one.cause in other.ranks:
                if not other.ended and time.monotonic() < self._wait_until:
                    return
                one = other if other in self._failed else one
                break
        code = one.process.returncode
        self._fail((code if code > 0 else 128 - code) if code else 1, _reason(one, code))

    def _fail(self, code: int, text: str) -> None:
        self._code = code
        self._console.say(text)
        if not all(one.ended for one in self._agents):
            self._console.say("ending the other workers")
        self._end_all()

    def _interrupt(self) -> None:
        seen = self._interrupts.seen
        if seen and self._interrupted is None:
            self._interrupted = seen[0]
            self._code = 128 + seen[0]
            self._console.say(f"{signal_name(seen[0])}: ending the workers (once more kills them at once)")
            self._end_all()
        elif len(seen) > 1:
            self._end_all(KILL)
            del seen[1:]

    def _end_all(self, how: bytes = END) -> None:
        for one in self._agents:
            if not one.ended:
                one.end(how)
        seconds = _KILL_SECONDS if how == KILL else self._options.kill_after + _END_SECONDS
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _keep_time(self) -> None:
        silent = [one.host for one in self._agents if not one.ready]
        if self._deadline is None and silent and time.monotonic() - self._began > _READY_SECONDS:
            self._fail(1, f"no answer from {', '.join(silent)} in {_READY_SECONDS:.0f} s")
        if self._deadline is not None and time.monotonic() > self._deadline:
            for one in self._agents:
                if not one.ended:
                    self._console.say(f"{one.host} does not end; closing the connection, at which its workers end")
                    one.process.kill()
            self._deadline = time.monotonic() + _END_SECONDS


def _reason(one: _Agent, code: int) -> str:
    """Why an agent has ended, and what to do where it has not even started."""
    how = f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
    if code == 0:
        return (
            f"the part of the job on {one.host} ended with exit code 0 before it started a worker: does ssh run "
            "another command there (command= in authorized_keys, ForceCommand), or does a start-up file of the shell "
            "end it?"
        )
    if one.ready:
        return f"the part of the job on {one.host} (worker(s) {_list(one.ranks)}) ended: {how}"
    if code == _SSH_FAILED:
        return (
            f"ssh to {one.host} failed, its message is above: `ssh -o BatchMode=yes {one.host} true` must work here "
            "without a password or a question"
        )
    return (
        f"the part of the job on {one.host} could not start ({how}, messages are above): {sys.executable} and "
        f"{_program()} must be there, at the same path on every machine"
    )


def machines_of(placement: Sequence[str]) -> Dict[str, List[int]]:
    """The workers of each machine, from the machine of each worker."""
    machines: Dict[str, List[int]] = {}
    for rank, host in enumerate(placement):
        machines.setdefault(host, []).append(rank)
    return machines


def carried(environ: Mapping[str, str]) -> Dict[str, str]:
    """What the workers of every machine get of the launcher's environment."""
    own = plan.OWN_VARIABLES + ("TF_CONFIG",)
    return {
        name: value
        for name, value in environ.items()
        if (name in _CARRIED or name.startswith(_CARRIED_PREFIXES)) and name not in own
    }


def _program() -> str:
    """The file that starts the launcher without TensorFlow."""
    spec = importlib.util.find_spec("epl_launch")
    if spec is None or spec.origin is None:
        raise SshError(f"epl_launch.py is not installed for {sys.executable}: run `pip install .`")
    return os.path.abspath(spec.origin)


def _address(host: str) -> str:
    """The name of a machine by which others reach it: "node1" of "me@node1"."""
    return host.rpartition("@")[2]


def _is_here(host: str) -> bool:
    return host in _LOCAL + (socket.gethostname(),)


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _descriptor(stream: Optional[IO[bytes]]) -> int:
    assert stream is not None
    return stream.fileno()
