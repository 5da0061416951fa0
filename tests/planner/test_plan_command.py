"""`epl-plan`: a script runs until it would train; its plan is printed, its strategy saved, used again and compared."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from epl.env import Env
from epl.parallel.plan import strategy as strategies
from epl.planner import main as command
from tests.parallel.in_process import init  # noqa: F401
from tests.tensorflows import WITH_ESTIMATOR

HEAD = """
import sys
import tensorflow.compat.v1 as tf
import epl
"""
MODEL = """
epl.init(epl.Config({config}))
x = tf.placeholder(tf.float32, [None, 4], "x")
with epl.replicate(1):
    hidden = tf.layers.dense(x, 8, tf.tanh)
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 3)))
"""
TRAIN = """
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print("it trains")
"""

SCRIPT = HEAD + MODEL.format(config="") + TRAIN
STAGES = '{"pipeline.num_stages": 30, "auto.auto_parallel": True}'


@pytest.fixture
def plan(init, tmp_path, monkeypatch, capsys):  # noqa: F811
    """`plan(options, source, arguments)`: the exit code, and what was written to standard output and error."""
    before = dict(os.environ)
    monkeypatch.setattr(os, "environ", {})  # what the command sets there reaches epl.Config, and no other test
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def call(options=(), source=SCRIPT, arguments=()):
        os.environ.clear()
        os.environ.update(before)
        (tmp_path / "script.py").write_text(textwrap.dedent(source))
        init(1, annotate=False)
        try:
            code = command.main([*options, "script.py", *arguments])
        except SystemExit as end:
            code = end.code
        return (code, *capsys.readouterr())

    return call


def test_a_search_says_that_it_moves_no_rows_between_processes(plan):
    """Each process feeds its own rows."""
    code, out, error = plan(["--machine", "1*v100-16+1*p100-16,eth-25", "--search", "--steps", "0", "--rows", "64"])
    assert code == 0, error
    assert "Rows by speed were not tried, as each process feeds its own" in out and "rows by speed:" not in out


def test_prints_the_plan_and_saves_the_strategy(plan, tmp_path, capsys):
    code, out, error = plan(["--devices", "4", "--set", "zero.level=v1", "--save", "a.json"])
    assert code == 0, error
    assert "4 replicas = 1 worker x 4 devices" in out and "ZeRO v1" in out and "Strategy:" in out
    assert "it trains" not in out + error
    strategy = strategies.from_json((tmp_path / "a.json").read_text())
    assert strategy.devices == 4
    code, out, error = plan(["--devices", "4", "--plan", "a.json", "--save", "b.json"])
    assert code == 0 and 'zero.level = "v1"   (auto.plan_file ' in out
    assert command.main(["--diff", "a.json", "b.json"]) == 0
    assert capsys.readouterr().out == ""  # equal decisions, whatever they came from


WITHOUT_INIT = "from epl.env import Env; Env.get().reset()"  # the fixture has called it
UNANNOTATED = MODEL.replace("with epl.replicate(1):", "if True:")


@pytest.mark.parametrize(
    "model, origin",
    [
        (MODEL, "scopes"),
        (UNANNOTATED.replace("x =", "epl.set_default_strategy(epl.replicate(1))\nx ="), "epl.set_default_strategy"),
        (UNANNOTATED, "default"),
    ],
)
def test_decisions_have_the_origin_of_the_script(plan, model, origin):
    source = HEAD + model.format(config='{"optimizer.num_apply_group": 2}') + TRAIN
    code, out, error = plan(["--devices", "2", "--set", "zero.level=v0"], source)
    assert code == 0 and f"2 CPU, blocks from {origin}\n" in out, error
    for line in (
        'zero.level = "v0"   (--set)',
        "optimizer.num_apply_group = 2   (code)",
        'auto.balance = "even"   (default)',
    ):
        assert line in out


def test_arguments_are_the_script_s_and_its_output_goes_to_standard_error(plan):
    source = HEAD + "print(sys.argv)\n" + MODEL.format(config="") + TRAIN
    code, out, error = plan(source=source, arguments=["--save", "mine"])
    assert code == 0 and "['script.py', '--save', 'mine']" in error and "--save" not in out


def test_diff_names_decisions_first(plan, capsys):
    plan(["--devices", "2", "--save", "a.json"])
    plan(["--devices", "4", "--set", "pipeline.num_micro_batch=2", "--save", "b.json"])
    assert command.main(["--diff", "a.json", "b.json"]) == 0
    assert capsys.readouterr().out == "pipeline.num_micro_batch: 1 -> 2\ndevices: 2 -> 4\n"


def test_diff_of_plans_shows_time_and_memory(plan, tmp_path, capsys):
    machine = ["--machine", "2*v100-16", "--rows", "64"]
    plan([*machine, "--save", "s.json", "--json", "a.json"])
    plan([*machine, "--set", "zero.level=v1", "--json", "b.json"])
    assert command.main(["--diff", "a.json", "b.json"]) == 0
    first, step, memory = capsys.readouterr().out.splitlines()
    assert first == "zero.level: '' -> 'v1'"
    seconds = [json.loads((tmp_path / name).read_text())["simulation"]["seconds"] for name in ("a.json", "b.json")]
    assert step.startswith("step: ") and step.endswith(f" ({seconds[1] / seconds[0] - 1:+.1%})")
    assert memory.startswith("peak memory of a device: ")
    assert command.main(["--diff", "s.json", "b.json"]) == 0
    assert "step: not simulated in the file -> " in capsys.readouterr().out


def test_a_key_of_set_is_said_to_come_from_there(plan, tmp_path):
    _, out, _ = plan(["--devices", "2", "--set", "zero.level=v1", "--save", "a.json"])
    assert 'zero.level = "v1"   (--set)' in out and "EPL_ZERO_LEVEL" not in out
    assert {"key": "zero.level", "value": "v1", "origin": "--set"} in json.loads((tmp_path / "a.json").read_text())[
        "settings"
    ]


@pytest.mark.parametrize("environ", [{}, {"TF_CPP_MIN_LOG_LEVEL": "0"}])
def test_what_tensorflow_says_of_itself_is_left_out(tmp_path, environ):
    """As under epl-launch; whoever asks for lines of level I gets them.

    But for two of TensorFlow 2, on oneDNN and on CUDA, which it writes at any level as soon as it is imported.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    code = "import sys; from epl.planner.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        cwd=str(tmp_path),
        env={**os.environ, "PYTHONPATH": os.getcwd(), **environ},
    )
    assert done.returncode == 0, done.stderr
    assert "is deprecated" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if re.search(r": I tensorflow/|^I\d{4} ", line)]
    assert bool([line for line in lines if "] oneDNN custom" not in line and "cudart_stub" not in line]) == bool(
        environ
    )


