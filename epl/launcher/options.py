"""The command line of epl-launch: flags, their checks, and where the launcher's arguments end and the script's begin.

This module checks what needs no look at the machine. devices.py handles devices, plan.py directories and ports.
"""

import argparse
import difflib
import importlib.machinery
import os
import re
import sys
from typing import Dict, Iterable, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from epl.launcher import config_file, foreign_options
from epl.utils import host_lists
from epl.utils.job_variables import SECRET, SECRET_FILE
from epl.utils.version import VERSION

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
# --check uses the number of workers, their devices, and --env and -x.
_NOT_OF_CHECK = ("secret_file", "task_label", "log_dir", "max_restarts", "kill_after") + (
    "debug",
    "show_all",
    "show_rank",
    "verbose",
    "dry_run",
    "no_malloc_tuning",
    "bind_cores",
)
_ENDING = ("-h", "--help", "--version")  # they print and end
_NUM_WORKERS = ("--num_workers",) + foreign_options.NUM_WORKERS + foreign_options.PER_MACHINE
# With --check, of a file of --config_file.
_OF_CHECK = _NUM_WORKERS + ("--gpu_per_worker", "-H", "--hostfile", "-x")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")  # the name of an interpreter
_SWITCHES = ("--check", "--debug", "--dry_run", "--show_all", "--verbose", "--no_malloc_tuning", "--bind_cores")

_EPILOG = """\
Everything after the script is passed to it; {task_dir} in it stands for the worker's directory. A shell script without
arguments gets that directory as $1. Each worker finds it in EPL_TASK_DIR, too.

  epl-launch --num_workers 2 --gpu_per_worker 1 train.py --epochs 3
  epl-launch -np 2 python train.py --epochs 3
  epl-launch -H node1:2,node2:2 --gpu_per_worker 4 train.py
  epl-launch --num_workers 2 --gpu_per_worker 4 --machine_rank 0 --machine_list 10.0.0.1:2222,10.0.0.2:2222 \\
      --secret_file job.key run.sh
"""


class Options(NamedTuple):
    """The checked command line."""

    check: bool
    num_workers: int  # with --check 0: as many as check.py takes
    gpu_per_worker: int
    machine_rank: Optional[int]
    hosts: Optional[List[str]]
    placement: Optional[List[str]]  # with -H or --hostfile: the machine of every worker
    ranks: Optional[List[int]]  # in an agent: the workers of its machine
    secret_file: Optional[str]
    task_label: Optional[str]
    log_dir: Optional[str]
    debug: bool
    show_all: bool
    show_ranks: Optional[List[int]]  # whose output is shown; None: that of worker 0
    verbose: bool  # whether what TensorFlow says about itself is shown
    dry_run: bool
    max_restarts: int
    kill_after: float
    malloc_tuning: bool
    bind_cores: Optional[bool]  # None: where it is good by default, see cores.py
    env: Dict[str, str]
    script: str
    is_module: bool  # whether `script` is the name of a module
    script_args: List[str]

    @property
    def local_indices(self) -> List[int]:
        """The workers that start on this machine."""
        if self.ranks is not None:
            return self.ranks
        return list(range(self.num_workers)) if self.machine_rank is None else [self.machine_rank]


