"""Plans by blocks of models in a graph: which ones a search looks at, and which it leaves out."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan import plan as plans
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.sections import SplitSection
from epl.parallel.strategy import record
from epl.planner.search import by_blocks, decision
from epl.planner.search.block_plans import WAYS, BlockPlan, Way, further_ways, on_device, place_of, split_over
from epl.planner.search.decision import SearchResult
from epl.planner.search.model_blocks import find_blocks, joined
from epl.utils.errors import PlanError
from tests.parallel.in_process import init, rewritten  # noqa: F401

SLOW_LINK = {
    "devices": {"gpu": {"preset": "v100-16"}},
    "links": {"l": {"latency": "5 us", "bandwidth": "1 GB/s", "shared_by": 1}},
    "nodes": [{"devices": "2*gpu", "links": ["l"]}],
}
# A fast device and one of less than a third of its speed, on a fast link.
_SLOW = {"flops": {"contraction": {"float32": "4 TFLOP/s"}}, "bandwidth": "240 GB/s"}
UNEQUAL = {
    "devices": {
        "gpu": {"preset": "v100-16", "launch_overhead": 0},
        "slow": {"preset": "v100-16", "launch_overhead": 0, **_SLOW},
    },
    "links": {"l": {"latency": "1 us", "bandwidth": "30 GB/s", "shared_by": 1}},
    "nodes": [{"devices": ["slow", "gpu"], "links": ["l"]}],
}
SEARCH = {"auto__planner": "search", "auto__steps": 0, "auto__rows": 32}


@pytest.fixture
def machine(tmp_path):
    return written(tmp_path, SLOW_LINK, "4*gpu")


def written(tmp_path, machine, *devices):
    """The path of a machine file, with other devices in its node."""
    nodes = [{**machine["nodes"][0], "devices": list(devices)}]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({**machine, "nodes": nodes}))
    return str(path)


def minimize(width=2048, rows=None, optimizer=None):
    """A convolution, and two wide layers whose gradients are dear to send."""
    x = tf.placeholder(tf.float32, [rows, 16, 16, 3], "x")
    hidden = tf.layers.conv2d(x, 8, 3, 2, "same", activation=tf.nn.relu, name="conv")
    hidden = tf.reshape(hidden, [-1, 8 * 8 * 8])
    hidden = tf.layers.dense(hidden, width, tf.nn.relu, name="wide")
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, width, name="last")))
    return x, loss, (optimizer or tf.train.GradientDescentOptimizer(0.1)).minimize(loss)


def result():
    return Graph.get().state_of(SearchResult)


def test_wide_layers_are_split_on_slow_links(init, machine):  # noqa: F811
    init(2, annotate=False, auto__machine=machine, **{**SEARCH, "auto__rows": 8})  # of more, one device is faster
    minimize()
    found = result()
    chosen = found.chosen.candidate.strategy
    assert [(block.kind, block.devices) for block in chosen.blocks] == [("split", 2)]
    in_split = {op.name.split("/")[0] for op in chosen.ops if op.block == 0}
    assert {"wide", "last"} <= in_split and "conv" not in in_split and chosen.choices
    as_it_is = next(one for one in found.compared if one.candidate.name == "the script as it is")
    assert as_it_is.outcome.seconds > 2 * found.chosen.outcome.seconds
    assert strategies.from_json(strategies.to_json(chosen)) == chosen
    assert found.by_blocks == "3 blocks: 9 plans in 0 steps; auto.steps is 0"
    section = plans.section(rewritten().plan, SplitSection)
    assert {one.variable for one in section.variables if one.sizes} >= {"wide/kernel", "last/kernel"}


def test_uniform_split_is_always_a_candidate(init, machine):  # noqa: F811
    init(2, annotate=False, auto__machine=machine, auto__budget=0, **{**SEARCH, "auto__steps": -1})
    minimize(width=64)
    names = [one.candidate.name for one in result().compared if one.outcome]
    assert [name for name in names if name.startswith("uniform split")] == [
        "uniform split: all blocks by split, groups of 2", "uniform split: all blocks by small split, groups of 2"
    ]  # fmt: skip


def test_the_same_seed_and_steps_save_the_same_bytes(init, machine):  # noqa: F811
    saved = []
    for seed in (0, 0):
        init(2, annotate=False, auto__machine=machine, auto__seed=seed, **{**SEARCH, "auto__steps": 30})
        with record.recording():
            minimize()
            rewritten()
            saved.append(strategies.to_json(record.strategy_of(Graph.get())))
    assert saved[0] == saved[1]


def test_ctrl_c_ends_the_search_of_epl_plan_alone(init, machine, monkeypatch):  # noqa: F811
    def walk(search):
        raise KeyboardInterrupt

    monkeypatch.setattr(by_blocks.BlockSearch, "_walk", walk)
    init(2, annotate=False, auto__machine=machine, **SEARCH)
    with record.recording():
        minimize(width=64)
    assert result().by_blocks.endswith("plans in 0 steps; Ctrl-C ended the search") and result().chosen.fits
    init(2, annotate=False, auto__machine=machine, **SEARCH)
    with pytest.raises(KeyboardInterrupt):
        minimize(width=64)


@pytest.mark.parametrize(
    "devices, config",
    [(1, {}), (2, {"pipeline__num_stages": 2}), (2, {"scope": True})],
    ids=["one", "stages", "scopes"],
)
def test_nothing_is_searched_where_nothing_is_open(init, machine, monkeypatch, devices, config):  # noqa: F811
    monkeypatch.setattr(decision, "search_blocks", lambda *args: pytest.fail("searched"))
    scope = config.pop("scope", False)
    init(devices, annotate=False, auto__machine=machine, **SEARCH, **config)
    if scope:
        epl.set_default_strategy(epl.replicate(2))
    minimize(width=64)
    assert result().by_blocks == ""


def test_fewer_rows_than_replicas_are_refused(init, machine):  # noqa: F811
    # Without the number of stages, one replica in two stages would train on the row.
    init(2, annotate=False, auto__machine=machine, pipeline__num_stages=1, **{**SEARCH, "auto__rows": 1})
    with pytest.raises(PlanError, match=r"as it is: 1 row\(s\) are too few for 2 replica\(s\).* Take more rows"):
        minimize(width=64)


def test_keys_of_the_user_stay(init, machine):  # noqa: F811
    config = {**SEARCH, "auto__steps": 60}
    init(2, annotate=False, auto__machine=machine, zero__level="v1", gradient_checkpoint__type="", **config)
    minimize()
    for one in result().compared:
        values = {setting.key: json.loads(setting.value) for setting in one.candidate.strategy.settings}
        assert values["zero.level"] == "v1" and values["gradient_checkpoint.type"] == ""


def plan_only(monkeypatch, ways, group=2, **plan):
    """The search takes this plan, whatever it costs."""

    def search(base, plans, balance, simulate, estimate, spent):
        found = by_blocks._compared("the plan", BlockPlan(ways, group, **plan), plans, balance, simulate)
        assert found.outcome is not None, found.refusal
        return by_blocks.BlockResult((found._replace(outcome=found.outcome._replace(seconds=1e-12)),), "")

    monkeypatch.setattr(decision, "search_blocks", search)


R, S, M, F = Way.ROWS, Way.SPLIT, Way.SMALL, Way.FIRST
D1, D3, TWO = on_device(1), on_device(3), split_over(2)


@pytest.mark.parametrize(
    "ways, plan",
    [
        ((R, S, S), {}),
        ((S, S, M), {"zero": "v1"}),
        ((R, F, F), {"checkpoint": True}),
        ((F, F, F), {}),
        ((S, R, F), {"zero": "v0"}),
        ((R, F, S), {"checkpoint": True, "zero": "v1"}),
        ((R, D1, F), {}),
        ((D1, D1, D1), {}),
        ((R, TWO, TWO), {"group": 4}),
        ((TWO, R, D3), {"group": 4, "zero": "v1"}),
    ],
)
def test_every_kind_of_plan_trains_as_one_device(init, machine, monkeypatch, ways, plan):  # noqa: F811
    trains_as_one_device(init, machine, monkeypatch, ways, plan)


def test_uneven_shards_train_as_one_device(init, tmp_path, monkeypatch):  # noqa: F811
    path = tmp_path / "unequal.json"
    path.write_text(json.dumps(UNEQUAL))
    trains_as_one_device(init, str(path), monkeypatch, (S, R, S), {})
    assert [len(block.ratios) for block in result().chosen.candidate.strategy.blocks] == [2, 0, 2]


def trains_as_one_device(init, machine, monkeypatch, ways, plan):  # noqa: F811
    feed = np.random.RandomState(0).rand(8, 16, 16, 3).astype(np.float32)
    losses = []
    for devices in (1, plan.get("group", 2)):
        init(devices, annotate=False, **({"auto__machine": machine, **SEARCH} if devices > 1 else {}))
        plan_only(monkeypatch, ways, **plan)
        tf.set_random_seed(1)
        x, loss, train = minimize(width=32)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            losses.append([session.run([loss, train], {x: feed})[0] for _ in range(4)])
    assert result().chosen.candidate.name == "the plan"
    assert losses[0][-1] < 0.9 * losses[0][0] and losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_batch_that_is_not_fed_is_not_divided(init, machine, monkeypatch):  # noqa: F811
    made = []

    def keep(base, plans, balance, simulate, estimate, spent):
        made.append(plans)
        return by_blocks.BlockResult((), "")

    monkeypatch.setattr(decision, "search_blocks", keep)
    for colocates in (False, True):
        init(
            2, annotate=False, auto__machine=machine, auto__planner="search",
            cluster__colocate_split_and_replicate=colocates,
        )  # fmt: skip
        minimize(width=32, rows=8)
    assert made[0].strategy(BlockPlan((R, S, S), 2)).blocks[0].kind == "split"
    with pytest.raises(PlanError, match="3 scopes would share devices. They do so if all are"):
        made[0].strategy(BlockPlan((S, R, S), 2))
    strategy = made[1].strategy(BlockPlan((S, R, S), 2))
    assert [(one.kind, one.devices) for one in strategy.blocks] == [("split", 2), ("replicate", 1), ("split", 2)]


def test_blocks_begin_with_layers_and_equal_ones_are_a_class(init):  # noqa: F811
    init(2, annotate=False)
    x = tf.placeholder(tf.float32, [None, 8])
    for number in range(4):
        x = tf.layers.dense(x, 8, tf.nn.relu, name=f"layer{number}")
    loss = tf.reduce_mean(x) + tf.add_n([tf.nn.l2_loss(one) for one in tf.trainable_variables()])
    graph = Graph.get(may_create=True)
    found = record.forward_pass(graph, loss, tf.trainable_variables())
    blocks = find_blocks(graph, found, [1.0] * len(found.ops))
    of_name = {op.name: block for op, block in zip(found.ops, blocks.of_op)}
    assert len(blocks) == 4
    for number in range(4):
        assert of_name[f"layer{number}/MatMul"] == of_name[f"layer{number}/kernel"] == number
    assert blocks.classes[1] == blocks.classes[2] and len(set(blocks.classes)) == 3


def has_branches(build):
    """Whether the blocks of the loss that `build` returns have branches."""
    loss = build(tf.placeholder(tf.float32, [None, 8]))
    graph = Graph.get(may_create=True)
    found = record.forward_pass(graph, loss, tf.trainable_variables())
    return find_blocks(graph, found, [1.0] * len(found.ops)).has_branches


def test_branches_are_layers_that_need_no_data_of_each_other(init):  # noqa: F811
    def skipping(x):
        for number in range(3):
            x = x + tf.layers.dense(tf.layers.dense(x, 16, name=f"a{number}"), 8, name=f"b{number}")
        return tf.reduce_mean(x) + tf.add_n([tf.nn.l2_loss(one) for one in tf.trainable_variables()])

    def towers(x):
        return tf.reduce_mean(chain(x, "a", 8, 2) - chain(tf.placeholder(tf.float32, [None, 8]), "b", 8, 2))

    def attention(x):
        q, k, v = [tf.layers.dense(x, 8, name=name) for name in "qkv"]
        return tf.reduce_mean(tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v))

    def tied(x):
        w = tf.get_variable("w", [8, 8])
        return tf.reduce_mean(tf.matmul(chain(tf.matmul(x, w), "a", 8, 2), tf.transpose(w)))

    for build, expected in ((skipping, False), (towers, True), (attention, True), (tied, False)):
        init(2, annotate=False)
        assert has_branches(build) == expected, build.__name__


@pytest.mark.parametrize(
    "are_equal, can_mix, has_branches, is_short, devices, splits",
    [
        (True, True, False, False, False, False),  # a chain
        (True, True, True, False, True, False),
        (True, True, False, True, True, True),
        (True, False, True, True, False, False),
        (False, False, False, False, True, True),
    ],
)
def test_further_ways_are_those_that_can_win(are_equal, can_mix, has_branches, is_short, devices, splits):
    found = further_ways(8, are_equal, can_mix, has_branches, is_short)
    expected = [on_device(place) for place in range(1, 8) if devices] + [split_over(n) for n in (2, 4) if splits]
    assert list(found) == expected


def looked_at(init, monkeypatch, path, devices, build, **config):  # noqa: F811
    """The plans that a search looks at."""
    look, seen = by_blocks.BlockSearch.look, []
    monkeypatch.setattr(by_blocks.BlockSearch, "look", lambda search, plan: seen.append(plan) or look(search, plan))
    init(devices, annotate=False, auto__machine=path, **{**SEARCH, "auto__steps": 40, **config})
    tf.train.GradientDescentOptimizer(0.1).minimize(build())
    return seen


def is_further(plan):
    return bool(set(plan.ways) - set(WAYS))


def test_a_chain_on_equal_devices_with_memory_is_searched_without_further_ways(init, tmp_path, monkeypatch):  # noqa: F811
    def build():
        return tf.reduce_mean(chain(tf.placeholder(tf.float32, [None, 64]), "layer", 64, 4))

    for memory, expected in (("16 GB", False), ("300 kB", True)):
        machine = {**SLOW_LINK, "devices": {"gpu": {"preset": "v100-16", "memory": memory}}}
        seen = looked_at(init, monkeypatch, written(tmp_path, machine, "4*gpu"), 4, build)
        assert any(map(is_further, seen)) == expected


def test_no_two_plans_differ_in_names_of_equal_devices_alone(init, tmp_path, monkeypatch):  # noqa: F811
    def build():
        x, y = [tf.placeholder(tf.float32, [None, 64]) for _ in range(2)]
        return tf.reduce_mean(tf.square(chain(x, "a", 64, 3) - chain(y, "b", 64, 3)))

    seen = looked_at(init, monkeypatch, written(tmp_path, SLOW_LINK, "4*gpu"), 4, build, auto__steps=200)
    assert sum(map(is_further, seen)) > 20
    for plan in seen:
        places = [place_of(way) for way in dict.fromkeys(plan.ways) if place_of(way) is not None]
        assert places == list(range(len(places)))  # no split over some of them tells them apart


def test_many_blocks_are_joined_by_their_time():
    ops = [strategies.ForwardOp(str(at), "MatMul", (), ("float32[?,4]",), 0) for at in range(100)]
    blocks = joined(range(100), ops, [1.0] * 50 + [3.0] * 50, 8)
    assert len(blocks) == 8 and list(blocks.of_op) == sorted(blocks.of_op)
    assert blocks.of_op.count(0) > 2 * blocks.of_op.count(7)


def test_shards_are_as_large_as_devices_are_fast(init, tmp_path):  # noqa: F811
    path = tmp_path / "unequal.json"
    path.write_text(json.dumps(UNEQUAL))
    init(2, annotate=False, auto__machine=str(path), **{**SEARCH, "auto__rows": 8})
    minimize(width=8192)
    compared = {one.candidate.name: one for one in result().compared}
    fast, small = [compared[f"uniform split: all blocks by {way}, groups of 2"] for way in (Way.SPLIT, Way.SMALL)]
    (block,) = fast.candidate.strategy.blocks
    assert small.candidate.strategy.blocks[0].ratios == ()
    assert block.ratios[0] == pytest.approx(3 * block.ratios[1], rel=0.2)  # the fast device is put first
    assert fast.outcome.seconds < 0.75 * small.outcome.seconds
    assert result().chosen.candidate.strategy.blocks[-1].ratios == block.ratios


def chain(x, name, width, layers):
    for number in range(layers):
        x = tf.layers.dense(x, width, tf.nn.relu, name=f"{name}{number}")
    return x


def searched_choice(init, path, devices, rows, build):  # noqa: F811
    """Kinds of the blocks of the plan that a search takes, with their ratios; and what it has compared."""
    init(devices, annotate=False, auto__machine=path, **{**SEARCH, "auto__steps": 20, "auto__rows": rows})
    loss = build()
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    found = result()
    assert found.chosen.fits
    return found.chosen.candidate.strategy, found


def test_branches_that_each_fit_a_device_are_on_different_ones(init, tmp_path):  # noqa: F811
    """Two towers of many weights and few rows: neither sends anything inside, and they run at the same time."""

    def towers():
        x, y = [tf.placeholder(tf.float32, [None, 512]) for _ in range(2)]
        return tf.reduce_mean(tf.square(chain(x, "a", 512, 12) - chain(y, "b", 512, 12)))

    path = written(tmp_path, {**SLOW_LINK, "links": {"l": {**SLOW_LINK["links"]["l"], "latency": "50 us"}}}, "2*gpu")
    strategy, found = searched_choice(init, path, 2, 32, towers)
    assert [block.ratios for block in strategy.blocks] == [(1, 0), (0, 1)]
    of_layer = {op.name: op.block for op in strategy.ops if op.type == "MatMul"}
    assert {name: int(name[0] == "b") for name in of_layer} == of_layer
    others = [one for one in found.compared if one.fits and "device 1" not in one.candidate.name]
    assert min(one.outcome.seconds for one in others) > 1.1 * found.chosen.outcome.seconds


def test_a_block_is_split_over_the_devices_that_have_memory_for_it(init, tmp_path):  # noqa: F811
    """A quarter does not fit the small devices, all of it no device, and half of it the large ones."""
    small, large = [{"preset": "v100-16", "memory": memory} for memory in ("50 MB", "170 MB")]
    links = {"l": {"latency": "2 us", "bandwidth": "10 GB/s", "shared_by": 1}}
    machine = {**SLOW_LINK, "devices": {"small": small, "large": large}, "links": links}
    path = written(tmp_path, machine, "small", "large", "large", "small")
    strategy, _ = searched_choice(
        init, path, 4, 64,
        lambda: tf.reduce_mean(tf.square(chain(tf.placeholder(tf.float32, [None, 2048]), "layer", 2048, 3))),
    )  # fmt: skip
    wide = [block.ratios for block in strategy.blocks if block.kind == "split"][0]
    assert sorted(wide) == [0, 0, 1, 1]
    kept = {one.key: json.loads(one.value) for one in strategy.settings}["cluster.device_order"]
    kinds = "small large large small".split()
    order = [int(at) for at in kept.split(",")] if kept else range(4)
    assert [kinds[at] for at, ratio in zip(order, wide) if ratio] == ["large", "large"]