@pytest.mark.parametrize(
    "source, code, message",
    [
        (HEAD + "1 / 0", 3, "ZeroDivisionError"),
        (HEAD + MODEL.format(config=""), 3, "did not train"),
        (HEAD + "sys.exit('no data')", 3, "status 'no data'"),
        (
            HEAD + MODEL.format(config='{"pipeline.num_stages": 3, "auto.auto_parallel": True}') + TRAIN,
            1,
            "no plan: auto",
        ),
    ],
)
def test_scripts_without_a_plan(plan, source, code, message):
    got, _, error = plan(source=source)
    assert got == code and message in error


def test_what_is_refused_is_one_message_with_the_line_of_the_script(plan):
    source = HEAD + MODEL.format(config='{"pipeline.num_stages": 3, "auto.auto_parallel": True}') + TRAIN
    code, _, error = plan(source=source)
    assert code == 1 and "Traceback" not in error
    line = source.splitlines().index("with epl.replicate(1):") + 1
    assert error.splitlines()[-1].startswith("epl-plan: no plan: auto") and error.endswith(f" (script.py:{line})\n")


@pytest.mark.parametrize(
    "model, message",
    [
        (UNANNOTATED.format(config=""), "there is nothing to plan"),
        (UNANNOTATED.replace("epl.init(epl.Config({config}))", WITHOUT_INIT), "EPL has no part in it"),
    ],
)
def test_a_script_that_would_train_without_epl_is_stopped(plan, model, message):
    code, _, error = plan(source=HEAD + model + TRAIN)
    assert code == 1 and message in error and "it trains" not in error


