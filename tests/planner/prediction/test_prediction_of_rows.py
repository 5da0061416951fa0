"""Collectives of rows (batch norms, losses, writes of all rows): those of a step that runs; what the step waits for."""

import os
from collections import Counter

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.launcher.run import run
from epl.parallel import transformation
from epl.parallel.strategy import record
from epl.planner import main
from epl.planner.costs.graph_costs import GraphCosts
from epl.planner.costs.row_exchanges import LOSSES
from epl.planner.machine.collective_algorithms import NCCL_PACK_BYTES
from epl.planner.prediction.describe import costs_of_rows
from epl.planner.prediction.prediction import predict
from epl.planner.simulator.model_costs import RowExchange, RowWay
from epl.utils.errors import NotAvailableError
from tests.parallel.in_process import init  # noqa: F401
from tests.planner.prediction.hand_made import HandCosts, Layer, device, machine, replicate, split, stages, strategy
from tests.planner.prediction.models_of_rows import (
    ALL,
    MODELS,
    ROWS,
    SYNC,
    WIDTH,
    batch_norms,
    build,
    masked,
    ran,
    ran_in_job,
    two_stages,
)

WAYS = {
    "batch norms": {
        ("batch_norm.sync", "forward"): {"all-reduce": 2},
        ("batch_norm.sync", "backward"): {"all-reduce": 2},
    },
    "batch norm of data": {("batch_norm.sync", "forward"): {"all-reduce": 1}},
    "moving averages": {('replicate.state "all"', "writes"): {"all-reduce": 1}},
    "contrastive loss": {
        ('replicate.batch "all"', "forward"): {"all-gather": 2, "all-reduce": 1},
        ('replicate.batch "all"', "backward"): {"all-to-all": 2},
    },
    "loss of two views": {
        ('replicate.batch "all"', "forward"): {"all-gather": 3, "all-reduce": 1},  # the labels as well
        ('replicate.batch "all"', "backward"): {"all-to-all": 2},
    },
    "masked mean": {
        ('replicate.batch "all"', "forward"): {"all-reduce": 2},
        ('replicate.batch "all"', "backward"): {"all-reduce": 1},
    },
    "moments": {
        ('replicate.batch "all"', "forward"): {"all-reduce": 3},
        ('replicate.batch "all"', "backward"): {"all-reduce": 2},
    },
    "codebook": {('replicate.state "all"', "writes"): {"all-gather": 2, "all-reduce": 1}},
}


def recorded(loss_of, where, rows=2 * ROWS, annotate=True):
    """The rows of a model, the op that trains it, and its prediction."""
    with record.recording():
        x, train = build(loss_of, annotate)
        transformation.transform()
    graph = Graph.of(x.graph)
    costs = GraphCosts.of_recorded(graph, graph.state_of(record.ForwardPass))
    return x, train, predict(record.strategy_of(graph), costs, where, rows)


def by_kind(prediction):
    """Collective -> how many of rows, and their bytes."""
    times, sizes = Counter(), Counter()
    for one in prediction.traffic:
        if one.way:
            times[one.collective] += one.times
            sizes[one.collective] += one.bytes
    return {kind: (times[kind], sizes[kind]) for kind in times}


def ways(prediction):
    """(decision, way) -> collective -> how many."""
    found = {}
    for one in prediction.traffic:
        if one.way:
            found.setdefault((one.decision, one.way), {})[one.collective] = one.times
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_the_predicted_collectives(init, name):  # noqa: F811
    init(2, annotate=False, **{key.replace(".", "__"): value for key, value in MODELS[name][1].items()})
    x, train, found = recorded(MODELS[name][0], machine())
    assert ways(found) == WAYS[name]
    assert by_kind(found) == ran(x, train, 2 * ROWS)
    assert not any("not counted" in line for line in found.assumptions)


