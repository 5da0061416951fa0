"""The command `epl-plan`."""

import os
import sys


def main() -> int:
    """Runs the command with the arguments of the command line; returns its exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # read when TensorFlow is loaded
    from epl.planner.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
