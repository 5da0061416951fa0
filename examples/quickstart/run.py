"""Trains the digits on one device, then on four (two processes with two devices each), and compares.

python examples/quickstart/run.py
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from typing import Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LAUNCHER = os.path.join(ROOT, "tools", "epl-launch")
BATCH_SIZE = 32  # of train.py and train_parallel.py
WORKERS, DEVICES = 2, 2
ENOUGH = 0.95
# What TensorFlow 2 writes at any level: that it has oneDNN, and that there is no driver of a GPU; TensorFlow 2.15 also
# that it registers CUDA's libraries twice, and that TensorRT is missing.
AT_ANY_LEVEL = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)|I\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\] "
    r"|E\d{4} [^\n]* failed call to cuInit: [^\n]*UNKNOWN ERROR \(303\)"
    r"|\d{4}-[\d:. -]+: (?:E external/[^\n]*\] Unable to register cu\w+ factory"
    r"|W tensorflow/[^\n]*\] TF-TRT Warning: Could not find TensorRT)"
)


def run(title: str, command: List[str]) -> None:
    """Runs a command, and shows all that it writes but for lines AT_ANY_LEVEL; ends this program if it fails.

    With `TF_CPP_MIN_LOG_LEVEL` set these are shown, too.
    """
    shows_all = "TF_CPP_MIN_LOG_LEVEL" in os.environ
    process = subprocess.Popen(
        command, env=dict(os.environ, PYTHON=sys.executable), stderr=subprocess.PIPE, universal_newlines=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if shows_all or not AT_ANY_LEVEL.match(line):
            sys.stderr.write(line)
            sys.stderr.flush()
    code = process.wait()
    if code:
        sys.exit("%s failed with exit code %d." % (title, code))


def train(title: str, command: List[str]) -> float:
    """Runs a training command and returns how many seconds it took; ends this program if it fails."""
    print("\n== %s\n$ %s" % (title, " ".join(command)), flush=True)
    start = time.time()
    run(title, command)
    return time.time() - start


def report(title: str, directory: str, replicas: int, seconds: float) -> Dict[str, float]:
    """Returns the figures of a training run; the test is plain TensorFlow, whoever wrote the checkpoint."""
    run("The test of %s" % directory, [sys.executable, os.path.join(HERE, "digits.py"), directory])
    with open(os.path.join(directory, "result.json")) as stream:
        result: Dict[str, float] = json.load(stream)
    print(
        "%-28s loss %.4f   test accuracy %5.1f%%   %7.0f samples/s   %4.1f s in all"
        % (title, result["loss"], 100 * result["accuracy"], result["steps_per_second"] * replicas * BATCH_SIZE, seconds)
    )
    return result


def main() -> None:
    """Runs both, prints the figures, fails when the network has not learned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    default = os.path.join("experiments", "quickstart", time.strftime("%Y%m%d-%H%M%S"))
    parser.add_argument("--directory", default=default, help="logs and checkpoints go here (default: %(default)s)")
    options = parser.parse_args()
    one, many = os.path.join(options.directory, "one_device"), os.path.join(options.directory, "parallel")
    os.makedirs(one)

    title = "%d workers x %d devices" % (WORKERS, DEVICES)
    one_seconds = train("One device", [sys.executable, os.path.join(HERE, "train.py"), one, str(options.steps)])
    many_seconds = train(
        title,
        [
            sys.executable,
            LAUNCHER,
            "--num_workers",
            str(WORKERS),
            "--gpu_per_worker",
            str(DEVICES),
            "--log_dir",
            many,
            os.path.join(HERE, "train_parallel.py"),
            "{task_dir}",
            str(options.steps),
        ],
    )

    print("\n== Results (%d steps of %d samples per device)" % (options.steps, BATCH_SIZE))
    results = [
        report("One device", one, 1, one_seconds),
        report(title, os.path.join(many, "0"), WORKERS * DEVICES, many_seconds),
    ]
    if not any(result["gpus"] for result in results):
        print(
            "Without GPUs the %d devices share %d CPU(s): the rates show that it is right, not how fast GPUs would be."
            % (WORKERS * DEVICES, len(os.sched_getaffinity(0)))
        )
    print("\nCheckpoints  %s\n             %s" % (os.path.abspath(one), os.path.abspath(os.path.join(many, "0"))))
    for worker in range(WORKERS):
        name = "" if worker else "Logs"
        print("%-12s %s" % (name, os.path.abspath(os.path.join(many, str(worker), "stderr_%d.log" % worker))))
    if min(result["accuracy"] for result in results) < ENOUGH:
        sys.exit("The test accuracy is below %d%%." % (100 * ENOUGH))


if __name__ == "__main__":
    main()
