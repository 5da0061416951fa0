"""Which devices a split has that is not on those of the TaskGraphs beside it."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.cluster.cluster import Cluster
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.plan.dedicated_devices import _one_for_each
from epl.parallel.plan.plan import worker_of
from epl.parallel.plan.stages import plan_stages
from epl.utils.errors import LayoutError, NotAvailableError, PlanError

NAME = "/job:worker/replica:0/task:{}/device:CPU:{}"


def _devices(*strategies):
    """By stage, its devices by rank."""
    for strategy in strategies:
        with strategy:
            tf.constant(1.0)
    found, _ = plan_stages(Graph.get(), Env.get().cluster)
    return [stage.devices for stage in found]


def stages(*strategies):
    """By stage, the numbers of its devices by rank."""
    return [[int(name.split(":")[-1]) for name in names] for names in _devices(*strategies)]


@pytest.mark.parametrize(
    "devices, counts, expected",
    [
        (3, [1, -2], [[0, 0], [1, 2]]),
        (4, [2, -2], [[0, 1], [2, 3]]),
        (6, [1, -2], [[0, 0, 3, 3], [1, 2, 4, 5]]),
        (5, [2, -3], [[0, 1, 0], [2, 3, 4]]),
        (4, [1, -2, 1], [[0, 0], [1, 2], [3, 3]]),
        (3, [-2, 1], [[0, 1], [2, 2]]),
        (2, [1, -1], [[0], [1]]),
        (2, [-2, -2], [[0, 1]]),
        (2, [2, -2], [[0, 1]]),
    ],
)
def test_each_rank_has_a_device_of_each_taskgraph(init, devices, counts, expected):
    init(devices, annotate=False)
    assert stages(*[epl.split(-n) if n < 0 else epl.replicate(n) for n in counts]) == expected


@pytest.mark.parametrize("devices, shared", [(2, True), (4, False)])
def test_what_shares_all_devices_is_told_once(init, caplog, devices, shared):
    init(devices, annotate=False)
    with epl.replicate(2):
        x = tf.layers.dense(tf.placeholder(tf.float32, [None, 3]), 4)
    with epl.split(2):
        loss = tf.reduce_mean(tf.layers.dense(x, 4))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with caplog.at_level("INFO", logger="epl"):
        transformation.transform()
    assert caplog.text.count("asks for all 2 devices of the job, so they share them") == shared


def test_the_layout_all_is_for_all_taskgraphs(init):
    init(2, annotate=False)
    Env.get().use(epl.Cluster())
    assert stages(epl.replicate(1), epl.split(2)) == [[0, 1]]


def test_a_specific_layout_says_which_devices(init):
    init(3, annotate=False)
    layout = [[[NAME.format(0, 2)]], [[NAME.format(0, 0), NAME.format(0, 1)]]]
    Env.get().use(epl.Cluster(layout={"specific": layout}))
    assert stages(epl.replicate(1), epl.split(2)) == [[2, 2], [0, 1]]


def test_devices_of_the_same_process_go_together():
    beside = [NAME.format(worker, 0) for worker in (0, 1)]
    split = [NAME.format(worker, device) for worker in (0, 1) for device in (1, 2)]
    assert _one_for_each(beside, split) == [beside[0], beside[0], beside[1], beside[1]]
    elsewhere = [NAME.format(worker, 0) for worker in (2, 0, 0, 1)]
    assert _one_for_each(beside, elsewhere) == [beside[1], beside[0], beside[0], beside[1]]


def test_devices_that_do_not_fit_are_refused_with_both_ways_out(init):
    init(2, annotate=False)
    with pytest.raises(LayoutError, match="multiple of 3.*set cluster.colocate_split_and_replicate to True"):
        stages(epl.replicate(1), epl.split(2))


@pytest.mark.parametrize("splits", [[None], [1, 2]])
def test_splits_say_how_many_devices_they_have(init, splits):
    init(4, annotate=False)
    with pytest.raises(PlanError, match="a split on devices of its own says how many it has"):
        stages(epl.replicate(1), *[epl.split(count) for count in splits])


def test_splits_stand_beside_stages_or_in_them(init):
    init(3, annotate=False)
    with epl.replicate(1), epl.split(2):
        tf.constant(1.0)
    with pytest.raises(PlanError, match="put all of them into scopes of epl.replicate"):
        stages(epl.split(2))


def test_no_device_is_idle(init):
    init(3, annotate=False)
    with pytest.raises(PlanError, match="some would have no work"):
        stages(epl.replicate(2), epl.split(1))


def test_a_specific_layout_has_as_many_devices_as_the_split(init):
    init(3, annotate=False)
    layout = [[[NAME.format(0, 0)]], [[NAME.format(0, 1)]]]
    Env.get().use(epl.Cluster(layout={"specific": layout}))
    with pytest.raises(PlanError, match=r"has 1 device\(s\) in the layout of the cluster"):
        stages(epl.replicate(1), epl.split(2))


def test_a_gpu_works_for_one_device_of_the_split(init, monkeypatch):
    init(3, annotate=False)
    monkeypatch.setattr(Cluster, "device_type", "GPU")
    with pytest.raises(NotAvailableError, match="A GPU cannot work for several devices of a split"):
        stages(epl.replicate(1), epl.split(2))


def test_gpus_that_lie_unevenly_in_processes_work_for_one_device_each(init, monkeypatch):
    monkeypatch.setattr(Cluster, "device_type", "GPU")
    init(3, annotate=False, cluster__device_place_prefer_intra_node=False)
    Env.get().use(epl.Cluster(worker_hosts=["localhost:1", "localhost:2"], worker_index=0, layout="auto"))
    replicated, split = _devices(epl.replicate(3), epl.split(3))
    assert len(set(replicated)) == len(set(split)) == 3


@pytest.mark.parametrize(
    "workers, counts, expected",
    [
        (3, [1, -2], [[0, 0], [1, 2]]),
        (4, [2, -2], [[0, 1], [2, 3]]),
        (6, [1, -2], [[0, 0, 3, 3], [1, 2, 4, 5]]),
        (3, [-2, 1], [[0, 1], [2, 2]]),
    ],
)
def test_devices_in_other_processes(init, workers, counts, expected):
    init(1, annotate=False)
    hosts = [f"localhost:{number}" for number in range(workers)]
    Env.get().use(epl.Cluster(worker_hosts=hosts, worker_index=0, layout="auto"))
    found = _devices(*[epl.split(-n) if n < 0 else epl.replicate(n) for n in counts])
    assert [[worker_of(name) for name in names] for names in found] == expected


def test_devices_of_every_worker_have_work(init):
    init(3, annotate=False)
    layout = [[[NAME.format(0, 0), NAME.format(1, 0)]], [[NAME.format(0, 1), NAME.format(0, 2)]]]
    Env.get().use(epl.Cluster(["localhost:1", "localhost:2"], worker_index=0, layout={"specific": layout}))
    assert _devices(epl.replicate(2), epl.split(2))[0] == (NAME.format(0, 0), NAME.format(1, 0))
