"""Every plan that `epl-plan --save` writes runs on the script that it was made from, with no other key set."""

import json
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


BRANCHES = """
tops = []
for name in "ab":
    hidden = x
    for number in range(6):
        hidden = tf.layers.dense(hidden, 512, tf.tanh, name=name + str(number))
    tops.append(hidden)
loss = tf.reduce_mean(tf.square(tops[0] - tops[1]))
"""
CHAIN = """
for number in range(3):
    x = tf.layers.dense(x, 2048, tf.nn.relu, name="layer" + str(number))
loss = tf.reduce_mean(tf.square(x))
"""
_SMALL, _LARGE = [{"preset": "v100-16", "memory": memory} for memory in ("30 MB", "116 MB")]
# Ratios of the first block of the plan; script, kinds of devices, devices, latency.
ON_SOME_DEVICES = {
    "branches": ((1, 0), BRANCHES, {"gpu": {"preset": "v100-16"}}, ["2*gpu"], "50 us"),
    "a part": ((1, 1, 0, 0), CHAIN, {"small": _SMALL, "large": _LARGE}, ["2*large", "2*small"], "2 us"),
}


@pytest.mark.parametrize("kind", ON_SOME_DEVICES)
def test_a_saved_plan_with_blocks_on_some_devices_runs_on_its_script(plan, tmp_path, kind):  # noqa: F811
    ratios, model, devices, placed, latency = ON_SOME_DEVICES[kind]
    links = {"l": {"latency": latency, "bandwidth": "10 GB/s", "shared_by": 1}}
    machine = {"devices": devices, "links": links, "nodes": [{"devices": placed, "links": ["l"]}]}
    (tmp_path / "machine.json").write_text(json.dumps(machine))
    script = START + model + TRAIN
    search = ["--machine", "machine.json", "--rows", "32", "--search", "--steps", "10", "--save", "a.json"]
    code, _, error = plan(search, script)
    assert code == 0, error
    code, _, error = plan(["--devices", str(len(ratios)), "--plan", "a.json", "--save", "b.json"], script)
    assert code == 0, error
    saved, used = [strategies.from_json((tmp_path / name).read_text()) for name in ("a.json", "b.json")]
    assert strategies.differences(saved, used) == [] and used.blocks == saved.blocks
    assert ratios in [block.ratios for block in saved.blocks]


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
