"""Sets the project up on this machine: `python3 tools/set_up`. Any Python from 3.6 can run it.

Environment: PYTHON (the Python to use), TF (1.15, 2.15, 2.21), VENV (folder of the virtual environment, default .venv,
or .venv-2.21 with TF=2.21), EPL_TF (auto, cpu, gpu, system), CXX (the compiler), EPL_APT=off (install no package of the
operating system). docs/install.md tells more.
"""

import fcntl
import os
import sys
import time

import environment
import pythons


def main() -> int:
    """Runs set-up for the checkout that this file is in; the exit code."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    start = time.time()
    try:
        job = environment.SetUp(root, dict(os.environ), _say, progress=sys.stdout.isatty())
        os.makedirs(os.path.dirname(job.venv), exist_ok=True)
        with open(job.venv.rstrip("/") + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time: a second one waits, then finds everything done
            worked = job.run()
    except pythons.SetUpError as error:
        print(f"set-up: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    if worked:
        _say(f"done in {time.time() - start:.0f} s. {job.describe()}")
    else:
        _say(f"up to date. {job.describe()}")
    return 0


def _say(line: str) -> None:
    print("set-up: " + line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