class _Parser(argparse.ArgumentParser):
    """Reports errors on one line, after the usage, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"epl-launch: error: {message}\n")


def parse(argv: Sequence[str]) -> Options:
    """Reads and checks the command line; ends the process with code 2 and a message when it is wrong."""
    parser = _build_parser()
    for argument in argv:
        if "\0" in argument:
            parser.error(f"{argument!r} holds a NUL character, which no file name, argument or variable can")
    own, rest = _read_config_file(parser, *_split(parser, argv))
    script, is_module, script_args = _take_script(parser, rest)
    found = parser.parse_args(own + ["--"] + ([script] if script is not None else []))
    _check_foreign(parser, found, own)
    placement = _check_placement(parser, found)
    _check_required(parser, found)
    _check_numbers(parser, found)
    env = _check_env(parser, found.env, found.x)
    if not found.check:
        _check_script(parser, found.training_script, is_module, env)
    hosts = _check_machines(parser, found)
    return Options(
        check=found.check,
        num_workers=found.num_workers or 0,
        gpu_per_worker=found.gpu_per_worker,
        machine_rank=found.machine_rank,
        hosts=hosts,
        placement=placement,
        ranks=None,
        secret_file=_check_secret_file(parser, found.secret_file),
        task_label=found.task_label,
        log_dir=found.log_dir,
        debug=found.debug,
        show_all=found.show_all,
        show_ranks=_check_shown(parser, found),
        verbose=found.verbose,
        dry_run=found.dry_run,
        max_restarts=found.max_restarts,
        kill_after=found.kill_after,
        malloc_tuning=not found.no_malloc_tuning,
        bind_cores=found.bind_cores,
        env=env,
        script=found.training_script or "",
        is_module=is_module,
        script_args=script_args,
    )


def _build_parser() -> _Parser:
    parser = _Parser(
        prog="epl-launch",
        usage="epl-launch --num_workers N --gpu_per_worker N [options] training_script [script arguments]",
        description="Starts the processes of a training job, watches over them and ends them together.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(*_NUM_WORKERS, type=int, metavar="N", help="worker processes of the job")
    parser.add_argument(
        "--gpu_per_worker",
        type=int,
        metavar="N",
        help="GPUs of each worker; without GPUs, virtual CPU devices (with -np, -n, --nproc_per_node: 1 by default)",
    )
    parser.add_argument(
        "--machine_rank", type=int, metavar="I", help="start only the worker with this index here (default: all)"
    )
    parser.add_argument(
        "--machine_list",
        metavar="IP:PORT,...",
        help="address of every worker, used as it is (default: free ports of this machine)",
    )
    parser.add_argument(
        "-H",
        dest="host_list",
        metavar="HOST:SLOTS,...",
        help="start the workers on these machines by ssh, so many on each; gives --num_workers",
    )
    parser.add_argument("--hostfile", metavar="FILE", help="the same from a file: lines `host:slots` or `host slots=n`")
    parser.add_argument(
        "-x", action="append", default=[], metavar="VAR[=VALUE]", help="give the workers this variable; repeatable"
    )
    parser.add_argument(
        "--secret_file",
        metavar="FILE",
        help="holds the secret of the job, the same on every machine (default: EPL_JOB_SECRET or EPL_JOB_SECRET_FILE; "
        "without --machine_rank a random one)",
    )
    parser.add_argument("--task_label", metavar="TEXT", help="added to the name of the default log directory")
    parser.add_argument(
        "--log_dir",
        metavar="DIR",
        help="worker i writes DIR/i/stderr_i.log (default: experiments/{date}_{N}w{N}g_{script}[_{task_label}])",
    )
    for name, text in (
        ("--debug", "worker 0 keeps the terminal (a debugger works) and writes no log"),
        ("--show_all", "show the output of all workers, not only of worker 0"),
        ("--verbose", "show also what TensorFlow says about itself; the logs have it in any case"),
        ("--check", "check this machine, or those of -H, and the installation, with an all-reduce between each pair"),
        ("--dry_run", "print command and environment of each worker and start nothing"),
        ("--no_malloc_tuning", "leave the memory allocator of the workers as it is"),
    ):
        parser.add_argument(name, type=_boolean, nargs="?", const=True, default=False, metavar="True|False", help=text)
    parser.add_argument(
        config_file.OPTION,
        metavar="FILE",
        help="YAML or JSON with options, keys of epl.Config, a plan and the script; the command line goes before it",
    )
    parser.add_argument("--show_rank", metavar="I,...", help="show the output of these workers in place of worker 0's")
    parser.add_argument(
        "--bind_cores",
        type=_boolean,
        nargs="?",
        const=True,
        metavar="True|False",
        help="give each worker its share of the cores, and as many threads (default: where several workers share a "
        "machine without GPUs)",
    )
    parser.add_argument(
        "--max_restarts", type=int, default=0, metavar="N", help="after a failure start all workers again, N times"
    )
    parser.add_argument(
        "--kill_after",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL when workers are ended (default: 5)",
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="KEY=VALUE", help="set for the workers; repeatable"
    )
    parser.add_argument(
        "--version", action="version", version=f"epl-launch {VERSION}", help="print the version of EPL and end"
    )
    parser.add_argument(
        "training_script",
        nargs="?",
        help=".py: run by this Python, and so is `-m module`, also after the word python; anything else: run by bash",
    )
    return parser


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    raise argparse.ArgumentTypeError(f"expected True or False, got {text!r}")


def _split(parser: argparse.ArgumentParser, argv: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Cuts the command line at the script, so that the launcher does not read the script's arguments.

    Returns:
        The launcher's own arguments, switches with their value attached; the rest.
    """
    takes_value = [option for option in parser._option_string_actions if option not in _SWITCHES + _ENDING]
    own: List[str] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            break
        if not argument.startswith("-") or argument in ("-", "-m"):
            rest.insert(0, argument)
            break
        if argument.partition("=")[0] not in parser._option_string_actions:
            parser.error(_unknown(argument, parser._option_string_actions))
        if argument in _SWITCHES and rest and rest[0].lower() in _TRUE + _FALSE:
            argument += "=" + rest.pop(0)
        own.append(argument)
        if argument in takes_value and rest:
            own.append(rest.pop(0))
    late = [word.partition("=")[0] for word in rest[1:]]
    given = {word.partition("=")[0] for word in own}
    for option, same in (("--num_workers", _NUM_WORKERS + ("-H", "--hostfile")), ("--gpu_per_worker", ())):
        needed = given.isdisjoint(_ENDING + ("--check", config_file.OPTION, option)) and given.isdisjoint(same)
        if needed and option in late:
            parser.error(f"{option} stands after the script {rest[0]}; the launcher's options come before the script")
    return own, rest


