"""`epl-plan --trials`: the best plans of a search train a few steps on this computer; nothing of that stays."""

import os
import re
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.plan import strategy as strategies
from epl.planner.machine.files import read_machine
from epl.planner.trials import trials
from epl.utils import gpu_info
from epl.utils.errors import PlanError
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.test_plan_command import plan  # noqa: F401

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
import epl
epl.init()
x = tf.placeholder(tf.float32, [None, 4], "x")
loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.dense(x, 8, tf.tanh), 3)))
step = tf.train.get_or_create_global_step()
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
tf.summary.scalar("loss", loss)
often = dict(save_checkpoint_steps=1, save_summaries_steps=1)
with tf.train.MonitoredTrainingSession(checkpoint_dir="run", **often) as session:
    while True:
        session.run(train, {x: np.ones([8, 4])})
        open("steps", "a").write(f"{sys.argv[1:]}\\n")
"""


@pytest.mark.skipif(gpu_info.visible_gpu_count() > 0, reason="the plans are for CPUs")
def test_the_fastest_of_two_plans_is_saved_and_nothing_stays(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    code = "import sys; from epl.planner.main import main; sys.exit(main())"
    options = ["--devices", "2", "--search", "--steps", "0", "--trials", "2", "--save", "best.json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options, "script.py", "--argument"],
        cwd=str(tmp_path), env=dict(os.environ, PYTHONPATH=ROOT), timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.index("Trials on this computer") :]
    found = re.findall(r"^  (\*?) +\S.* (\S+) [mu]?s +(\S+) [mu]?s +(\S+)$", table, re.M)
    assert len(found) == 2 and sorted(row[0] for row in found) == ["", "*"]
    assert strategies.from_json((tmp_path / "best.json").read_text()).devices == 2
    steps = (tmp_path / "steps").read_text().split("\n")
    assert set(steps[:-1]) == {"['--argument']"} and 2 * 6 <= len(steps) - 1 <= 2 * 2 * 7  # the last ends in its run
    # The events are those of the planning, before the first step.
    left = [name for name in os.listdir(str(tmp_path / "run")) if "tfevents" not in name and name != "graph.pbtxt"]
    assert left == []
    assert sorted(os.listdir(str(tmp_path))) == ["best.json", "run", "script.py", "steps"]


@pytest.mark.parametrize(
    "machine, workers, devices, gpus, why",
    [
        ("cpu", 1, 1, 0, "the job has one"),
        ("2x1*cpu,eth-10", 2, 1, 0, "has 2: a plan for them is tried by a job on them"),
        ("2*v100-16", 1, 2, 1, "has 1 GPU"),
        ("2*cpu", 1, 2, 1, "whose 1 GPU"),
        ("2*v100-16", 1, 2, 2, ""),
        ("2*cpu", 2, 1, 0, ""),
    ],
)
def test_other_computers_are_refused(monkeypatch, machine, workers, devices, gpus, why):
    monkeypatch.setattr(gpu_info, "visible_gpu_count", lambda: gpus)
    if not why:
        trials.refuse_elsewhere(read_machine(machine), workers, devices)
        return
    with pytest.raises(PlanError, match=why):
        trials.refuse_elsewhere(read_machine(machine), workers, devices)


@pytest.mark.parametrize(
    "options, why",
    [
        (["--trials", "2", "--save", "a.json"], "give --search and --save FILE, too"),
        (["--trials", "2", "--search"], "give --search and --save FILE, too"),
        (["--trials", "0", "--search", "--save", "a.json"], "expected the number of plans to try, from 1"),
        (["--trials", "2", "--search", "--save", "a.json", "--html", "b.html"], "--trials and --html"),
    ],
)
def test_what_trials_need(plan, options, why):  # noqa: F811
    code, _, error = plan(["--devices", "2", *options])
    assert code == 2 and why in error


@pytest.mark.skipif(gpu_info.visible_gpu_count() > 0, reason="the plans are for CPUs")
def test_gradient_accumulation_is_refused(plan, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(trials, "try_plans", lambda *arguments: pytest.fail("a plan was tried"))
    options = ["--devices", "2", "--search", "--steps", "0", "--trials", "2", "--save", "a.json"]
    code, _, error = plan([*options, "--set", "pipeline.num_micro_batch=3"])
    assert code == 1 and "an update takes 3 runs of this script (pipeline.num_micro_batch)" in error
    assert not (tmp_path / "a.json").exists()


def test_a_job_refuses_them_with_the_command(init):  # noqa: F811
    init(2, auto__trials=3, auto__planner="search", annotate=False)
    loss = tf.reduce_mean(tf.layers.dense(tf.placeholder(tf.float32, [None, 4]), 3))
    with pytest.raises(PlanError, match="epl-plan --search --trials 3 --save plan.json"):
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def one(name, predicted, measured, refusal=""):
    return trials.TriedPlan(name, None, predicted, measured, refusal)


def test_the_fastest_counts_by_what_was_measured():
    found = [one("a", 1e-3, 4e-3), one("b", 2e-3, 3e-3), one("c", 1e-3, None, "it failed")]
    fastest = trials.fastest(found)
    assert fastest.name == "b"
    lines = trials.describe(found, fastest).split("\n")
    assert [line.split()[0] for line in lines[2:]] == ["a", "*", "c"] and lines[3].endswith("1.50")
    with pytest.raises(PlanError, match="None of the 1 best plans could be tried: c: it failed"):
        trials.fastest(found[2:])