def test_a_script_that_fails_before_epl_init(plan):
    code, _, error = plan(source=f"{HEAD}{WITHOUT_INIT}\n1 / 0")
    assert code == 3 and error.endswith("epl-plan: The script failed before it called epl.init.\n")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--devices", "none"], "expected workers x devices"),
        (["--devices", "0"], "expected workers x devices of each, such as 4x8"),
        (["--devices", "0x4"], "expected workers x devices of each"),
        (["--set", "zero.levle=v1"], "expected KEY=VALUE"),
        (["--set", "zero.level=v9"], "--set zero.level=v9: expected one of"),
        (["--plan", "none.json"], "there is no such file"),
        (["--plan", "a.json", "--search"], "Give one of them"),
        (["--save", "none/a.json"], "there is no folder"),
        (["--html", "none/a.html"], "there is no folder"),
        (["--html", "."], "--html .: that is a folder. Name a file in it."),
        (["--trace", "."], "--trace .: that is a folder. Name a file in it."),
        (["--json", "/proc/a.json"], "the plan is not written: [Errno 2]"),
        (["--rows", "0"], "--rows 0: expected the rows of the global batch"),
        (["--machine", "4*v100-17"], "--machine: "),
        (["--machine", "4*v100-32+2*p100-16,eth-10"], "Say how many: --devices WORKERSxDEVICES"),
        (["--search", "--budget", "-1"], "--budget -1: expected a whole number from 0"),
        (["--search", "--steps", "-3"], "--steps -3: expected a whole number from 0"),
        (["--search", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["--search", "--seed", "-1"], "--seed -1: expected a whole number from 0"),
        (["--steps", "3"], "--steps 3 is of a search: give --search, too"),
        (["--search", "--steps", "3", "--budget", "3"], "not allowed with argument"),
        (["--no-such-option"], "unrecognized arguments|no file|--no-such-option"),
    ],
)
def test_wrong_usage(plan, options, message):
    code, _, error = plan(options)
    assert code == 2
    assert any(one in error for one in message.split("|")), error