def _read_config_file(parser: argparse.ArgumentParser, own: List[str], rest: List[str]) -> Tuple[List[str], List[str]]:
    """The words of the file of --config_file, if there is one, before those of the command line; the script's words."""
    path = None
    for word, following in zip(own, own[1:] + [""]):
        option, equals, value = word.partition("=")
        if option == config_file.OPTION:
            path = value if equals else following
    if path is None:
        return own, rest
    known = {option: option in _SWITCHES for option in parser._option_string_actions if option not in _ENDING}
    for option in ("--check", config_file.OPTION):
        del known[option]
    try:
        file = config_file.read(path, known, os.environ)
    except config_file.ConfigFileError as error:
        parser.error(f"{config_file.OPTION}: {error}")
    is_check = "--check" in {word.partition("=")[0] for word in own}
    words = [word for name, words in file.options if not is_check or name in _OF_CHECK for word in words]
    return words + own, rest or ([] if is_check else file.script)


def _take_script(parser: argparse.ArgumentParser, rest: List[str]) -> Tuple[Optional[str], bool, List[str]]:
    """The script or module, whether it is a module, and its arguments; `python` in front of them is left out."""
    if rest and _PYTHON.match(os.path.basename(rest[0])) and (os.sep in rest[0] or not os.path.isfile(rest[0])):
        python, rest = rest[0], rest[1:]
        if os.sep in python and os.path.abspath(python) != os.path.abspath(sys.executable):
            parser.error(
                f"scripts are run by the launcher's own Python, {sys.executable}, not by {python}; leave that out, or "
                f"start the launcher by it: {python} -m epl.utils.launcher"
            )
        while rest and rest[0] == "-u":  # so it is run in any case
            rest = rest[1:]
        if rest and rest[0].startswith("-") and rest[0] != "-m":
            parser.error(
                f"{rest[0]} is an option of Python, and of these -u and -m alone are understood; leave `python` and it "
                "out, or set Python's variable for it by --env"
            )
    if not rest:
        return None, False, []
    if rest[0] != "-m":
        return rest[0], False, rest[1:]
    if len(rest) < 2 or rest[1].startswith("-"):
        parser.error("-m comes last of the launcher's options, and needs the name of a module")
    return rest[1], True, rest[2:]


