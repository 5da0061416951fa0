"""`epl-launch --check`: what of this machine and this installation works, and the remedy for what does not.

    ok    works        FAIL  does not, with a remedy; the exit code is 1        --  left out, and not needed here

Everything that needs TensorFlow runs in processes of its own, so that one that cannot be imported is a finding like
others. epl/runtime/self_check.py is what these processes run.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from epl.launcher import devices as launcher_devices
from epl.launcher import plan, processes, secret
from epl.launcher.options import Options
from epl.utils.version import INSTALL_PROTOBUF, KNOWN_TENSORFLOWS, VERSION, how_to_install, is_known

ALL_REDUCE = "all-reduce of 1 MB"  # the subject of its findings
LIMITS = {"EPL_COMMUNICATION_START_TIMEOUT": "60", "EPL_COMMUNICATION_TIMEOUT": "60"}  # of its workers
_MOST_WORKERS = 2  # without --num_workers
_SECONDS = 120.0  # for one program, or the workers of all pairs together
_SEE = "docs/troubleshooting.md has the remedies for many errors"
_AVX = "the processor lacks an instruction that this TensorFlow needs (AVX): use another machine, or build TensorFlow"
_REBUILD = (
    "in a checkout `make build`; else, after TensorFlow and with g++ and make, "
    "`EPL_NATIVE=on pip install --force-reinstall --no-deps .`"
)
_POLL_SECONDS = 0.05
_FOLLOW_SECONDS = 5.0  # for the other workers to end after one has failed
# Docker gives a container 64 MB, in which NCCL cannot start.
_NCCL_SHARED_MB = 128
_VERSIONS = (
    ("numpy", "import numpy as package; print(package.__version__)"),
    ("protobuf", "import google.protobuf as package; print(package.__version__)"),
    # A shape that is known only at run time: a numpy that is too new shows itself here.
    (
        "TensorFlow",
        "import tensorflow.compat.v1 as tf; graph = tf.Graph().as_default(); graph.__enter__(); "
        "tf.zeros([tf.shape(tf.placeholder(tf.int32, [None]))[0], 2]); print(tf.VERSION)",
    ),
)
# A part of an error's text, and what to do.
_REMEDIES = (
    ("Descriptors cannot", INSTALL_PROTOBUF),
    ("symbolic Tensor", 'pip install "numpy<1.19"'),
    ("No module named", how_to_install(sys.version_info[:2])),
    ("bytes of shared memory", "give the container more memory and /dev/shm: docker run --shm-size=2g"),
    ("NCCL", "NCCL_DEBUG=INFO says more; each worker needs a GPU of its own"),
)


class Finding(NamedTuple):
    """The result of one check."""

    mark: str  # "ok", "FAIL" or "--"
    subject: str
    text: str
    remedy: str = ""

    def describe(self) -> str:
        """One line, and one more for the remedy."""
        line = f"  {self.mark:<4}  {self.subject:<18} {self.text}"
        return line + (f"\n{'':26}remedy: {self.remedy}" if self.remedy else "")


def run(options: Options) -> int:
    """Prints the findings as they come.

    Returns:
      The exit code: 1 if one of them is a failure, else 0; 130 after Ctrl-C.
    """
    print(f"epl-launch --check: EPL {VERSION}, {sys.executable}, {platform.node()}", flush=True)
    failures = 0
    try:
        for finding in _findings(_with_workers(options)):
            print(finding.describe(), flush=True)
            failures += finding.mark == "FAIL"
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print(f"{failures} failure(s)" if failures else "all is well")
    return 1 if failures else 0


def _with_workers(options: Options) -> Options:
    if options.num_workers:
        return options
    try:
        count = launcher_devices.workers_that_fit(_MOST_WORKERS, options.gpu_per_worker, os.environ)
    except launcher_devices.DeviceError:
        count = 1  # a finding says so
    return options._replace(num_workers=count)


def _findings(options: Options) -> Iterator[Finding]:
    yield Finding("ok", "Python", platform.python_version())
    usable = True
    for name, code in _VERSIONS:
        finding = _package(name, code, options.env)
        usable = usable and finding.mark == "ok"
        yield finding
    facts: Optional[Dict[str, Any]] = None
    if usable:
        facts, problem = _ask("facts", options.env)
        if facts is None:
            yield _failure("EPL", problem)
    devices, finding = _devices(options, facts)
    yield finding
    on_gpus = devices is not None and bool(devices[0]["CUDA_VISIBLE_DEVICES"])
    if facts is not None:
        yield from _built_in(facts, on_gpus)
    ports, finding = _ports(options.num_workers)
    yield finding
    yield _shared_memory(on_gpus)
    if facts is None or facts["native"] or devices is None or ports is None:
        yield Finding("--", ALL_REDUCE, "not tried, because of the failures above")
    else:
        yield from _pairs(devices, ports, options.env)


def _package(name: str, code: str, given: Mapping[str, str]) -> Finding:
    version, problem = _output([sys.executable, "-c", code], _environment(given))
    if version is None:
        return _failure(name, problem)
    if name == "TensorFlow" and not is_known(version):
        remedy = f"EPL needs TensorFlow {KNOWN_TENSORFLOWS}. {how_to_install(sys.version_info[:2])}"
        return Finding("FAIL", name, version, remedy)
    return Finding("ok", name, version)


def _built_in(facts: Mapping[str, Any], on_gpus: bool) -> Iterator[Finding]:
    if facts["native"]:
        yield Finding("FAIL", "native collectives", facts["native"], _REBUILD)
    else:
        transports = ", ".join(facts["transports"])
        yield Finding("ok", "native collectives", f"core and TensorFlow ops; transports: {transports}")
    if facts["missing"]:
        lacks_nccl = on_gpus and "nccl" not in facts["transports"]
        remedy = "install NCCL 2 (libnccl.so.2) where the loader finds it" if lacks_nccl else ""
        yield Finding("FAIL" if lacks_nccl else "--", "left out", facts["missing"], remedy)
    built = "TensorFlow is built with CUDA" if facts["cuda"] else "TensorFlow is built without CUDA"
    if facts["gpus"] and not facts["cuda"]:
        remedy = "install a TensorFlow for GPUs; docs/install.md, GPUs"
        yield Finding("FAIL" if on_gpus else "--", "CUDA", f"{facts['gpus']} GPU(s), but {built}", remedy)
    else:
        yield Finding("ok" if facts["cuda"] else "--", "CUDA", built)


def _devices(
    options: Options, facts: Optional[Mapping[str, Any]]
) -> Tuple[Optional[Sequence[Mapping[str, str]]], Finding]:
    try:
        devices = launcher_devices.assign(options.num_workers, options.gpu_per_worker, os.environ)
    except launcher_devices.DeviceError as error:
        return None, Finding("FAIL", "devices", str(error), "give --num_workers and --gpu_per_worker of your job")
    return devices.environments, Finding("ok", "devices", f"{options.num_workers} worker(s), {devices.text}")


def _ports(count: int) -> Tuple[Optional[List[plan.Port]], Finding]:
    try:
        ports = plan.reserve_ports(count)
    except OSError as error:
        remedy = "bring the loopback interface up (`ip link set lo up`), or free ports of net.ipv4.ip_local_port_range"
        return None, Finding("FAIL", "ports", f"no {count} free port(s) of 127.0.0.1: {error}", remedy)
    numbers = ", ".join(str(port.number) for port in ports)
    return ports, Finding("ok", "ports", f"{count} free on 127.0.0.1, such as {numbers}")


def _shared_memory(on_gpus: bool) -> Finding:
    try:
        room = os.statvfs("/dev/shm")
    except OSError as error:
        size, text = 0, f"cannot be used: {error.strerror}"
    else:
        size = room.f_bavail * room.f_frsize // 1000000
        text = f"{size} MB free of {room.f_blocks * room.f_frsize // 1000000} MB"
    if not on_gpus:
        return Finding("ok", "/dev/shm", text + "; not needed without GPUs")
    if size < _NCCL_SHARED_MB:
        remedy = "docker run --shm-size=2g, or mount -o remount,size=2g /dev/shm"
        return Finding("FAIL", "/dev/shm", f"{text}; NCCL needs more than {_NCCL_SHARED_MB} MB", remedy)
    return Finding("ok", "/dev/shm", text)


def _pairs(devices: Sequence[Mapping[str, str]], ports: List[plan.Port], given: Mapping[str, str]) -> Iterator[Finding]:
    if len(ports) == 1:
        text = "one worker has nobody to reduce with; with devices for two give --num_workers 2"
        yield Finding("--", ALL_REDUCE, text)
        return
    pairs, problem = _time_pairs(devices, ports, given)
    for pair in pairs or []:
        yield of_pair(pair, "workers {} and {}".format(*pair["workers"]))
    if pairs is None:
        yield _failure(ALL_REDUCE, problem)


def of_pair(pair: Mapping[str, Any], names: str) -> Finding:
    """The finding of an all-reduce, as epl/runtime/self_check.py tells it of the two workers that `names` says."""
    if pair["error"]:
        return _failure(ALL_REDUCE, f"{names}: {pair['error']}")
    return Finding("ok", ALL_REDUCE, f"{names}: {pair['ms']:.2f} ms ({pair['transport']})")


def _time_pairs(
    devices: Sequence[Mapping[str, str]], ports: List[plan.Port], given: Mapping[str, str]
) -> Tuple[Optional[List[Dict[str, Any]]], str]:
    """What worker 0 of a job on 127.0.0.1 says about all pairs; or None, and why."""
    hosts = [f"127.0.0.1:{port.number}" for port in ports]
    common = _environment({})
    common.update(LIMITS, **secret.random_secret())
    programs = []
    for index, (own, port) in enumerate(zip(devices, ports)):
        environ = dict(common, TF_CONFIG=plan.tf_config(hosts, index), EPL_LISTEN_FD=str(port.fd))
        environ.update(own, **given)
        programs.append(_Program(_program("pairs"), environ, port.fd))
    plan.close_all(port.fd for port in ports)
    answer, problem = _answer(programs)
    return (None, problem) if answer is None else (json.loads(answer), "")


def _ask(what: str, given: Mapping[str, str]) -> Tuple[Optional[Dict[str, Any]], str]:
    text, problem = _output(_program(what), _environment(given))
    return (None, problem) if text is None else (json.loads(text), "")


def _program(what: str) -> List[str]:
    return [sys.executable, "-m", "epl.runtime.self_check", what]


def _environment(given: Mapping[str, str]) -> Dict[str, str]:
    """The launcher's environment as a process of no job, with what --env and -x give."""
    own = plan.OWN_VARIABLES + ("TF_CONFIG",)
    return {**{key: value for key, value in os.environ.items() if key not in own}, **given}