def test_missing_script_and_damaged_files(plan, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main([])
    assert "which script?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["none.py"])
    assert "there is no file none.py" in capsys.readouterr().err
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(SystemExit):
        command.main(["--diff", str(tmp_path / "a.json"), "b.json"])
    assert "a.json is no file of --save or --json: it is no JSON" in capsys.readouterr().err
    (tmp_path / "a.json").write_text('{"format": "epl-plan", "version": 9}')
    with pytest.raises(SystemExit):
        command.main(["--diff", str(tmp_path / "a.json"), "b.json"])
    assert "it is a plan of version 9, and this EPL reads version 1" in capsys.readouterr().err


THREAD = """
import threading
def train(graph=tf.get_default_graph()):
    with graph.as_default(), tf.Session() as session:
        session.run(tf.global_variables_initializer())
step = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
CATCHES_ALL = TRAIN.replace("with tf.Session", "try:\n  with tf.Session") + "except:\n  sys.exit(1)\n"


@pytest.mark.parametrize("train", [THREAD, CATCHES_ALL], ids=["in a thread", "catches all"])
def test_a_script_that_goes_on_after_it_is_planned(plan, train):
    code, out, error = plan(["--devices", "2"], HEAD + MODEL.format(config="") + train)
    assert code == 0 and "2 replicas" in out and "it trains" not in error, error


def test_options_that_the_script_overrides_are_refused(plan):
    source = HEAD + MODEL.format(config='{"zero.level": "v0"}') + TRAIN
    code, _, error = plan(["--devices", "2", "--set", "zero.level=v1"], source)
    assert code == 2 and "zero.level=v1 has no effect from the command line: the script sets 'v0' in code" in error
    source = HEAD + MODEL.format(config='{"cluster.device_type": "cpu", "cluster.num_virtual_devices": 2}') + TRAIN
    assert plan(["--devices", "2"], source)[0] == 0  # both say the same
    code, _, error = plan(["--devices", "4"], source)
    assert code == 2 and "--devices: cluster.num_virtual_devices=4 has no effect" in error


@WITH_ESTIMATOR
def test_an_estimator_writes_no_checkpoint(plan, tmp_path):
    code, out, error = plan(
        ["--devices", "2"],
        HEAD
        + """
epl.init()
epl.set_default_strategy(epl.replicate(1))

def model(features, labels, mode):
    loss = tf.reduce_mean(tf.square(tf.layers.dense(features, 1)))
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

def read():
    return tf.data.Dataset.from_tensors([[1.0, 2.0]]).repeat()

tf.estimator.Estimator(model, "model").train(read, steps=2)
""",
    )
    assert code == 0 and "2 replicas" in out, error
    assert not list((tmp_path / "model").glob("*ckpt*"))


def test_the_command_itself(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, "-m", "epl_plan", "--devices", "2", "script.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("EPL: 2 replicas = 1 worker x 2 devices")
    assert Env.get() is not None


def test_machines_are_listed_with_their_sources(capsys):
    assert command.main(["--machines"]) == 0
    out = capsys.readouterr().out
    assert "v100-32" in out and "eth-50" in out and "data sheet NVIDIA Tesla V100" in out


PIPELINE = (
    HEAD
    + """
epl.init(epl.Config({"pipeline.num_micro_batch": 4}))
x = tf.placeholder(tf.float32, [None, 4], "x")
for _ in range(4):
    with epl.replicate(1):
        x = tf.layers.dense(x, 8, tf.tanh)
        loss = tf.reduce_mean(tf.square(x))
"""
    + TRAIN
)


@pytest.mark.parametrize(
    "devices, settings, source, summary",
    [
        ("4x8", [], SCRIPT, "32 replicas = 4 workers x 8 devices"),
        ("2x4", ["--set", "zero.level=v2"], SCRIPT, "8 replicas = 2 workers x 4 devices"),
        ("4x1", [], PIPELINE, "1 replica x 4 stages = 4 workers x 1 device"),
        ("4x2", [], PIPELINE, "2 replicas x 4 stages = 4 workers x 2 devices"),
    ],
    ids=["data parallelism", "ZeRO", "pipeline", "two pipelines"],
)
def test_workers_that_are_not_there(plan, tmp_path, devices, settings, source, summary):
    code, out, error = plan(["--devices", devices, *settings, "--save", "a.json"], source)
    assert code == 0, error
    assert summary in out and "TaskGraphs" in out and "cannot explain" not in error
    workers, of_each = map(int, devices.split("x"))
    strategy = strategies.from_json((tmp_path / "a.json").read_text())
    assert (strategy.workers, strategy.devices) == (workers, of_each)


@pytest.mark.parametrize(
    "machine, devices, balance, built",
    [("2x4*v100-32,eth-25", "2x4", "even", 1), ("2*v100-32+2*p100-16,eth-25", "2x2", "speed", 2)],
    ids=["alike", "rows by speed"],
)
def test_replicas_that_are_alike_are_built_once(plan, machine, devices, balance, built):
    where = ["--machine", machine, "--devices", devices, "--rows", "65536", "--set", f"auto.balance={balance}"]
    code, out, error = plan(where, SCRIPT.replace("x, 8,", "x, 10000,"))
    assert code == 0, error
    assert out.count("  /device:CPU:") == built
    assert ("note: of the 4 replicas of this worker, each needs about as much" in out) == (built == 1)


def test_shards_by_ratios_are_all_built(plan):
    source = """
epl.init(epl.Config({"cluster.colocate_split_and_replicate": True}))
x = tf.placeholder(tf.float32, [None, 4], "x")
with epl.replicate(1):
    hidden = tf.layers.dense(x, 64)
with epl.split(2, ratios=[1, 3]):
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 8192)))
"""
    code, out, error = plan(["--devices", "2", "--rows", "64"], HEAD + source + TRAIN)
    assert code == 0, error
    weights = [float(line.split()[1]) for line in out.splitlines() if line.startswith("  /device:CPU:")]
    assert len(weights) == 2 and weights[1] > 2.5 * weights[0]


@pytest.mark.parametrize("devices", ["1", "4"])
def test_the_rows_of_what_all_replicas_get_are_not_divided(plan, devices):
    source = """
