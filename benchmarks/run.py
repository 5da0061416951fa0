"""Measures EPL against named peers and bounds: ``make bench``.

Owns the command line and the exit code: 0 when everything was measured and every target is met, else 1.
"""

import argparse
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Below the line above, since this file is run as a script.
from benchmarks import (
    collective_benchmark,
    cores_benchmark,
    first_step_benchmark,
    harness,
    largest_model_benchmark,
    memory_benchmark,
    network_benchmark,
    options_benchmark,
    pipeline_benchmark,
    pipeline_rewriting_benchmark,
    prediction_benchmark,
    rewriting_benchmark,
    split_benchmark,
    training_benchmark,
    versions_benchmark,
)

BENCHMARKS = {
    "a": training_benchmark.run,
    "b": collective_benchmark.run,
    "c": rewriting_benchmark.run,
    "d": pipeline_benchmark.run,
    "e": pipeline_rewriting_benchmark.run,
    "f": split_benchmark.run,
    "g": memory_benchmark.run,
    "h": largest_model_benchmark.run,
    "i": cores_benchmark.run,
    "j": first_step_benchmark.run,
    "k": options_benchmark.run,
    "l": network_benchmark.run,
    "m": prediction_benchmark.run,
    "n": versions_benchmark.run,
}


def main() -> int:
    """Runs the chosen benchmarks, prints their tables and writes benchmarks/results/*.json."""
    parser = argparse.ArgumentParser(description="Measure EPL against named peers and bounds.")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(BENCHMARKS),
        help="a: training step, b: all-reduce, c: graph rewriting, d: pipeline step, "
        "e: rewriting of pipelines, f: split head, g: memory of a step, h: largest model, i: cores of a worker, "
        "j: time to the first step, k: options that guard the numbers, l: collectives over a network, "
        "m: predictions of the planner, n: the TensorFlows side by side (repeatable; default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few rounds: checks that all works")
    arguments = parser.parse_args()
    # As an exception, so that the measured processes, some of which are stopped, are ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print("machine: " + harness.machine(), flush=True)
    good = True
    for name in sorted(set(arguments.only or BENCHMARKS)):
        result = BENCHMARKS[name](arguments.quick)
        path = harness.write(result)
        print(harness.table(result))
        print("  raw figures: " + os.path.relpath(path), flush=True)
        good = good and harness.passed(result)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
