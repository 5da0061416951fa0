"""Every plan that `epl-plan --save` writes runs on the script that it was made from, with no other key set."""

import os
import subprocess
import sys

import pytest

from epl.parallel.plan import strategy as strategies
from tests.launcher.conftest import ROOT
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.test_plan_command import HEAD, TRAIN, plan  # noqa: F401

START = HEAD + 'epl.init()\nx = tf.placeholder(tf.float32, [None, 16], "x")\n'
LAYERS = """
{first}
    hidden = tf.layers.dense(x, 64, tf.tanh, name="first")
{second}
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 64, name="second")))
"""
SAME = "if True:"  # goes on in the scope before


def _script(first, second=SAME, before=""):
    return START + before + LAYERS.format(first=first, second=second) + TRAIN


SCRIPTS = {
    "no annotation": _script("if True:"),
    "default": _script("if True:", before="epl.set_default_strategy(epl.replicate(1))\n"),
    "one scope": _script("with epl.replicate(1):", "").replace("\n\n    loss", "\n    loss"),
    "stages": _script("with epl.replicate(1):", "with epl.replicate(1):"),
    "split": _script("with epl.split():"),
    "ratios": _script("with epl.split(2, ratios=[3, 1]):"),
    "before a split": _script("if True:", "with epl.split(2):"),
    "next to a split": _script("with epl.replicate(1):", "with epl.split(2):"),
    "split in stages": _script("with epl.replicate(1), epl.split(2):", "with epl.replicate(1), epl.split(2):"),
}
AUTO = {"auto.auto_parallel": True, "pipeline.num_stages": 2}
SPEED = {"auto.balance": "speed"}
WITHOUT_SCOPES = ("no annotation", "default")
FREE = (*WITHOUT_SCOPES, "one scope")
# By way: the keys that are set, and the scripts on which the plan is made so.
WAYS = {
    "as it is": ({}, ("default", "one scope", "stages", "split", "ratios", "before a split", "split in stages")),
    "shared devices": ({"cluster.colocate_split_and_replicate": True}, ("before a split", "next to a split")),
    "zero": ({"zero.level": "v1", "pipeline.num_micro_batch": 2}, FREE),
    "zero v2 and checkpoint": ({"zero.level": "v2", "gradient_checkpoint.type": "auto"}, FREE),
    "offload": ({"offload.level": "v0", "optimizer.num_apply_group": 2}, FREE),
    "rows": ({"auto.balance": "1:2:2:3"}, FREE),
    "speed": (SPEED, (*FREE, "stages", "split", "split in stages")),
    "automatic stages": ({**AUTO, "pipeline.num_micro_batch": 3, "pipeline.strategy": "PreferForward"}, WITHOUT_SCOPES),
    "search": ({"auto.planner": "search", "auto.steps": 5}, (*FREE, "stages", "split", "before a split")),
    "search of stages": ({"auto.planner": "search", "auto.steps": 0, "pipeline.num_stages": 2}, FREE),
}
DEVICES = ["--machine", "4*v100-16", "--rows", "48"]


def _cases():
    """Each way with each of its scripts; of those that leave the blocks open, in short runs, with the last."""
    for way, (_, scripts) in WAYS.items():
        for script in scripts:
            marks = [pytest.mark.long] if scripts == FREE and script != FREE[-1] else []
            yield pytest.param(way, script, marks=marks)


@pytest.mark.grid
@pytest.mark.parametrize("way, script", _cases())
def test_a_saved_plan_runs_on_its_script(plan, tmp_path, capsys, way, script):  # noqa: F811
    keys = [option for key, value in WAYS[way][0].items() for option in ("--set", f"{key}={value}")]
    code, _, error = plan([*DEVICES, *keys, "--save", "a.json"], SCRIPTS[script])
    assert code == 0, error
    code, _, error = plan(["--devices", "4", "--plan", "a.json", "--save", "b.json"], SCRIPTS[script])
    assert code == 0, error
    saved, used = [strategies.from_json((tmp_path / name).read_text()) for name in ("a.json", "b.json")]
    assert strategies.differences(saved, used) == [] and used.blocks == saved.blocks


@pytest.mark.parametrize("script", WITHOUT_SCOPES)
def test_it_trains(plan, tmp_path, script):  # noqa: F811
    keys = ["--set", "auto.auto_parallel=True", "--set", "pipeline.num_stages=2"]
    assert plan(["--devices", "2", *keys, "--save", "a.json"], SCRIPTS[script])[0] == 0
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EPL_", "TF_CONFIG"))}
    job = {"EPL_CLUSTER_NUM_VIRTUAL_DEVICES": "2", "EPL_CLUSTER_DEVICE_TYPE": "cpu", "PYTHONPATH": ROOT}
    environment.update(job, EPL_AUTO_PLAN_FILE="a.json")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert done.returncode == 0 and b"it trains" in done.stdout, done.stderr.decode()[-2000:]
    assert b"2 stages" in done.stderr


@pytest.mark.timeout(200)
def test_from_the_search_to_the_training(tmp_path):
    """The first example of docs/planner.md."""
    run = "    session.run(train, {x: [[0.0] * 16] * 8})\n"
    (tmp_path / "train.py").write_text(SCRIPTS["one scope"] + run)
    epl_plan = [sys.executable, "-c", "import sys; from epl.planner.main import main; sys.exit(main())"]
    epl_plan += ["--devices", "2"]
    launch = [sys.executable, "-m", "epl.utils.launcher", "--num_workers", "1", "--gpu_per_worker", "2"]
    for command in (
        [*epl_plan, "--search", "--save", "plan.json", "train.py"],
        [*epl_plan, "--plan", "plan.json", "train.py"],
        [*launch, "-x", "EPL_AUTO_PLAN_FILE=plan.json", "train.py"],
    ):
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            cwd=str(tmp_path),
            env={**os.environ, "PYTHONPATH": ROOT, "EPL_AUTO_BUDGET": "2"},
        )
        assert done.returncode == 0, done.stdout
    assert "it trains" in done.stdout