epl.init()
epl.set_default_strategy(epl.replicate(1))
x, nodes = tf.placeholder(tf.float32, [None, 4], "x"), tf.placeholder(tf.float32, [None, 64], "nodes")
epl.keep_whole(nodes)
loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 8) + tf.reduce_mean(tf.layers.dense(nodes, 8), 0)))
"""
    code, out, error = plan(["--devices", devices, "--rows", "128"], HEAD + source + TRAIN)
    assert code == 0, error
    forward = float(re.search(r"replicate\(1\) .*?(0\.\d{6}) ", out.split("forward")[1]).group(1))
    assert forward > 2 * 128 * 64 * 8 / 1e9


def test_collectives_over_machines_are_those_of_the_job(plan, tmp_path):
    """8 workers on 2 machines: what the plan says of them is what the simulation counts."""
    source, seconds = SCRIPT.replace("x, 8,", "x, 100000,"), {}
    for hierarchy, words in [("auto", "hierarchical: shm is faster than a worker's share of eth-10"), ("off", "flat")]:
        where = ["--machine", "2x4*cpu,eth-10", "--devices", "8x1", "--rows", "8", "--json", "a.json"]
        code, out, error = plan([*where, "--set", f"communication.hierarchy={hierarchy}"], source)
        assert code == 0, error
        assert f"collectives between 2 machines of 4 workers are {words}" in out
        simulation = json.loads((tmp_path / "a.json").read_text())["simulation"]
        seconds[hierarchy] = sum(one["seconds"] for one in simulation["traffic"])
    # Between the machines 4 workers send a shard each, or each a part to each of 4 others, twice.
    assert seconds["off"] > 1.5 * seconds["auto"]


def test_the_cost_of_rows_of_all_replicas_is_told(plan, tmp_path):
    source = SCRIPT.replace("hidden, 3)", "tf.layers.batch_normalization(hidden, training=True), 3)")
    source = source.replace("train =", "with tf.control_dependencies(tf.get_collection('update_ops')): train =")
    code, out, error = plan(["--devices", "2", "--set", "batch_norm.sync=true", "--html", "a.html"], source)
    assert code == 0, error
    told = "batch_norm.sync: 1 all-reduce forward, 1 all-reduce backward, 272 B, "  # twice 2 x 8 + 1 float64
    assert told in out and told in (tmp_path / "a.html").read_text() and "replicate.state" not in out
    code, out, error = plan(["--devices", "2", "--search", "--steps", "0", "--rows", "65536"], source)
    assert code == 0, error
    assert 'replicate.state "all": 1 all-reduce of writes, ' in out and "batch_norm.sync" not in out
    assert 'candidates were simulated without the collectives of replicate.state "all"' in out


def test_a_split_over_workers_that_are_not_there(plan):
    source = (
        HEAD
        + """
epl.init(epl.Config({"cluster.colocate_split_and_replicate": True}))
x = tf.placeholder(tf.float32, [None, 4], "x")
with epl.split():
    loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.dense(x, 64), 64)))
