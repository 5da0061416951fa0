"""The command `epl-plan`: how a script would train on a job, without training.

    epl-plan --devices 4x8 train.py --batch_size 32
        the script runs, in this process, until it would train
        tables of its plan, as epl.explain() prints them; the strategy, for `auto.plan_file`

What the script prints goes to standard error, so that standard output has the plan alone.
"""

import argparse
import contextlib
import json
import logging
import os
import re
import runpy
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from epl.config.keys import KEY_BY_NAME, env_name
from epl.launcher.notices import CPP_VARIABLES, NoticeFilter
from epl.ops.imagined_job import ImaginedJob
from epl.planner.machine import presets
from epl.planner.machine.files import read_machine
from epl.planner.machine.job_devices import job_of_machine, machine_of_job
from epl.utils.errors import MachineError
from epl.utils.whole_file import write_whole

if TYPE_CHECKING:
    from epl.parallel.plan.strategy import Strategy
    from epl.planner.report.simulated_plan import SimulatedPlan

PLANNED = 0
NO_PLAN = 1  # EPL refuses the script as it is
WRONG_USAGE = 2
SCRIPT_FAILED = 3

SEARCH_LOGGER = "epl.search"  # tells what a search has found so far, at level INFO
CAPACITY_LOGGER = "epl.search.capacity"  # of a search for enough devices alone