def _output(argv: Sequence[str], environ: Mapping[str, str]) -> Tuple[Optional[str], str]:
    """The last line that a program prints, or None and why."""
    return _answer([_Program(argv, environ)])


class _Program:
    """A program that runs; what it prints goes to files, so that none waits for a reader."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], descriptor: Optional[int] = None) -> None:
        self._output = tempfile.TemporaryFile("w+")
        self._errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            pass_fds=() if descriptor is None else (descriptor,),
            preexec_fn=processes.die_with_parent,
        )

    def answer(self) -> Tuple[Optional[str], str]:
        """The last line that it printed before it ended, or None and why."""
        self._output.seek(0)
        self._errors.seek(0)
        lines = self._output.read().splitlines()
        if self.process.returncode == 0 and lines:
            return lines[-1], ""
        return None, _why(self.process.returncode, self._errors.read())


def _answer(programs: Sequence[_Program]) -> Tuple[Optional[str], str]:
    """What the first of programs that work together prints, or None and why: that of the one that fails first."""
    deadline = time.monotonic() + _SECONDS
    failed: Optional[_Program] = None
    running = list(programs)
    while running and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        ended = [program for program in running if program.process.poll() is not None]
        running = [program for program in running if program not in ended]
        bad = [program for program in ended if program.process.returncode]
        if bad and failed is None:
            failed, deadline = bad[0], min(deadline, time.monotonic() + _FOLLOW_SECONDS)
    for program in running:
        program.process.kill()
        program.process.wait()
    if failed is None and running:
        return None, f"no answer within {_SECONDS:.0f} s"
    return (failed or programs[0]).answer()


def _why(code: int, errors: str) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in errors.splitlines() if line.strip()]
    # The last line of a traceback that is not indented begins the exception's text; more lines may follow it.
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(("Traceback", "  ")):
            return " ".join(lines[index + 1 :]) or lines[index].strip()
    return " ".join(lines[-1:]) or f"exit code {code}, and no error text"


def _failure(subject: str, problem: str) -> Finding:
    if problem == "killed by SIGILL":
        return Finding("FAIL", subject, problem, _AVX)
    for part, remedy in _REMEDIES:
        if part in problem:
            return Finding("FAIL", subject, problem, remedy)
    return Finding("FAIL", subject, problem, _SEE)