"""
        + TRAIN
    )
    code, out, error = plan(["--devices", "2x2"], source)
    assert code == 0 and "1 replica split over 4 devices" in out and "all-" in out, error


def test_a_plan_is_that_of_a_job_that_runs(plan, tmp_path):
    """With one worker nothing is imagined; its plan differs from that of several in the job alone."""
    found = {}
    for devices in ("1x4", "2x2"):
        assert plan(["--devices", devices, "--save", "a.json"])[0] == 0
        found[devices] = strategies.from_json((tmp_path / "a.json").read_text())
    assert strategies.differences(found["1x4"], found["2x2"]) == ["workers: 1 -> 2", "devices: 4 -> 2"]


@pytest.mark.parametrize(
    "hosts, devices, code, message",
    [
        (["localhost:1", "localhost:2"], "2", 1, "epl-plan imagines a job of 1 worker(s), and the script is worker 0"),
        (["localhost:1"], "2x2", 2, "--devices 2x2: the script is a job of 1 worker(s) by itself"),
    ],
)
def test_the_workers_of_the_script_are_not_waited_for(plan, hosts, devices, code, message):
    cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}
    source = f"import json, os\nos.environ['TF_CONFIG'] = json.dumps({cluster})\n" + SCRIPT
    got, _, error = plan(["--devices", devices], source)
    assert got == code and message in error


def test_simulates_a_step_on_a_machine(plan, tmp_path):
    files = ["--json", "p.json", "--html", "p.html", "--trace", "p.trace"]
    code, out, error = plan(["--machine", "2x2*v100-32,eth-25", "--rows", "64", *files])
    assert code == 0, error
    assert "4 replicas = 2 workers x 2 devices" in out and "all-reduce" in out
    assert "node 0: 2 x v100-32" in out or "nodes 0 to 1, each: 2 x v100-32" in out
    told = json.loads((tmp_path / "p.json").read_text())
    assert told["format"] == "epl-plan" and told["version"] == 1 and told["rows"] == 64 and "candidates" not in told
    assert sum(one["rows"] * len(one["ranks"]) for one in told["simulation"]["devices"]) == 64
    assert f"step {told['simulation']['seconds'] * 1e6:.4g} us" in out
    assert strategies.from_json(json.dumps(told["strategy"])).workers == 2
    page = (tmp_path / "p.html").read_text()
    assert page.count("<svg") >= 3 and "http" not in page.replace("https://ui.perfetto.dev", "")
    events = json.loads((tmp_path / "p.trace").read_text())["traceEvents"]
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert last == pytest.approx(1e6 * told["simulation"]["seconds"], rel=1e-3)


def test_searches_for_the_fastest_plan_and_saves_it(plan, tmp_path):
    code, out, error = plan(
        ["--machine", "4*v100-32", "--rows", "64", "--search", "--json", "p.json", "--save", "a.json"]
    )
    assert code == 0, error
    told = json.loads((tmp_path / "p.json").read_text())
    (chosen,) = [one for one in told["candidates"] if one["chosen"]]
    assert chosen["seconds"] <= 1.01 * min(one["seconds"] for one in told["candidates"] if one["seconds"])
    assert f"* {chosen['name']}: " in out
    zero = next(one for one in told["decisions"] if one["decision"] == "zero.level")
    assert zero["origin"] == "planner" and 1.01 * zero["runner_up"]["seconds"] >= chosen["seconds"]
    assert f"zero.level = {zero['value']}   (planner); instead {zero['runner_up']['value']}: " in out
    assert "4 CPU, blocks from planner\n" in out and "\n  optimizer.num_apply_group = 1   (default)\n" in out
    assert {one["key"]: one["origin"] for one in told["strategy"]["settings"]} == {
        one["decision"]: one["origin"] for one in told["decisions"] if "." in one["decision"]
    }
    code, out, error = plan(["--devices", "4", "--plan", "a.json", "--save", "b.json"])
    assert code == 0, error
    assert strategies.differences(*_read(tmp_path, "a.json", "b.json")) == []


def test_a_searched_pipeline_of_a_script_with_one_scope_is_used_again(plan, tmp_path):
    two_stages = ["--set", "pipeline.num_stages=2", "--rows", "64", "--search"]
    code, _, error = plan(["--devices", "2", *two_stages, "--save", "a.json"])
    assert code == 0, error
    code, _, error = plan(["--devices", "2", "--plan", "a.json", "--save", "b.json"])
    assert code == 0, error
    used = _read(tmp_path, "a.json", "b.json")
    assert len(used[1].blocks) == 2 and strategies.differences(*used) == []


def _read(folder, *names):
    return [strategies.from_json((folder / name).read_text()) for name in names]


@pytest.mark.parametrize(
    "setting", ["amp.level=O1", "offload.level=v0", "gradient_checkpoint.type=collection"]
)  # fmt: skip
def test_a_model_with_a_feature_that_the_script_decides_is_searched(plan, tmp_path, setting):
    code, out, error = plan(
        ["--machine", "4*v100-32", "--rows", "64", "--search", "--set", setting, "--json", "p.json"]
    )  # fmt: skip
    assert code == 0, error
    simulated = [one for one in json.loads((tmp_path / "p.json").read_text())["candidates"] if one["seconds"]]
    assert {"the script as it is"} < {one["name"] for one in simulated}, out


def test_a_plan_that_does_not_fit_is_none(plan, tmp_path):
    machine = {"devices": {"tiny": {"preset": "v100-16", "memory": "100 B"}}, "nodes": ["2*tiny"]}
    (tmp_path / "m.json").write_text(json.dumps(machine))
    code, out, error = plan(["--machine", "m.json"])
    assert (
        code == 1 and "epl-plan: no plan: each device of ranks 0 to 1 (tiny) lacks " in error and "Simulation:" in out
    )
    assert "of memory. No number of such devices up to 512 would do. Other decisions may: auto.planner" in error
    assert ".." not in error and " \n" not in error
    code, _, error = plan(["--machine", "m.json", "--search"])
    assert code == 1 and "candidates fits the memory of the devices" in error and "(tiny) lacks" in error
    assert "or devices with more memory. By rows or in stages, no number of such devices up to 512 would do." in error


def test_what_cannot_be_simulated_is_planned_all_the_same(plan):
    first = MODEL.format(config="").replace("replicate(1)", "replicate(2)")
    scopes = HEAD + first.replace("    loss", "with epl.replicate(1):\n    loss") + TRAIN
    code, out, error = plan(["--devices", "3"], scopes)
    assert code == 0 and "not simulated: not available yet: the prediction of scopes of epl.replicate" in out, error
    code, _, error = plan(["--devices", "3", "--trace", "p.trace"], scopes)
    assert code == 1 and "epl-plan: p.trace is not written, as the plan is not simulated: " in error