_PORT = 1  # in the names of workers; nobody listens there
_OF_DEVICES = ("cluster.num_virtual_devices", "cluster.device_type")  # what --devices sets
_DEVICES = re.compile(r"(?:([0-9]+)x)?([0-9]+)")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command.

    Args:
      argv: the command line without the program's name; None: that of this process.

    Returns:
      The exit code: PLANNED, NO_PLAN or SCRIPT_FAILED; wrong options end the process with WRONG_USAGE.
    """
    parser = _parser()
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if options.machines:
        print(presets.describe_presets())
        return PLANNED
    if options.calibrate:
        from epl.planner.calibration import command

        return command.run(parser, options, _devices(parser, options.devices) if options.devices else None)
    if options.diff:
        return _compare(parser, *options.diff)
    if options.script is None:
        parser.error("which script? epl-plan [options] script.py [script arguments]")
    if not os.path.isfile(options.script):
        parser.error(f"there is no file {options.script}: the script comes after the options of epl-plan.")
    for name in ("save", "json", "html", "trace"):
        path = getattr(options, name)
        if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            parser.error(f"--{name} {path}: there is no folder {os.path.dirname(os.path.abspath(path))}.")
        if path and os.path.isdir(path):
            parser.error(f"--{name} {path}: that is a folder. Name a file in it.")
    settings = _settings(parser, options)
    environ = dict(os.environ, **{env_name(name): value for name, value in settings.items() if name not in _OF_DEVICES})
    _be_quiet()
    workers = int(options.devices.partition("x")[0]) if "x" in (options.devices or "") else 1
    with _imagined_job(settings, workers):
        return _plan(parser, options, settings, workers, environ)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "epl-plan",
        usage=(
            "epl-plan [options] script.py [script arguments]\n       epl-plan --diff A.json B.json\n"
            "       epl-plan --machines\n       epl-plan --calibrate FILE [--devices [Wx]D]"
        ),
        description="Says how a script would train, without training: it runs until it would, in this process.",
        epilog="Exit code: 0 a plan; 1 EPL refuses the script as it is; 2 wrong usage; 3 the script failed.",
    )
    parser.add_argument(
        "--devices",
        metavar="[Wx]D",
        help="workers x devices of each; none need be there",
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="a key of epl.Config; repeatable"
    )
    parser.add_argument("--plan", metavar="FILE", help="the strategy to be used: auto.plan_file")
    parser.add_argument(
        "--machine", metavar="MACHINE", help="where it would train: a file, or presets such as 4x8*v100-32,eth-50"
    )
    parser.add_argument("--rows", metavar="N", type=int, help="rows of the global batch")
    parser.add_argument("--search", action="store_true", help="search for the fastest plan: auto.planner=search")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--budget", metavar="S", type=int, help="seconds of a search for plans by blocks; 0: candidates alone"
    )
    ends.add_argument(
        "--steps", metavar="N", type=int, help="steps of it in place of a time, for the same plan each time"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="seed of the random changes that it tries: 0")
    parser.add_argument("-v", "--verbose", action="store_true", help="say each second what the search has found so far")
    parser.add_argument(
        "--trials",
        metavar="N",
        type=int,
        help="train briefly by the N best plans of a search, and save the fastest",
    )
    parser.add_argument("--json", metavar="FILE", help="write what is told to this file")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures to this file")
    parser.add_argument("--trace", metavar="FILE", help="write a simulated step as a Chrome trace to this file")
    parser.add_argument("--save", metavar="FILE", help="write the strategy to this file, for auto.plan_file")
    parser.add_argument(
        "--diff", metavar=("A.json", "B.json"), nargs=2, help="say in what two files of --save or --json differ"
    )
    parser.add_argument("--machines", action="store_true", help="list the machines and links that EPL knows by name")
    parser.add_argument(
        "--calibrate", metavar="FILE", help="measure this machine, in about a minute, and write a machine file"
    )
    parser.add_argument("script", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _settings(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Dict[str, str]:
    """The configuration keys that the options set, as text."""
    settings = {}
    if options.plan and options.search:
        parser.error("--plan and --search: the strategy comes from the file, or from the search. Give one of them.")
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals or name not in KEY_BY_NAME:
            parser.error(f"--set {text}: expected KEY=VALUE with a key of epl.Config, such as zero.level=v1.")
        try:
            KEY_BY_NAME[name].type.parse(value)
        except ValueError as error:
            parser.error(f"--set {text}: {error}.")
        settings[name] = value
    if options.plan:
        if not os.path.isfile(options.plan):
            parser.error(f"--plan {options.plan}: there is no such file.")
        settings["auto.plan_file"] = os.path.abspath(options.plan)
    if options.rows is not None:
        if options.rows < 1:
            parser.error(f"--rows {options.rows}: expected the rows of the global batch, from 1.")
        settings["auto.rows"] = str(options.rows)
    if options.search:
        settings["auto.planner"] = "search"
    for name in ("budget", "steps", "seed"):
        number = getattr(options, name)
        if number is not None and number < 0:
            parser.error(f"--{name} {number}: expected a whole number from 0.")
        if number is not None and not options.search:
            parser.error(f"--{name} {number} is of a search: give --search, too, or --set auto.{name}={number}.")
        if number is not None:
            settings[f"auto.{name}"] = str(number)
    if options.trials is not None:
        if options.trials < 1:
            parser.error(f"--trials {options.trials}: expected the number of plans to try, from 1.")
        settings["auto.trials"] = str(options.trials)
    if int(settings.get("auto.trials", 0)):
        _check_trials(parser, options, settings.get("auto.planner", ""))
    if options.verbose or sys.stderr.isatty():
        _tell_search(SEARCH_LOGGER if options.verbose else CAPACITY_LOGGER)
    if options.machine:
        is_file = os.path.isfile(options.machine)
        settings["auto.machine"] = os.path.abspath(options.machine) if is_file else options.machine
        options.devices = options.devices or _devices_of(parser, options.machine)
    if options.devices:
        settings.update(zip(_OF_DEVICES, (str(_devices(parser, options.devices)[1]), "cpu")))
    return settings


def _check_trials(parser: argparse.ArgumentParser, options: argparse.Namespace, planner: str) -> None:
    if planner != "search" or not options.save:
        parser.error("--trials tries plans of a search, and saves the fastest: give --search and --save FILE, too.")
    for name in ("json", "html", "trace"):
        if getattr(options, name):
            parser.error(
                f"--trials and --{name}: which plan is fastest is known at the end. Give --{name} to a second call, "
                f"epl-plan --plan {options.save}."
            )


def _tell_search(name: str) -> None:
    """Writes what a search has found so far to standard error, given its logger."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _devices(parser: argparse.ArgumentParser, text: str) -> Tuple[int, int]:
    """Workers, and devices of each."""
    match = _DEVICES.fullmatch(text)
    if match is None or int(match.group(2)) < 1 or match.group(1) == "0":
        parser.error(f"--devices {text}: expected workers x devices of each, such as 4x8, or devices: 8.")
    return int(match.group(1) or 1), int(match.group(2))