def test_a_step_of_two_workers_has_the_predicted_collectives(init, monkeypatch):  # noqa: F811
    init(1, annotate=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    predicted = {}
    with main._imagined_job({"cluster.device_type": "cpu", "cluster.num_virtual_devices": "1"}, 2):
        for name, (loss_of, config) in MODELS.items():
            tf.reset_default_graph()
            epl.init(epl.Config(config))
            found = recorded(loss_of, machine([["a"], ["a"]]))[2]
            assert ways(found) == WAYS[name]
            predicted[name] = by_kind(found)
    monkeypatch.undo()
    monkeypatch.setenv("EPL_CLUSTER_DEVICE_TYPE", "cpu")
    assert run(ran_in_job, 2, 1, timeout=200) == [predicted, predicted]


@pytest.mark.parametrize("config", [SYNC, ALL], ids=["batch norms", "loss"])
@pytest.mark.parametrize(
    "devices, more, runs",
    [
        (4, {"pipeline__num_micro_batch": 2}, 1),
        (2, {"pipeline__num_micro_batch": 2}, 2),
        (2, {"gradient_checkpoint__type": "auto"}, 1),
    ],
    ids=["pipeline", "accumulation", "recomputation"],
)
def test_other_features_have_the_predicted_collectives(init, devices, more, runs, config):  # noqa: F811
    is_pipeline = devices == 4
    settings = {key.replace(".", "__"): value for key, value in config.items()}
    init(devices, annotate=False, replicate__state="each", **settings, **more)
    loss_of = two_stages if is_pipeline else masked if config is ALL else batch_norms
    x, train, found = recorded(loss_of, machine([["a"] * devices]), 2 * runs * ROWS, annotate=not is_pipeline)
    seen = ran(x, train, 2 * ROWS)
    assert seen and by_kind(found) == {kind: (runs * times, runs * size) for kind, (times, size) in seen.items()}


def test_statistics_of_all_rows_make_a_step_longer_by_their_collectives(init):  # noqa: F811
    found = {}
    for name in ("batch norms", "moving averages"):  # one model, with and without them; its gradients come last
        config = {key.replace(".", "__"): value for key, value in MODELS[name][1].items()}
        init(2, annotate=False, communication__max_splits=1, **config)
        found[name] = recorded(MODELS[name][0], machine(latency=0.5, bandwidth=1e9))[2]
    latencies = 4 * 2 * 0.5  # a ring of two: 2 messages for each of 4 all-reduces
    assert found["batch norms"].seconds >= found["moving averages"].seconds + latencies


WAITS = "200 B, 4 s, for which the passes wait"


def hand_made(*exchanges):
    """Two layers on two devices, with collectives of rows; one of 100 B takes 2 s."""
    costs = HandCosts([Layer(weight=600, output=5.0), Layer(output=5.0)])
    costs.exchanges = tuple(one._replace(at=costs.first[1]) for one in exchanges)
    return predict(strategy(costs, devices=2), costs, machine(latency=0.5, bandwidth=100.0), 4)


def exchange(way, collective="all-reduce", fixed=100, by_row=0):
    return RowExchange("here", collective, way, 0, fixed=fixed, by_row=by_row)


def test_passes_wait_for_statistics_of_all_rows():
    without = hand_made()
    forward, backward = (hand_made(exchange(way)) for way in (RowWay.FORWARD, RowWay.BACKWARD))
    both = hand_made(exchange(RowWay.FORWARD), exchange(RowWay.BACKWARD))
    assert [one.seconds - without.seconds for one in (forward, backward, both)] == pytest.approx([2.0, 2.0, 4.0])
    assert costs_of_rows(both) == [
        "here: 1 all-reduce forward, 1 all-reduce backward, 200 B, 4 s, for which the passes wait"
    ]
    assert costs_of_rows(without) == []


def test_no_pass_waits_for_a_write():
    without, found = hand_made(), hand_made(exchange(RowWay.WRITES), exchange(RowWay.WRITES))
    assert found.seconds == without.seconds
    assert costs_of_rows(found) == ["here: 2 all-reduces of writes, 200 B, 4 s, next to the passes"]


def test_a_write_that_is_late_ends_the_step():
    assert hand_made(exchange(RowWay.WRITES, fixed=10_000)).seconds > 100


def test_gathered_rows_are_kept_for_the_backward_pass():
    without, found = hand_made(), hand_made(exchange(RowWay.FORWARD, "all-gather", 0, 500))
    (one,) = [one for one in found.traffic if one.way]
    assert one.bytes == 500 * 4  # the rows of both replicas
    held, before = (one.devices[0].memory.by_role["communication"] for one in (found, without))
    assert held - before == 2000 + NCCL_PACK_BYTES


def test_one_replica_has_no_collectives_of_rows():
    costs = HandCosts([Layer(weight=600)])
    costs.exchanges = (exchange(RowWay.FORWARD),)
    assert not predict(strategy(costs), costs, machine([["a"]]), 4).traffic


def test_micro_batches_have_them_each():
    costs = HandCosts([Layer(weight=600), Layer()])
    costs.exchanges = (exchange(RowWay.FORWARD), exchange(RowWay.WRITES))
    found = predict(strategy(costs, devices=2, pipeline__num_micro_batch=4), costs, machine(), 16)
    assert [one.times for one in found.traffic if one.way] == [4, 4]


def test_rows_of_all_replicas_are_refused_with_a_split():
    costs = HandCosts([Layer(weight=600), Layer()])
    costs.exchanges = (exchange(RowWay.FORWARD),)
    blocks = [split(2)]
    with pytest.raises(NotAvailableError, match="the prediction of here with epl.split"):
        predict(strategy(costs, devices=2, blocks=blocks), costs, machine(), 4)
    costs.exchanges = (exchange(RowWay.WRITES),)
    assert predict(strategy(costs, devices=2, blocks=blocks), costs, machine(), 4).seconds


def test_what_losses_of_all_rows_are_refused_with_is_refused_in_a_search():
    """Where their collectives are not known yet; else the search would find a plan that cannot be trained."""
    costs = HandCosts([Layer(weight=600), Layer()])
    costs.uncounted = (LOSSES,)
    for more in ({"blocks": [split(2)]}, {"zero__level": "v2"}, {"offload__level": "v0"}):
        with pytest.raises(NotAvailableError, match='the prediction of replicate.batch "all" with '):
            predict(strategy(costs, devices=2, **more), costs, machine(), 4)
    assert predict(strategy(costs, devices=2), costs, machine(), 4).seconds


def test_stages_have_their_own():
    costs = HandCosts([Layer(weight=600), Layer(), Layer()])
    costs.exchanges = tuple(exchange(way)._replace(at=costs.first[2]) for way in (RowWay.FORWARD, RowWay.BACKWARD))
    four = machine([["a"] * 4], latency=0.5, bandwidth=100.0)
    settings = {**stages(costs, 1), "pipeline__num_micro_batch": 2}
    found = predict(strategy(costs, devices=4, **settings), costs, four, 8)
    assert [(one.times, one.devices) for one in found.traffic if one.way] == [(2, 2), (2, 2)]
    costs.exchanges = ()
    without = predict(strategy(costs, devices=4, **settings), costs, four, 8)
    assert found.seconds >= without.seconds + 4 * 2.0


def test_each_communicator_of_a_gpu_has_its_memory():
    """NCCL packs small tensors: batch norms have one communicator a way, each write has its own."""
    costs = HandCosts([Layer(weight=600), Layer()])
    where = machine(devices=[device()._replace(name="a", type="GPU")])
    sizes = []
    for exchanges in ((), (exchange(RowWay.FORWARD),) * 3, (exchange(RowWay.WRITES),) * 3):
        costs.exchanges = exchanges
        sizes.append(predict(strategy(costs, devices=2), costs, where, 4).devices[0].memory.by_role["communication"])
    assert [size - sizes[0] for size in sizes] == [0, NCCL_PACK_BYTES, 3 * NCCL_PACK_BYTES]


def test_a_search_counts_batch_norms_and_says_what_it_does_not(init):  # noqa: F811
    init(2, annotate=False, batch_norm__sync=True, replicate__batch="all")
    x = tf.placeholder(tf.float32, [None, WIDTH], "x")
    loss = batch_norms(x)
    graph = Graph.of(x.graph, may_create=True)
    found = record.forward_pass(graph, loss, tf.trainable_variables())
    costs = GraphCosts.of_recorded(graph, found, slots={})
    assert Counter(one.way for one in costs.exchanges) == {"forward": 2, "backward": 2}
    sizes = {costs.row_bytes(one, rows) for one in costs.exchanges for rows in (2, 64)}
    assert sizes == {8 * (2 * 6 + 1), 8 * (2 * 3 + 1)}  # float64: two sums for each channel, and the rows
    assert costs.uncounted == ('replicate.batch "all"', 'replicate.state "all"')
    planned = record.strategy_of_pass(graph, found)._replace(blocks=(replicate(),))
    told = predict(planned, costs, machine(), 2 * ROWS).assumptions
    assert [line for line in told if "not counted" in line] == [
        'the collectives of replicate.batch "all" are not counted',
        'the collectives of replicate.state "all" are not counted',
    ]
