"""FlexFlow's AlexNet: on slow links the convolutions by rows and the dense layers in one place are faster by far."""

import json

import pytest

from epl.parallel.plan import strategy as strategies
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.test_plan_command import plan  # noqa: F401

# Two devices of 8 TFLOP/s; the strategies are given by scopes.
SCRIPT = """
import tensorflow.compat.v1 as tf
import epl
epl.init(epl.Config({{"cluster.colocate_split_and_replicate": {colocate}}}))
x, y = tf.placeholder(tf.float32, [None, 227, 227, 3]), tf.placeholder(tf.int32, [None])
with epl.{first}:
    for width, kernel, stride, padding, pools in (
        (96, 11, 4, "valid", True), (256, 5, 1, "same", True), (384, 3, 1, "same", False), (384, 3, 1, "same", False),
        (256, 3, 1, "same", True)):
        x = tf.layers.conv2d(x, width, kernel, stride, padding, activation=tf.nn.relu)
        x = tf.nn.max_pool(x, 3, 2, "VALID") if pools else x
    x = tf.reshape(x, [-1, 6 * 6 * 256])
{scope}
    x = tf.layers.dense(tf.layers.dense(x, 4096, tf.nn.relu), 4096, tf.nn.relu)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.layers.dense(x, 1000)))
tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
"""
STRATEGIES = {
    "data parallel": SCRIPT.format(colocate=False, first="replicate(1)", scope="if True:"),
    "dense layers on one device": SCRIPT.format(colocate=True, first="replicate(2)", scope="with epl.replicate(1):"),
    "dense layers split": SCRIPT.format(colocate=True, first="replicate(1)", scope="with epl.split():"),
}


# The same model without scopes.
OPEN = SCRIPT.format(colocate=False, first="replicate(1)", scope="if True:").replace(
    "with epl.replicate(1):", "if True:"
)


def machine(bandwidth):
    """Two devices on a link."""
    device = {
        "flops": {"contraction": {"float32": "8 TFLOP/s"}},
        "bandwidth": "500 GB/s",
        "launch_overhead": "5 us",
    }
    link = {"latency": "5 us", "bandwidth": bandwidth, "shared_by": 1}
    return {"devices": {"gpu": device}, "links": {"l": link}, "nodes": [{"devices": "2*gpu", "links": ["l"]}]}


@pytest.fixture
def seconds(plan, tmp_path):  # noqa: F811
    """`seconds(rows, bandwidth)`: the seconds of a step by strategy."""

    def simulated(rows, bandwidth):
        (tmp_path / "machine.json").write_text(json.dumps(machine(bandwidth)))
        found = {}
        for name, script in STRATEGIES.items():
            code, _, error = plan(["--machine", "machine.json", "--rows", str(rows), "--json", "p.json"], script)
            assert code == 0, error
            found[name] = json.loads((tmp_path / "p.json").read_text())["simulation"]["seconds"]
        return found

    return simulated


@pytest.mark.parametrize("bandwidth, gain", [("10 GB/s", 1.5), ("1.2 GB/s", 5.0)])
def test_dense_layers_in_one_place_beat_data_parallelism_on_slow_links(seconds, bandwidth, gain):
    found = seconds(32, bandwidth)
    print(found)
    assert found["data parallel"] >= gain * min(found.values())
    assert found["data parallel"] >= 1.3 * found["dense layers on one device"]


def test_data_parallelism_is_as_good_on_fast_links_with_many_rows(seconds):
    found = seconds(256, "100 GB/s")
    assert found["data parallel"] <= 1.03 * min(found.values())
    assert found["data parallel"] < found["dense layers on one device"]


@pytest.fixture
def searched(plan, tmp_path):  # noqa: F811
    """`searched(rows, bandwidth)`: the strategy that a search finds, and the seconds of all candidates by name."""

    def search(rows, bandwidth):
        (tmp_path / "machine.json").write_text(json.dumps(machine(bandwidth)))
        options = ["--machine", "machine.json", "--rows", str(rows), "--search", "--steps", "20", "--json", "p.json"]
        code, _, error = plan([*options, "--save", "s.json"], OPEN)
        assert code == 0, error
        told = json.loads((tmp_path / "p.json").read_text())
        times = {one["name"]: one["seconds"] for one in told["candidates"]}
        chosen = next(one["seconds"] for one in told["candidates"] if one["chosen"])
        return strategies.from_json((tmp_path / "s.json").read_text()), chosen, times

    return search


@pytest.mark.parametrize("bandwidth, gain", [("10 GB/s", 1.5), ("1.2 GB/s", 5.0)])
def test_a_search_finds_dense_layers_in_one_place_on_slow_links(searched, bandwidth, gain):
    found, seconds, times = searched(32, bandwidth)
    assert times["the script as it is"] >= gain * seconds
    block = {op.name: op.block for op in found.ops}
    by_rows = ["conv2d/Conv2D", *[f"conv2d_{number}/Conv2D" for number in range(1, 5)]]
    assert {block[name] for name in by_rows} == {strategies.OUTSIDE}
    assert {block[name] for name in ("dense/MatMul", "dense_1/MatMul", "dense_2/MatMul")} == {0}
    assert [one.kind for one in found.blocks] == ["split"]


def test_a_search_finds_data_parallelism_on_fast_links_with_many_rows(searched):
    found, seconds, times = searched(256, "100 GB/s")
    assert [one[:2] for one in found.blocks] == [("replicate", 1)] and not found.choices
    assert seconds <= 1.01 * min(time for time in times.values() if time is not None)