def _devices_of(parser: argparse.ArgumentParser, machine: str) -> str:
    """What --devices would say of all devices of a machine."""
    try:
        return "{}x{}".format(*job_of_machine(read_machine(machine)))
    except MachineError as error:
        parser.error(f"--machine: {error}")


def _imagined_job(settings: Dict[str, str], workers: int) -> ImaginedJob:
    """Sets the environment for the script, which is worker 0 of a job; of the other workers none is there."""
    for name, value in settings.items():
        os.environ[env_name(name)] = value
    hosts = [f"{node}.invalid:{_PORT + index}" for index, node in enumerate(_nodes(settings, workers))]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}})
    os.environ["EPL_EXPLAIN"] = "0"  # it is printed here
    return ImaginedJob.begin(hosts)


def _nodes(settings: Dict[str, str], workers: int) -> List[str]:
    """The name of the computer of each worker: those of the machine that is named, else one for each worker."""
    devices = int(settings.get(_OF_DEVICES[0], "1"))
    try:
        job = machine_of_job(read_machine(settings["auto.machine"]), workers, devices)
    except (KeyError, MachineError):  # a machine without room is refused when the plan is simulated
        return [f"worker-{index}" for index in range(workers)]
    return [f"node-{number}" for number, node in enumerate(job.nodes) for _ in range(len(node.devices) // devices)]


def _plan(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    settings: Dict[str, str],
    workers: int,
    environ: Dict[str, str],
) -> int:
    from epl.env import Env
    from epl.ir.graph import Graph
    from epl.parallel.plan import strategy as strategies
    from epl.parallel.strategy import record
    from epl.planner.prediction import prediction_trace
    from epl.planner.report import job_report, page, simulated_plan
    from epl.runtime import hooks
    from epl.utils.errors import EplError

    hooks.install()  # what a script that never calls epl.init would train is not to be trained, either
    ended: BaseException = SystemExit(0)
    with record.recording() as planned, contextlib.redirect_stdout(sys.stderr):
        try:
            _run_script(options.script, options.arguments)
        except (Exception, SystemExit, record.Planned) as error:
            ended = error
    # A script that trains in a thread, or catches what ends it, goes on after its model is planned.
    graph = next((found for found in map(Graph.of, planned) if found is not None), None)
    if graph is None:
        return _ended_without_plan(ended, options.script)
    config = Env.get().config
    for name, text in settings.items():
        if config.provenance(name) == "code" and config.get(name) != KEY_BY_NAME[name].type.parse(text):
            option = "--devices: " if name in _OF_DEVICES else ""
            why = f"the script sets {config.get(name)!r} in code"
            parser.error(f"{option}{name}={text} has no effect from the command line: {why}.")
    if config.auto.trials:  # also by the environment
        _check_trials(parser, options, config.auto.planner)
        if config.provenance("auto.trials") == "code":
            parser.error("auto.trials is set in code, which a trial would run, too. Give --trials N instead.")
    strategy = _with_own_origins(record.strategy_of(graph), options)
    if strategy.workers != workers:
        parser.error(f"--devices {options.devices}: the script is a job of {strategy.workers} worker(s) by itself.")
    plan = simulated_plan.simulate_plan(graph, strategy, may_stop=True)
    print(job_report.describe_job(graph, plan))
    if config.auto.trials:
        try:
            strategy = _with_own_origins(_tried(options, config.auto.trials, plan, environ), options)
        except EplError as error:
            sys.stderr.write(f"epl-plan: {error}\n")
            return NO_PLAN
    files: List[Tuple[Optional[str], str, Callable[[], str]]] = [
        (options.save, "the strategy, for auto.plan_file", lambda: strategies.to_json(strategy)),
        (options.json, f"the plan and its simulation{', and the candidates' if plan.search else ''}", plan.to_json),
        (options.html, "a page with pictures", lambda: page.page(plan, os.path.basename(options.script))),
    ]
    try:
        for path, what, text_of in files:
            if path:
                write_whole(path, text_of())
                print(f"\n{path}: {what}")
        if options.trace and plan.prediction is not None:
            prediction_trace.write_prediction(plan.prediction, options.trace)
            print(f"\n{options.trace}: the simulated step, for chrome://tracing or https://ui.perfetto.dev")
    except OSError as error:
        parser.error(f"the plan is not written: {error}. Name files that can be written.")
    if options.trace and plan.prediction is None:
        sys.stderr.write(f"epl-plan: {options.trace} is not written, as the plan is not simulated: {plan.refusal}\n")
        return NO_PLAN
    if not plan.fits:
        sys.stderr.write(f"epl-plan: no plan: {plan.lacking()}\n")
    return PLANNED if plan.fits else NO_PLAN


def _tried(options: argparse.Namespace, count: int, plan: "SimulatedPlan", environ: Dict[str, str]) -> "Strategy":
    """The fastest of the best plans of a search, as they train on this computer."""
    from epl.planner.search.training_batches import training_batches
    from epl.planner.trials import trials
    from epl.utils.errors import PlanError

    if plan.model is None or plan.search is None:
        raise PlanError(f"no plan is tried: {plan.refusal or 'there was no search'}")
    trials.refuse_elsewhere(plan.model.machine, plan.strategy.workers, plan.strategy.devices)
    trials.refuse_several_runs(training_batches(plan.strategy, plan.model, plan.model.machine))
    sys.stderr.write(f"epl-plan: training a few steps by each of {count} plans at most\n")
    found = trials.try_plans(plan.search, count, os.path.abspath(options.script), options.arguments, environ)
    fastest = trials.fastest(found)
    print(f"\n{trials.describe(found, fastest)}")
    if fastest.strategy != plan.strategy:
        print(f"The tables above are of the plan that the search took; epl-plan --plan {options.save} shows this one.")
    return fastest.strategy


def _with_own_origins(strategy: "Strategy", options: argparse.Namespace) -> "Strategy":
    """The strategy, whose keys of `--set` say so: the script got them from the environment."""
    given = {text.partition("=")[0] for text in options.set}
    settings = tuple(
        one._replace(origin="--set") if one.key in given and one.origin == f"environment {env_name(one.key)}" else one
        for one in strategy.settings
    )
    return strategy._replace(settings=settings)


def _be_quiet() -> None:
    """Leaves out the notices of TensorFlow about itself that epl-launch leaves out; whoever asks for them gets them."""
    if not any(name in os.environ for name in CPP_VARIABLES):
        os.environ[CPP_VARIABLES[0]] = "1"  # from W on
    notices = NoticeFilter(os.environ)

    class IsShown(logging.Filter):
        """Whether a record is more than a notice."""

        def filter(self, record: logging.LogRecord) -> bool:
            text = f"{record.levelname}:{record.name}:{record.getMessage()}\n"
            return bool(notices.shown(text.encode()))

    logging.getLogger("tensorflow").addFilter(IsShown())
    show = warnings.showwarning

    def show_more_than_notices(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Optional[str] = None
    ) -> None:
        if notices.shown(warnings.formatwarning(message, category, filename, lineno).encode()):
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_more_than_notices


def _run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs a script as `python path arguments` does."""
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def _ended_without_plan(ended: BaseException, script: str) -> int:
    """Says how a script ended that has no plan; the exit code. What EPL refuses is told with the line of the script."""
    from epl.env import Env
    from epl.utils.errors import EplError

    if isinstance(ended, SystemExit):
        status = "" if ended.code in (None, 0) else f" with status {ended.code!r}"
        why = f"The script ended{status} and did not train: no gradients of a model were to be run."
    elif isinstance(ended, EplError):
        lines = [one.lineno for one in traceback.extract_tb(ended.__traceback__) if one.filename == script]
        why = f"no plan: {ended}" + (f" ({script}:{lines[-1]})" if lines else "")
    else:
        traceback.print_exception(type(ended), ended, ended.__traceback__)
        why = "The script failed." if Env.get().is_ready else "The script failed before it called epl.init."
    sys.stderr.write(f"epl-plan: {why}\n")
    return NO_PLAN if isinstance(ended, EplError) else SCRIPT_FAILED


def _compare(parser: argparse.ArgumentParser, mine: str, other: str) -> int:
    from epl.planner.report import plan_files

    found: List[plan_files.PlanFile] = []
    for path in (mine, other):
        try:
            with open(path, encoding="utf-8") as file:
                found.append(plan_files.read(file.read()))
        except (OSError, ValueError) as error:
            parser.error(f"--diff: {path} is no file of --save or --json: {error}")
    for line in plan_files.differences(*found):
        print(line)
    return PLANNED