def _check_foreign(parser: argparse.ArgumentParser, found: argparse.Namespace, own: Sequence[str]) -> None:
    """Gives workers one device if their number is given as to another launcher; refuses it where it means another."""
    given = {word.partition("=")[0] for word in own}
    for option in foreign_options.PER_MACHINE:
        if option in given and (found.host_list or found.hostfile or found.machine_rank is not None):
            parser.error(
                f"{option} counts the workers of each machine; give them as slots, -H node1:4,node2:4, or give "
                "--num_workers, the workers of the whole job"
            )
    if found.gpu_per_worker is None and given & set(foreign_options.NUM_WORKERS + foreign_options.PER_MACHINE):
        found.gpu_per_worker = 1


def _check_shown(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Optional[List[int]]:
    if found.show_rank is None:
        return None
    if found.show_all:
        parser.error("--show_rank does not go together with --show_all; leave one of them out")
    shown, last = [], found.num_workers - 1
    for word in found.show_rank.split(","):
        if not word.strip().isdigit() or int(word) > last:
            parser.error(f"--show_rank names workers from 0 to num_workers - 1 = {last}, as in 1,3; got {word!r}")
        shown.append(int(word))
    return sorted(set(shown))


def _unknown(argument: str, known: Iterable[str]) -> str:
    option = argument.partition("=")[0]
    if option in foreign_options.INSTEAD:
        return f"unknown option {option}, which other launchers have. Here {foreign_options.INSTEAD[option]}."
    nearest = difflib.get_close_matches(option, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "epl-launch --help lists the options"
    return f"unknown option {option}; {hint} Options of the script come after it."


def _check_required(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuses a command line without what the job needs; `--check` needs nothing, and starts no script."""
    if found.check:
        names = {"training_script": "script"}
        for option in ("machine_rank", "machine_list", "training_script"):
            if getattr(found, option) is not None:
                name = names.get(option, f"--{option}")
                parser.error(f"--check takes no {name}; leave it out (-H checks several machines)")
        for option in _NOT_OF_CHECK:
            if getattr(found, option) != parser.get_default(option):
                parser.error(f"--check starts no job and takes no --{option}; leave it out")
        found.gpu_per_worker = 1 if found.gpu_per_worker is None else found.gpu_per_worker
    required = ("--num_workers", "--gpu_per_worker") if not found.check else ()
    missing = [name for name in required if getattr(found, name[2:]) is None]
    if found.training_script is None and not found.check:
        missing.append("training_script")
    if missing:
        parser.error("the following arguments are required: " + ", ".join(missing))


def _check_numbers(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    if found.num_workers is not None and found.num_workers < 1:
        parser.error(f"--num_workers must be at least 1, got {found.num_workers}")
    if found.gpu_per_worker < 1:
        parser.error(
            f"--gpu_per_worker must be at least 1, got {found.gpu_per_worker}; to train without GPUs set "
            'CUDA_VISIBLE_DEVICES="" and give the number of virtual CPU devices'
        )
    if found.max_restarts < 0:
        parser.error(f"--max_restarts must not be negative, got {found.max_restarts}")
    if not 0 <= found.kill_after < float("inf"):
        parser.error(f"--kill_after must be a number of seconds, got {found.kill_after}")


def _check_script(parser: argparse.ArgumentParser, script: str, is_module: bool, env: Dict[str, str]) -> None:
    if is_module:
        # As `python -m` looks for it. A package is not imported here: that may take seconds.
        package, path = script.partition(".")[0], [os.getcwd()] + sys.path
        if "PYTHONPATH" not in env and importlib.machinery.PathFinder.find_spec(package, path) is None:
            parser.error(f"there is no module {package} for `-m {script}` (looked in {os.getcwd()} and in sys.path)")
        return
    if not os.path.isfile(script):
        what = "is a directory" if os.path.isdir(script) else "does not exist"
        parser.error(f"the training script {script!r} {what} (looked in {os.getcwd()})")
    if not os.access(script, os.R_OK):
        parser.error(f"the training script {script!r} cannot be read")


def _check_machines(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Optional[List[str]]:
    rank = found.machine_rank
    if rank is not None and not 0 <= rank < found.num_workers:
        parser.error(f"--machine_rank must be from 0 to num_workers - 1 = {found.num_workers - 1}, got {rank}")
    if rank is not None and found.bind_cores:
        parser.error(
            "--bind_cores divides the cores among the workers that one launcher starts, and with --machine_rank that "
            "is one; leave it out, or start the launcher by `taskset -c CPUS epl-launch ...`"
        )
    if found.machine_list is None:
        if rank is not None and found.num_workers > 1:
            parser.error(
                f"--machine_rank {rank} starts one worker of {found.num_workers} here, and without --machine_list the "
                "others could not find it; give --machine_list ip:port,... with one address per worker"
            )
        return None
    hosts = [host.strip() for host in found.machine_list.split(",")]
    if len(hosts) != found.num_workers:
        parser.error(f"--machine_list has {len(hosts)} address(es), --num_workers is {found.num_workers}")
    for host in hosts:
        match = re.match(r"(\[[^\]\s]+\]|[^:\s\[\]]+):(\d+)$", host)
        if not match or not 1 <= int(match.group(2)) <= 65535:
            parser.error(f"--machine_list: {host!r} is not ip:port")
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        parser.error(f"--machine_list names {', '.join(twice)} more than once; each worker needs a port of its own")
    return hosts


def _check_placement(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Optional[List[str]]:
    """The machine of each worker, and the number of workers if it was not given; None without -H and --hostfile."""
    source, text = "-H", found.host_list
    if found.hostfile is not None:
        source = f"--hostfile {found.hostfile}"
        try:
            with open(found.hostfile, encoding="utf-8", errors="replace") as lines:
                text = lines.read()
        except OSError as error:
            parser.error(f"{source}: {error.strerror} (looked in {os.getcwd()})")
    if text is None:
        return None
    for option in ("machine_rank", "machine_list", "debug") + (("host_list",) if found.hostfile is not None else ()):
        given = getattr(found, option)
        if given is not None and given is not False:
            parser.error(f"{source} does not go together with {'-H' if option == 'host_list' else '--' + option}")
    try:
        hosts = host_lists.parse_hosts(text)
        if found.num_workers is None:
            found.num_workers = sum(host.slots or 1 for host in hosts)
        return host_lists.fill(hosts, found.num_workers) if found.num_workers > 0 else []
    except ValueError as error:
        parser.error(f"{source}: {error}")


def _check_secret_file(parser: argparse.ArgumentParser, path: Optional[str]) -> Optional[str]:
    if path is not None and not os.access(path, os.R_OK):
        parser.error(f"--secret_file: {path!r} cannot be read (looked in {os.getcwd()})")
    return None if path is None else os.path.abspath(path)


def _check_env(parser: argparse.ArgumentParser, settings: List[str], exported: List[str]) -> Dict[str, str]:
    """What `--env` and `-x` set; `-x VAR` takes the value from the launcher's environment."""
    env: Dict[str, str] = {}
    for option, setting in [("-x", word) for word in exported] + [("--env", word) for word in settings]:
        key, equals, value = setting.partition("=")
        if not key or (not equals and option == "--env"):
            parser.error(f"{option}: {setting!r} is not KEY=VALUE")
        if key == SECRET:
            parser.error(f"{option} {key}: every user of this machine can read a command line; use --secret_file")
        if key == SECRET_FILE:
            parser.error(f"{option} {key}: give the file by --secret_file {value}")
        if not equals and key not in os.environ:
            parser.error(f"-x {key}: the variable is not set here; set it, or give -x {key}=VALUE")
        env[key] = value if equals else os.environ[key]
    return env
