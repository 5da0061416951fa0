"""The command `epl-trace`, without loading TensorFlow: see epl_launch.py."""

from epl_launch import leave_out_package_import


def main() -> int:
    """Runs the command with the arguments of the command line; returns its exit code."""
    leave_out_package_import()
    from epl.profiler.merged_trace import main as run

    return run()
