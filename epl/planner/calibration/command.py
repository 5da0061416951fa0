"""`epl-plan --calibrate FILE`: checks the command line, measures, and writes the machine file, whole or not at all."""

import argparse
import contextlib
import os
import sys
from typing import Optional, Tuple

from epl.planner.machine import files
from epl.utils import gpu_info
from epl.utils.errors import EplError, MachineError
from epl.utils.whole_file import write_whole

_STOPPED = 130  # as shells have it for Ctrl-C
_FAILED = 1
# Options that are of a script, or do something else: attribute -> option.
_OTHERS = {
    "script": "a script",
    "plan": "--plan",
    "save": "--save",
    "set": "--set",
    "diff": "--diff",
    "machines": "--machines",
}


def run(
    parser: argparse.ArgumentParser, options: argparse.Namespace, devices: Optional[Tuple[int, int]], share: float = 1.0
) -> int:
    """Runs the command.

    Args:
      parser: ends the process at wrong usage.
      options: of the command line.
      devices: workers and devices of each, as --devices says; None: two workers with one device, or one worker with
        the GPUs of this machine.
      share: of the usual time that is spent, above 0.

    Returns:
      The exit code.
    """
    path = options.calibrate
    _check(parser, options, path)
    workers, each = devices or _default_devices()
    _say(f"measuring {workers} worker(s) x {each} device(s), about a minute; other programs that run now falsify it")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            from epl.planner.calibration.calibrate import calibrate

            machine = calibrate(os.path.splitext(os.path.basename(path))[0], workers, each, share)
            write_whole(path, files.text_for(machine, path))
    except KeyboardInterrupt:
        _say(f"stopped; {path} is as it was.")
        return _STOPPED
    except (EplError, OSError) as error:
        _say(f"this machine could not be measured: {error}")
        return _FAILED
    print(machine.describe())
    print(f"\n{path}: the machine, with {len(machine.measurements)} measurements")
    return 0


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace, path: str) -> None:
    for attribute, option in _OTHERS.items():
        if getattr(options, attribute, None):
            parser.error(
                f"--calibrate measures this machine alone, and takes no {option.replace('a script', 'script')}."
            )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        parser.error(f"--calibrate {path}: there is no folder {folder}.")
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        parser.error(f"--calibrate {path}: no file can be written there.")
    try:
        files.check_name(path)
    except MachineError as error:
        parser.error(f"--calibrate: {error}")


def _default_devices() -> Tuple[int, int]:
    gpus = gpu_info.visible_gpu_count()
    return (1, gpus) if gpus else (2, 1)


def _say(what: str) -> None:
    sys.stderr.write(f"epl-plan: {what}\n")
    sys.stderr.flush()
